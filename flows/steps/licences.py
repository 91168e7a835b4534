"""What is known of the models' licences before a run: by what lies here, and by what was fetched before."""

from pathlib import Path

from dvcfleet.terminal.secrets import masked
from merganser.checkpoints.architecture import read_object
from merganser.checkpoints.origins import ModelOrigin, described_origin
from merganser.checkpoints.reading import DESCRIPTION
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.limits import SMALL
from merganser.merging.licences import licence_warnings
from merganser.sources.fetching import description_of, known_facts
from merganser.sources.pointers import read_pointer
from merganser.tasks.stages import BASE, CHECKPOINTS


def licence_notes(params: Params) -> list[str]:
    """Say which licences of a comparison's models do not go together, as far as that is known; asks no hub."""
    fetched = {CHECKPOINTS / name: Path(task.source) for name, task in params.tasks.items()}
    if params.base_source is not None:
        fetched = {BASE: Path(params.base_source)} | fetched
    origins = {str(folder): _origin(source, folder) for folder, source in fetched.items()}
    return [masked(f"licences: {line}") for line in licence_warnings(origins)]


def _origin(source: Path, folder: Path) -> ModelOrigin:
    """Return the origin of what was fetched into a folder, if it was this source; else what is known of that."""
    try:
        expected = description_of(source, read_pointer(source))
        found = read_object(folder / DESCRIPTION, SMALL) or {}
        facts = found if expected.items() <= found.items() else {**expected, **known_facts(source)}
    except InputError:  # said when it is read
        return ModelOrigin(str(source))
    return described_origin({**facts, "files": {}})
