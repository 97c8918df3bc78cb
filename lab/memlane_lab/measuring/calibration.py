"""Loads stated as a share of the standard path's limit: the limit is measured once, and rates follow from it.

The limit is the rate of interactions that the stated number of browsers reaches on the bridge without thinking.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlane_lab.experiment.setting import Setting, Traffic

_BROWSERS = 32


class Limits:
    """The limits that a run has found, kept in a file, so that one that goes on later goes on with the same rates."""

    def __init__(self, measure: Callable[[Setting], float], file: Path) -> None:
        """`measure` gets a shop to its limit, and tells the interactions a second of all its copies."""
        self._measure, self._file = measure, file
        self._known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def applied(self, setting: Setting) -> Setting:
        """The setting with rates instead of shares."""
        if not any(_share(traffic) for traffic in setting.traffic):
            return setting
        return setting.model_copy(update={"traffic": tuple(self._stated(setting, each) for each in setting.traffic)})

    def of(self, setting: Setting) -> float | None:
        """The limit of each of the setting's shops, if its load is stated as a share of one."""
        found = [self._limit(setting, traffic) for traffic in setting.traffic if _share(traffic)]
        return found[0] if found else None

    def _stated(self, setting: Setting, traffic: Traffic) -> Traffic:
        if not (share := _share(traffic)):
            return traffic
        rate = share * self._limit(setting, traffic)
        return traffic.model_copy(update={"parameters": traffic.parameters | {"rate": rate}})

    def _limit(self, setting: Setting, traffic: Traffic) -> float:
        wanted = _at_its_limit(setting, traffic)
        key = wanted.model_dump_json()
        if key not in self._known:
            assert wanted.shop is not None
            self._known[key] = self._measure(wanted) / wanted.shop.copies
            self._file.write_text(json.dumps(self._known, indent=1))
        return self._known[key]


def _share(traffic: Traffic) -> float:
    """The share of the limit that the traffic is stated as; 0 if it is not."""
    told: Any = traffic.parameters.get("share", 0.0)
    return float(told)


def _at_its_limit(setting: Setting, traffic: Traffic) -> Setting:
    """The same shops in three guests each, on the bridge, alone, under as much load as they take."""
    assert setting.shop is not None
    kept = {name: traffic.parameters[name] for name in ("mix", "session", "pictures")}
    load = {"load": "closed", "think": 0.0, "browsers": _BROWSERS, "errors": 0.01}
    return Setting(
        path="bridge",
        pairs=0,
        shop=setting.shop.model_copy(update={"together": False}),
        memory=setting.memory,
        processors=setting.processors,
        mtu=setting.mtu,
        traffic=({"workload": traffic.workload, **kept, **load},),  # type: ignore[arg-type]
    )
