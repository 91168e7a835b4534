"""What the learners' own settings have in common."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class LearnerSettings(BaseModel):
    """How long is learned, from how many examples a task and step, by which step size of Adam, and where.

    Every `every` steps the loss on the fixed examples is measured, and the state is written.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    apart: ClassVar[bool] = False  # whether each task has values and a model of its own, in place of one for all

    steps: Annotated[int, Field(ge=0)] = 1000
    lr: Annotated[float, Field(gt=0)] = 1e-3
    batch_size: Annotated[int, Field(ge=1)] = 16
    every: Annotated[int, Field(ge=1)] = 10
    device: Literal["cpu", "cuda"] = "cpu"


class RoutingSettings(LearnerSettings):
    """The factor on the tasks' vectors that are not mixed, which is each router's answer before the first step."""

    scaling: float = 0.3
    lr: Annotated[float, Field(gt=0)] = 1e-4


class LabelledSettings(LearnerSettings):
    """What a learner has that makes the cross-entropy small, of so many examples of each class, and not the entropy."""

    examples: Annotated[int, Field(ge=1)] = 8
