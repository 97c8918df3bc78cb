"""The JSON schema of experiment files, so that editors complete and check them."""

from typing import Any

from memlane_lab import workloads
from memlane_lab.experiment.experiment import Experiment
from memlane_lab.experiment.setting import Setting


def experiments() -> dict[str, Any]:
    """The schema of a file in lab/experiments."""
    schema = Experiment.model_json_schema()
    setting = Setting.model_json_schema()
    known = {**schema.pop("$defs"), **setting.pop("$defs")}
    known["Traffic"]["additionalProperties"] = True  # a workload's parameters stand beside
    known["Traffic"]["properties"]["workload"]["enum"] = list(workloads.WORKLOADS)
    for kind in workloads.WORKLOADS.values():
        for name, stated in kind.Parameters.model_json_schema()["properties"].items():
            known["Traffic"]["properties"].setdefault(name, {"title": stated.get("title", name)})
    traffic = setting["properties"]["traffic"]
    setting["properties"]["traffic"] = {"anyOf": [traffic, traffic["items"]]}  # one may stand for a list
    # A label of `vary` may state the keys that a setting lacks.
    known["Setting"] = {key: value for key, value in setting.items() if key != "required"}
    schema["properties"]["setting"] = {"$ref": "#/$defs/Setting"}
    schema["required"] = [name for name in schema["required"] if name != "name"]  # the file has one
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": known}
