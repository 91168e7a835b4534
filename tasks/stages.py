"""What is known of each kind of stage in dvc.yaml, in a row each; everything that needs to know it reads this table."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A kind of stage.

    `device`: the section of params.yaml that declares what it computes on; nothing where that is always the CPU.
    `by_entry`: each entry of that section declares its own, and the stage's name begins with the entry's.
    """

    device: str | None = None
    by_entry: bool = False


ON_CPU = Stage()
MERGE, EVALUATION = Stage("merge"), Stage("evaluation")

STAGES: Mapping[str, Stage] = {
    "code": ON_CPU,
    "fetch_base": ON_CPU,
    "fetch": ON_CPU,
    "fetch_data": ON_CPU,
    "extract": ON_CPU,
    "decompose": ON_CPU,
    "join": ON_CPU,
    "difference": ON_CPU,
    "extract_difference": ON_CPU,
    "describe": ON_CPU,
    "merge": MERGE,
    "prepare": ON_CPU,
    "prepare_validation": ON_CPU,
    "statistics": Stage("statistics", by_entry=True),
    "route": EVALUATION,
    "surgery": EVALUATION,
    "learn": Stage("learned", by_entry=True),
    "search": EVALUATION,
    "evaluate": EVALUATION,
    "measure": ON_CPU,
    "measure_merged": ON_CPU,
    "study_tasks": EVALUATION,
    "study_rank": EVALUATION,
    "publish": ON_CPU,
    "record": ON_CPU,
    "report": ON_CPU,
}
