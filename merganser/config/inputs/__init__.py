"""The table of inputs that an entry of `methods` can read. Checks, defaults and data classes loop over it.

tasks/opening.py has how merges open them: that is code whose edits rerun merges.
"""

from collections.abc import Mapping

from merganser.config.inputs.base import Input
from merganser.config.inputs.deltas import DeltasInput, DifferencesInput, FactorsInput, JointsInput
from merganser.config.inputs.from_data import (
    EmbeddingsInput,
    LearnedValuesInput,
    RoutersInput,
    SearchesInput,
    StatisticsInput,
    SurgeryInput,
)
from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.registry import Described

# An input that is of another stands behind it.
INPUTS: Mapping[str, Input] = {
    each.name: each
    for each in (
        *(DeltasInput(), FactorsInput(), JointsInput(), DifferencesInput(), EmbeddingsInput()),
        *(RoutersInput(), SurgeryInput(), LearnedValuesInput(), StatisticsInput(), SearchesInput()),
    )
}
SECTIONS = tuple(name for name in INPUTS if name in Params.model_fields)
FROM_VALIDATION = tuple(name for name, each in INPUTS.items() if each.validation)


def input_of_entry(entry: Entry) -> Input | None:
    """Return the input that an entry reads; None if its name is unknown."""
    return INPUTS.get(entry.reads.partition("/")[0])


def input_of(method: Described) -> Input:
    """Return the input of a method's entries; if it needs two, the one that is `of` the other."""
    return [input_kind for input_kind in INPUTS.values() if input_kind.is_read_by(method)][-1]
