"""A forked process that becomes a stage's command: a program, or a Python module that uses the imported modules."""

import atexit
import builtins
import ctypes
import gc
import io
import os
import runpy
import shutil
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Set
from contextlib import suppress
from importlib.machinery import all_suffixes
from mmap import mmap
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from dvcfleet.process_settings import restore_limit, without_own

_T = TypeVar("_T")

_PR_SET_PDEATHSIG = 1
# Variables that differ by stage: importing the modules of a project's own packages does not depend on them.
VARYING = frozenset({"DVC_STAGE"})
NOTED_BYTES = 1 << 16
_BUFFERED = (io.BufferedWriter, io.BufferedRandom)
_NOT_FLUSHED = 120  # the interpreter's exit code where it could not write its output


def become(request: dict[str, Any], loaded_at_start: Set[str]) -> NoReturn:
    """Run the requested command in this process, a child of the fork server.

    A module sees only those imported modules that a new interpreter would import too; `loaded_at_start` names the
    modules that every interpreter has. A request with `others` is carried out by a fork of a module server, which has
    entered its environment, and has imported more than these modules.
    """
    # A session of its own tells its processes from those of other commands, and keeps the terminal's signals away.
    os.setsid()
    # A command must not outlive its fork server: it would change files during the next run.
    end_with(request["server"])
    connect(request["output"])
    atexit.unregister(shutil.rmtree)  # of folders that imports in the server made, as matplotlib's does without a home
    module, others = request["module"], request.get("others")
    if others is None:
        enter(request)
    else:
        os.chdir(request["folder"])
        os.environ.update({name: request["environment"][name] for name in VARYING & request["environment"].keys()})
    if module is None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
            signal.signal(number, signal.SIG_DFL)
        os.execvp(request["argv"][0], request["argv"])
    sys.stdout.reconfigure(line_buffering=bool(os.environ.get("PYTHONUNBUFFERED")))  # type: ignore[union-attr]
    sys.argv[:] = [module, *request["arguments"]]
    others = others or prepare_imports(loaded_at_start)
    code = _exit_code_of(module)
    if noted := request.get("noted"):
        _note(noted, module, sys.modules.keys() - others)
    leave(code, others - {"__main__"})


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends; exit if that has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def connect(output: int) -> None:
    """Give this process an empty input, its output, which is closed as a descriptor of its own, and usual signals."""
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)


def enter(request: Mapping[str, Any]) -> None:
    """Enter a request's environment and folder."""
    restore_limit()
    for name in os.environ.keys() - without_own(os.environ).keys():
        del os.environ[name]
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


def prepare_imports(loaded_at_start: Set[str]) -> frozenset[str]:
    """Have modules in the working folder found; return the names of the imported modules that a command sees."""
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    _forget_modules(Path.cwd(), loaded_at_start)
    return frozenset(sys.modules)


def _forget_modules(folder: Path, loaded_at_start: Set[str]) -> None:
    """Drop the engine's modules, and those whose name a module in the folder also has."""
    sys.path_importer_cache.pop(str(folder), None)
    dropped = {"dvcfleet", *(modules_of_folder(folder) - loaded_at_start)}
    for name in [name for name in sys.modules if name.partition(".")[0] in dropped]:
        del sys.modules[name]


def modules_of_folder(folder: Path) -> set[str]:
    """Return the modules and packages in a folder."""
    names = set()
    for entry in os.scandir(folder):
        stem, dot, suffix = entry.name.partition(".")
        if dot + suffix in all_suffixes() or os.path.exists(f"{entry.path}/__init__.py"):
            names.add(stem)
    return names


def _exit_code_of(module: str) -> int:
    """Run a module as `python -m` does, and return the exit code that a shell would."""
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as end:
        return system_exit_code(end)
    except BaseException as error:
        frames = error.__traceback__ and error.__traceback__.tb_next  # without this function's
        try:
            sys.excepthook(type(error), error.with_traceback(frames), frames)
        except BaseException:
            traceback.print_exc()
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def system_exit_code(end: SystemExit) -> int:
    """Return the exit code of a SystemExit, after printing its message if there is one."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def leave(code: int, others: Set[str] | None = None) -> NoReturn:
    """Exit as an interpreter does, but without tearing down modules that the fork server imported, named by `others`.

    Threads are waited for, functions registered for the end are called, and whatever the stage's own modules refer to
    is finalized: open files are flushed. Tearing down the imported modules would take longer than most stages.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    code = _flushed() or code
    if others is not None:
        _finalize(others)
        _flushed()
    ctypes.CDLL(None).fflush(None)  # what libraries in C have printed
    os._exit(code)


def _flushed() -> int:
    """Flush standard output and error; return the exit code of an interpreter that cannot, else 0."""
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = _NOT_FLUSHED if stream is sys.stdout else code
    return code


def _note(noted: mmap, module: str, imported: Set[str]) -> None:
    """Note which modules of its package a command has imported, in memory that it shares with the fork server."""
    package = module.partition(".")[0]
    names = {
        name for name in imported if name.partition(".")[0] == package and name not in (module, f"{module}.__main__")
    }
    text = "\n".join(sorted(name for name in names if getattr(sys.modules[name], "__spec__", None))).encode()
    if len(text) < len(noted):
        noted[1 : 1 + len(text)] = text
        noted[0] = 1  # last: now it is whole


def noted_names(noted: mmap) -> list[str]:
    """Return the modules that a command noted."""
    return noted[1:].rstrip(b"\0").decode().split()


def _finalize(others: Set[str]) -> None:
    """Tear down all modules but the others, as an interpreter does, and finalize what lives on nevertheless."""
    threading.excepthook = lambda _: None  # daemon threads no longer run in an interpreter that ends
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    for name in ("last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    removed = [sys.modules.pop(name) for name in list(sys.modules) if name not in others]
    # What libraries put there that is not a module, as cffi does, is only dropped.
    modules = [weakref.ref(each) for each in removed if isinstance(each, ModuleType)]
    del removed
    # Python finalizes cycles in any order, and drops what an open file holds if the descriptor is closed first.
    for text in _created(io.TextIOWrapper):
        if isinstance(text.buffer, _BUFFERED):
            _flush(text)
    for buffered in _created(_BUFFERED):
        _flush(buffered)
    gc.collect()
    for module in [module for reference in reversed(modules) if (module := reference())]:
        _clear(vars(module))
    gc.collect()
    # What a library or a thread still refers to.
    left = {id(each): each for each in _created(object) if hasattr(type(each), "__del__")}
    while left:
        inner = {id(referred) for each in left.values() for referred in _referred(each) if referred is not each}
        outer = left.keys() - inner or left.keys()  # all, if they refer to each other
        for each in [left.pop(key) for key in list(reversed(left)) if key in outer]:
            with suppress(BaseException):
                type(each).__del__(each)  # type: ignore[attr-defined]


def _flush(file: io.IOBase) -> None:
    with suppress(Exception):
        file.flush()


def _created(kind: type[_T] | tuple[type[_T], ...]) -> list[_T]:
    """List objects of a type that are not the fork server's: those are frozen."""
    return [each for each in gc.get_objects() if isinstance(each, kind)]


def _clear(names: dict[str, object]) -> None:
    """Set a module's names to None, private ones first, as an interpreter does when it ends."""
    for first in (True, False):
        for name in [name for name in names if (name[:1] == "_" and name[1:2] != "_") is first]:
            if name != "__builtins__":
                names[name] = None


def _referred(owner: object) -> list[object]:
    """List what an object refers to, also by a container."""
    direct = gc.get_referents(owner)
    return direct + [inner for one in direct if type(one) in (dict, list, tuple) for inner in gc.get_referents(one)]
