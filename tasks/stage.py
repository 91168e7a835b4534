"""Shared by all stages: how the command ends, and how its output appears complete or not at all."""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, wraps
from inspect import unwrap
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merganser.code_digest import KNOWN, ROOT, CodeTree, code_digest, read_texts
from merganser.errors import InputError, refusing
from merganser.hashes import sha256_of_json
from merganser.outputs import write_json
from merganser.plugins import trust_own_methods
from merganser.tasks.code_record import RECORD, read_record
from merganser.tasks.stages import CODE, PROFILES
from merganser.terminal.failures import space_words

if TYPE_CHECKING:
    from merganser.config.params import Params

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

TEXTS, LISTINGS = "texts.json", "listings.json"  # beside the classes, in `CODE`: what was parsed, what each is of
# By their folder in data/code, the packages of what is found by its name; a whole name would count as an import.
_PACKAGES = {
    "additions": "at_run_time.additions",
    "families": "models.families",
    "kinds": "evaluation.kinds",
    "methods": "methods",
}
FOUND_BY_NAME = {folder: f"merganser.{package}" for folder, package in _PACKAGES.items()}
IN_CARDS = ("CONFIG", "LIBRARY", "PIPELINES")  # of a family's module: what the cards of merges are written by
AT = "@"  # in a command: the name of this instance of the stage


def run_main(main: Callable[[list[str]], None]) -> None:
    """Run a stage's main with one thread a layer, for the same bytes on any machine; a user error exits 2."""
    from merganser.workers import VARIABLE, limit_loaded_libraries, threads_wanted

    os.environ[VARIABLE] = str(threads_wanted())
    for name in THREADS:
        os.environ[name] = "1"
    limit_loaded_libraries()  # the variables are for those that are not loaded yet
    end_well(main)


def end_well(main: Callable[[list[str]], None]) -> None:
    """Run a stage's main; a user error exits 2 with its message, a system error 1 with its own."""
    trust_own_methods()
    try:
        spec = unwrap(main).__globals__.get("__spec__")
        name = spec.name.rpartition(".")[2] if spec else CODE.name
        if name != CODE.name:  # which writes the classes of all others
            check_code(spec.name, f"{name}.txt")
        main(stage_arguments())
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except (OSError, MemoryError, RuntimeError) as error:
        refusal = _lack(error) or _refusal(error)
        if refusal is None:
            raise
        sys.exit(f"{refusal}, and run again: finished work is kept")


def check_code(module: str, file: str) -> None:
    """Refuse to run a module if DVC has another class of its code, under DVC or `merganser run`.

    Raises InputError if a module was edited since the stage `code` ran, or if this node's checkout differs: the
    results would be recorded as those of the old code.
    """
    _check(module, file, lambda code: class_line(code, module))


def check_card(family: str) -> None:
    """Refuse to write a card if DVC has another version of the family's text for model cards."""
    _check(f"{FOUND_BY_NAME['families']}.{family}", f"cards/{family}.txt", lambda code: card_line(code, family))


def class_line(code: CodeTree, module: str) -> str:
    """Return the file content that stages running a module depend on: the class of its code."""
    return f"{code.code_class(module)}\n"


def card_line(code: CodeTree, family: str) -> str:
    """Return a family's text for model cards of merges."""
    module = f"{FOUND_BY_NAME['families']}.{family}"
    constants = code.constants(module)
    return f"{module} {json.dumps({name: constants.get(name) for name in IN_CARDS})}\n"


def _check(module: str, file: str, text: Callable[[CodeTree], str]) -> None:
    path = CODE / file
    if "DVC_STAGE" not in os.environ or not path.is_file():
        return
    code = _code(code_root())
    if text(code) == path.read_text(encoding="utf-8"):
        return
    if RECORD.is_file() and (version := _kept_version(file)):
        reason = f"{RECORD} keeps the results of Merganser {version}, and the installed version makes others"
        raise InputError(f"{module}: {reason}; `merganser update` lets it run")
    edited = ", ".join(_edited(code, module, file)) or module
    again = "`merganser update`, then" if RECORD.is_file() else "all of it:"
    raise InputError(
        f"{module}: edited since {path} was written: {edited}; run again, {again} `merganser run` or `dvc repro`"
    )


def _kept_version(file: str) -> str | None:
    """Return the version whose results a comparison keeps; None if it follows the installed one, as for cards."""
    digest = read_record(Path()).digests.get(file)
    return digest.kept if digest else None


def _edited(code: CodeTree, module: str, file: str) -> list[str]:
    """Name the modules that differ from those that the stage `code` saw; empty if unknown, as on nodes."""
    path = CODE / LISTINGS
    if not path.is_file():
        return []
    with refusing(f"{path}: not written by the stage `code`", "run that stage again"):
        recorded = json.loads(path.read_text(encoding="utf-8")).get(file)
    lines = {*recorded.splitlines()} ^ {*code.listing(module).splitlines()} if recorded else ()
    return sorted({line.split()[0] for line in lines})


def code_root() -> Path:
    """Return the folder of the running code: that of the clone around this file, else the installed package's."""
    return Path.cwd() if Path("merganser/tasks").is_dir() else ROOT


def code_tree(root: Path | None = None) -> CodeTree:
    """Return the code in a folder, by default the running code; text that was parsed before is not parsed again."""
    KNOWN.update(read_texts(CODE / TEXTS))
    return CodeTree(root or code_root(), KNOWN)


_code = cache(code_tree)


def check_found(folder: str, name: str) -> None:
    """Refuse to run a module found by its name if DVC has another digest of its code; `folder`: of `FOUND_BY_NAME`."""
    check_code(f"{FOUND_BY_NAME[folder]}.{name}", f"{folder}/{name}.txt")


def digest_of_code(params: "Params", *modules: str, kinds: Collection[str] | None = None) -> str:
    """Return a digest of the classes of these modules, of the family, and of kinds of task, by default all."""
    named = {task.kind for task in params.tasks.values()} if kinds is None else kinds
    family = f"merganser.models.families.{params.base.family}"
    modules_of_stage = [*modules, family, *(f"merganser.evaluation.kinds.{kind}" for kind in sorted(named))]
    return sha256_of_json({module: code_digest(module) for module in modules_of_stage})


def _lack(error: Exception) -> str | None:
    """Return which resource the machine lacks; None for other errors."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        file = error.filename if isinstance(error.filename, str) else str(Path.cwd())
        return f"no space left on the disk of {file}{space_words(Path(file)) or ': free some'}"
    words = str(error).partition("\n")[0]
    if isinstance(error, MemoryError) or "can't allocate memory" in words or "out of memory" in words:
        return f"not enough memory ({words or 'out of memory'}): give it more, or run fewer stages at once (--workers)"
    return None


def _refusal(error: Exception) -> str | None:
    """Return which file the system refused, and why; None if an error names none."""
    if not (isinstance(error, OSError) and error.filename and error.strerror):
        return None
    return f"{error.filename}: {error.strerror}; fix that"


def stage_arguments() -> list[str]:
    """Return the command line's arguments, with `@` replaced by DVC's name of this stage's instance.

    DVC and the flow set DVC_STAGE, such as merge@ties. A name in the command itself would be read by a shell.
    """
    name = os.environ.get("DVC_STAGE", "").partition("@")[2]
    if AT in sys.argv and not name:
        raise InputError(f"{AT}: only DVC and merganser run say what it stands for; give the names themselves")
    return [name if word == AT else word for word in sys.argv[1:]]


def names_of(argv: list[str], stage: str, known: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """Return a stage's one or two names: an argument each, or joined by - as DVC names a stage of a matrix."""
    if len(argv) == len(known):
        return tuple(argv)
    matching = [names for names in product(*known) if ["-".join(names)] == argv]
    if len(matching) != 1:
        expected = ("no arguments", "one name", "two names")[len(known)]
        raise InputError(f"{stage}: expected {expected}, got {' '.join(argv) or 'nothing'}")
    return matching[0]


def stage(
    *sections: str | Collection[str], timed: bool = False
) -> Callable[[Callable[..., None]], Callable[[list[str]], None]]:
    """Make a stage's main from a function of the params and one name from each of these sections of params.yaml.

    Instead of a section's key, a collection gives the names themselves. `timed`: write the seconds that it took, if
    it succeeds. The main raises InputError for unknown names.
    """

    def decorated(function: Callable[..., None]) -> Callable[[list[str]], None]:
        @wraps(function)
        def main(argv: list[str]) -> None:
            from merganser.config.loading import load_params
            from merganser.config.params import declared

            start_wall, start_cpu = time.perf_counter(), time.process_time()
            params = load_params()
            known: list[Any] = [attrgetter(each)(params) if isinstance(each, str) else each for each in sections]
            names = names_of(argv, function.__globals__["__spec__"].name, known)
            for section, names_there, name in zip(sections, known, names, strict=True):
                if isinstance(section, str):
                    declared(names_there, name, section)
            function(params, *names)
            if timed:
                times = {"wall_s": time.perf_counter() - start_wall, "cpu_s": time.process_time() - start_cpu}
                write_json(PROFILES.joinpath(str(sections[0]), *names[:-1], f"{names[-1]}.json"), times)

        return main

    return decorated
