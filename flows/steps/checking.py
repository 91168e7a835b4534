"""Check a comparison before it starts: params.yaml, the files it names, and the headers of its models."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dvcfleet.dvc_adapter.objects import is_near_output
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from merganser.config import PARAMS, POINTS_FILE
from merganser.config.headers import check_sources
from merganser.config.loading import complete_file, load_params
from merganser.config.mistakes import Mistake, MistakesError
from merganser.config.params import Params
from merganser.config.points import NONE, write_points
from merganser.errors import InputError
from merganser.flows.steps.sources import licence_notes
from merganser.outputs import replacing


def write_missing_points() -> None:
    """Write the points of params.yaml; none if it has mistakes, which its own check reports."""
    with suppress(InputError):
        write_points(load_params(PARAMS))
        return
    with replacing(POINTS_FILE) as out:  # never through a link
        out.write(NONE.encode())


def check_params_file(repo: Repo, digest: Callable[[], str]) -> str:
    """Check params.yaml and its models, and complete it; return its digest by `digest`.

    Also writes its list of points, and prints notes to standard error. Raises InputError with a line for each
    mistake.
    """
    from dvc.exceptions import DvcException

    notes: list[str] = []
    unknown: list[Path] = []

    def made(path: Path) -> bool:
        try:
            return is_near_output(repo, str(path.absolute()))
        except DvcException:  # it does not read a params.yaml that lacks something, or has a mistake
            unknown.append(path)
            return True

    def sources(params: Params) -> tuple[Mistake, ...]:
        try:
            notes[:] = [*check_sources(params, Path(), made), *licence_notes(params)]
        except MistakesError as error:
            return error.mistakes
        return ()

    checked = digest()  # of what is read now: stages check what is edited from here on
    params = load_params(PARAMS, sources)
    if note := complete_file(PARAMS):
        checked = digest()
        print(note, file=sys.stderr, flush=True)
    if write_points(params) or note:
        forget_index(repo)
    if unknown:
        load_params(PARAMS, sources)
    for said in notes:
        print(said, file=sys.stderr, flush=True)
    return checked
