"""Compare the declared models before any work, from headers alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from merganser.adapters.files import open_model
from merganser.checkpoints import open_checkpoint
from merganser.deltas import check_pair
from merganser.errors import InputError
from merganser.parameters import ParameterRules
from merganser.params import Params
from merganser.sources import read_pointer


def check_sources(params: Params, folder: Path, made: Callable[[Path], bool]) -> None:
    """Check each source that lies on this disk and each pair of base and task; raise InputError listing every mistake.

    `folder` is what relative sources start from. `made` tells whether a stage will write a path that is not there yet.
    """
    mistakes: list[str] = []
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices)
    sources = {"base.source": params.base.source}
    for name, task in params.tasks.items():
        sources |= {f"tasks.{name}.source": task.source, f"tasks.{name}.data.source": task.data.source}
    here = {}
    for place, source in sources.items():
        with _noted(mistakes, place):
            if _lies_here(folder / source, made):
                here[place] = folder / source
    for name in params.tasks if "base.source" in here else ():
        if f"tasks.{name}.source" in here:
            with _noted(mistakes, f"tasks.{name}.source"):
                base, tuned = open_checkpoint(here["base.source"]), open_model(here[f"tasks.{name}.source"])
                check_pair(base, tuned, rules, name)
    if mistakes:
        raise InputError("\n".join(dict.fromkeys(mistakes)))


def _lies_here(source: Path, made: Callable[[Path], bool]) -> bool:
    """Tell whether a source is here to be read; raise InputError when it never will be, or its pointer is wrong."""
    if source.exists():
        return read_pointer(source) is None
    if not made(source):
        raise InputError(f"{source}: no such file or folder, and no stage makes it")
    return False


@contextmanager
def _noted(mistakes: list[str], place: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        mistakes.append(f"{place}: {error}")
