"""What the kinds' own settings have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]


class KindSettings(BaseModel):
    """A kind's own keys under `data:`: exactly these, of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
