"""What data an entry had beside the checkpoints: by what it reads, and by what that was computed from."""

from merganser import registry
from merganser.config.inputs import INPUTS, input_of_entry
from merganser.config.inputs.base import known_method
from merganser.config.params import Entry, Params
from merganser.merging.method import Involvement

ORDER: tuple[Involvement, ...] = ("NDI", "VDI", "TTA")
TITLES: dict[Involvement, str] = {"NDI": "no data", "VDI": "validation data", "TTA": "test-time adaptation"}


def data_class(params: Params, entry: Entry) -> Involvement:
    """Return the class of an entry: that of its method where what it reads was computed from data, else no data."""
    read = input_of_entry(entry)
    found: list[Involvement] = ["NDI"]
    if read is not None and read.validation:
        found.append(max("VDI", registry.get(entry.method).involvement, key=ORDER.index))
    difference = params.differences.get(params.inner(entry).difference or "")
    if difference is not None and difference.merged in params.methods:
        found.append(data_class(params, params.methods[difference.merged]))
    return max(found, key=ORDER.index)


def is_transductive(params: Params, entry: Entry) -> bool:
    """Tell whether an entry was adapted on the examples of a task that it is measured on, without their labels."""
    if params.validation is None or data_class(params, entry) == "NDI":
        return False
    return any(params.validation_split_of(task) == params.split_of(task) for task in params.tasks)


def adapts_only(params: Params) -> bool:
    """Tell whether what reads data does so to adapt, without labels: then it may be the split that is measured on."""
    if params.studies.ablations:
        return False
    reading = [each for each in INPUTS.values() if each.validation]
    methods = [known_method(each.applied_by(one)) for each in reading for one in each.declared(params).values()]
    return bool(methods) and all(method is not None and method.involvement == "TTA" for method in methods)
