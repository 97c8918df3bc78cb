"""The shop: a bookstore in three tiers, the actions of its browsers, and its logs.

Its sources (schema, pages, configuration, the browsers' script) lie in `lab/shop`; here is how the lab uses it.

1. `interactions.py`: the fourteen things that a browser does, and the measures that come of them.
2. `tiers.py`: the tiers' programs, started in guests, again after a crash too; their logs.
3. `browsers.py`: the load generator's command, and the lines that it writes.
4. `account.py`: lines and logs put together: response times, and where they were spent.

`workloads/shop.py` is the workload that experiments name.
"""
