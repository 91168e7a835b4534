"""Start `merganser`: the command line of a repository if there is one, else the commands that need none."""

import os
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from typer.main import get_group

from merganser.command_line.app import add_commands, empty_app, main
from merganser.command_line.trust import is_trusted
from merganser.errors import InputError, did_you_mean
from merganser.limits import read_small

OWN = Path(__file__).resolve().parents[2]  # where this package was imported from
ENGINE = "packages/dvcfleet"  # in a clone, the folder that the package `dvcfleet` is imported from
RECORD = ".merganser/code.json"  # of a comparison
PIPELINE = ("dvc", "dvcfleet", "mlflow", "prefect")  # what the extra brings that no other library does


def start() -> None:
    """Run the command line, then exit."""
    named = _option(sys.argv[1:], "--repo")
    root = (code_around(Path(named)) if named else None) or code_around(Path.cwd())
    lacking = [name for name in PIPELINE if find_spec(name) is None]
    command, light = next((word for word in sys.argv[1:] if not word.startswith("-")), None), light_commands()
    of_a_repository = command is not None and command not in light
    if root and root != OWN and repository_at(root) and not lacking:
        if of_a_repository and not is_trusted(root, OWN):
            print(untrusted(root), file=sys.stderr)
            sys.exit(2)
        if of_a_repository:
            print(other_package(root), file=sys.stderr)
            _run_its_own(root)
    if not lacking:
        import_module("merganser.flows.__main__").start()
        return
    if of_a_repository:
        print(advice(str(command), root, lacking, light), file=sys.stderr)
        sys.exit(2)
    main()


def code_around(folder: Path) -> Path | None:
    """Return the comparison or clone of Merganser's repository around a folder; None if there is neither.

    A comparison in its own repository has no code: the installed package runs it.
    """
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if (each / RECORD).is_file() or repository_at(each)), None)


def repository_at(folder: Path) -> Path | None:
    """Return a folder that is a clone of Merganser's repository; None for any other, such as another DVC repository."""
    project = folder / "pyproject.toml"
    if not (project.is_file() and (folder / "dvc.yaml").is_file() and (folder / "flows/__main__.py").is_file()):
        return None
    try:
        name = tomllib.loads(read_small(project).decode())["project"]["name"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return folder if name == "merganser" else None


def other_package(root: Path) -> str:
    """Return a message if the environment's package is not the repository's, with the remedy."""
    return (
        f"warning: this environment's merganser is that of {OWN}, but this runs the code of the repository {root}; "
        f"run `make venv` there, or switch this environment to it: `pip install -e packages/dvcfleet -e .`"
    )


def untrusted(root: Path) -> str:
    """Return a message that a clone's own code does not run in this environment, with the remedy."""
    return str(
        InputError(
            f"{root} is another clone of Merganser with other code, and this environment is not its own: if you "
            f"trust that code, run `make venv` there and use its .venv/bin/merganser, or say `merganser trust {root}`"
        )
    )


def light_commands() -> list[str]:
    """List the commands that need no repository."""
    app = empty_app()
    add_commands(app)
    return list(get_group(app).commands)


def advice(command: str, root: Path | None, lacking: Sequence[str], light: Sequence[str]) -> str:
    """Return what a repository's command needs: a folder to run in, or packages to install."""
    is_clone = root is not None and repository_at(root) is not None
    what = f"-e '{root}/{ENGINE}' -e '{root}[pipeline]'" if is_clone else "'merganser[pipeline]'"
    more = f"; without it there are {', '.join(light)}{did_you_mean(command, light)}"
    need = f"{', '.join(lacking)}, which the extra `pipeline` brings: pip install {what}"
    return str(InputError(f"merganser {command} needs {need}{more}"))


def _run_its_own(root: Path) -> NoReturn:
    """Replace this process by the command line of a repository, with its own code."""
    places = [str(root), str(root / ENGINE), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "merganser.flows", *sys.argv[1:]])


def _option(words: Sequence[str], name: str) -> str | None:
    for word, following in zip_longest(words, words[1:]):
        if word == name and following:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
