"""What every stated or stored thing of the lab is made from."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """What is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
