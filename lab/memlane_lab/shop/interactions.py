"""Interactions of a browser with the shop, and their measures."""

from memlane_lab.statistics.measures import Across, Better, Measure

TITLES = {
    "home": "Home",
    "new": "New Products",
    "best": "Best Sellers",
    "book": "Product Detail",
    "search": "Search Request",
    "results": "Search Results",
    "cart": "Shopping Cart",
    "register": "Customer Registration",
    "buy": "Buy Request",
    "confirm": "Buy Confirm",
    "orders": "Order Inquiry",
    "last": "Order Display",
    "admin": "Admin Request",
    "changed": "Admin Confirm",
}
"""The interactions by the name that their pages carry, with TPC-W's names for them."""

STATISTICS = {
    "mean": ("mean", Across.MEAN),
    "p50": ("median", Across.MEAN),
    "p90": ("90th percentile", Across.MEAN),
    "p99": ("99th percentile", Across.WORST),
    "p999": ("99.9th percentile", Across.WORST),
    "max": ("maximum", Across.WORST),
}

PARTS = {
    "part_late": "begun late (mostly: waited for the answer before)",
    "part_network_web": "network: browser and web server",
    "part_web": "web server",
    "part_network_application": "network: web server and application",
    "part_application": "application",
    "part_network_database": "network: application and database",
    "part_database": "database",
    "part_pictures": "pictures",
}
"""The parts of a mean response, in the order of the way through the tiers; they add up to `felt_mean`.

"Network" is all between two programs: both kernels' stacks, the path, and waiting for a processor.
"""

TIERS = ("load", "web", "app", "db")


def of_interaction(name: str, statistic: str) -> str:
    """The name of the measure of one interaction."""
    return f"shop_{name}_{statistic}"


def _responses() -> list[Measure]:
    return [
        Measure(f"felt_{key}", f"response time, {title}", "s", Better.LESS, across)
        for key, (title, across) in STATISTICS.items()
    ]


def _by_interaction() -> list[Measure]:
    return [
        Measure(of_interaction(name, key), f"response time of {called}, {title}", "s", Better.LESS, across)
        for name, called in TITLES.items()
        for key, (title, across) in STATISTICS.items()
    ]


MEASURES = (
    *_responses(),
    Measure("interactions", "interactions answered", "1/s", Better.MORE),
    Measure("offered", "interactions that were due", "1/s"),
    Measure("limit", "what the shop can do on the bridge", "1/s"),
    Measure("errors", "share of interactions that failed", "", Better.LESS, Across.WORST),
    Measure("failed", "interactions that failed", "", Better.LESS),
    Measure("lateness", "lateness of the generator, 99th percentile", "s", Better.LESS, Across.WORST),
    Measure("gap", "longest time without an answer", "s", Better.LESS, Across.WORST),
    Measure("failing", "from the fault to the end of the last failed interaction", "s", Better.LESS, Across.WORST),
    Measure("failed_after", "interactions that failed though they began when all was mended", "", Better.LESS),
    Measure("questions", "questions to the database, per interaction", "", Better.NEITHER, Across.MEAN),
    Measure("network_share", "share of the response that is network", "", Better.LESS, Across.MEAN),
    *(Measure(name, f"mean response, {title}", "s", Better.LESS, Across.MEAN) for name, title in PARTS.items()),
    *(Measure(f"cpu_{tier}", f"CPU of tier {tier}, as the host counts", "CPU", Better.LESS) for tier in TIERS),
    *(Measure(f"frames_{tier}", f"frames received by tier {tier}", "1/s", Better.LESS) for tier in TIERS),
    *(Measure(f"kicks_{tier}", f"kicks of tier {tier}", "1/s", Better.LESS) for tier in TIERS),
    *_by_interaction(),
)
