"""What data an entry had beside the checkpoints: by what it reads, and by what that was computed from."""

from merganser import registry
from merganser.config.params import Entry, Params
from merganser.merging.method import Involvement

ORDER: tuple[Involvement, ...] = ("NDI", "VDI", "TTA")
TITLES: dict[Involvement, str] = {"NDI": "no data", "VDI": "validation data", "TTA": "test-time adaptation"}
READ_DATA = ("learned", "statistics")  # sections whose stages read the tasks' data; those beside a merge are others


def data_class(params: Params, entry: Entry) -> Involvement:
    """Return the class of an entry: that of its method where what it reads was computed from data, else no data."""
    method, section = registry.get(entry.method), entry.reads.partition("/")[0]
    found: list[Involvement] = ["NDI"]
    if section == "searches":
        found.append("VDI")
    elif section in READ_DATA or section in params.beside:
        found.append(max("VDI", method.involvement, key=ORDER.index))
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
    readers = [learned.learner for learned in params.learned.values()]
    readers += [section for section, declared in params.beside.items() if declared]
    known = [reader for reader in readers if reader in registry.names()]
    adapting = len(known) == len(readers) and all(registry.get(reader).involvement == "TTA" for reader in known)
    return bool(readers) and adapting and not params.searches and not params.statistics
