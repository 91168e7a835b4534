"""Settings that several learners share."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LearnerSettings(BaseModel):
    """The number of steps, the examples of each task per step, the step size of Adam, and the device.

    Every `every` steps the loss on the fixed examples is measured, and the state is written.
    """

    model_config = STRICT

    apart: ClassVar[bool] = False  # whether each task has values and a model of its own, in place of one for all

    steps: Annotated[int, Field(ge=0)] = 1000
    lr: Annotated[float, Field(gt=0)] = 1e-3
    batch_size: Annotated[int, Field(ge=1)] = 16
    every: Annotated[int, Field(ge=1)] = 10
    device: Literal["cpu", "cuda"] = "cpu"


class BlockSettings(BaseModel):
    """The number of examples of each task that a learner without steps runs, and the device."""

    model_config = STRICT

    examples: Annotated[int, Field(ge=1)] = 256
    device: Literal["cpu", "cuda"] = "cpu"


class RoutingSettings(LearnerSettings):
    """The factor on the tasks' vectors that are not mixed, which is also each router's output before the first step."""

    scaling: float = 0.3
    lr: Annotated[float, Field(gt=0)] = 1e-4


class LabelledSettings(LearnerSettings):
    """Settings of a learner that minimises the cross-entropy of so many labelled examples of each class."""

    examples: Annotated[int, Field(ge=1)] = 8
