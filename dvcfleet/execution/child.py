"""A forked process that becomes a stage's command: a program, or a Python module that uses the imported modules."""

import atexit
import ctypes
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Set
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def become(request: dict[str, Any], loaded_at_start: Set[str]) -> NoReturn:
    """Run the requested command in this process, a child of the fork server.

    A module sees only those imported modules that a new interpreter would import too; `loaded_at_start` names the
    modules that every interpreter has.
    """
    # A session of its own tells its processes from those of other commands, and keeps the terminal's signals away.
    os.setsid()
    if sys.platform == "linux":
        # A command must not outlive its fork server: it would change files during the next run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["server"]:
        os._exit(1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (request["output"], 1), (request["output"], 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(request["output"])
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    module = request["module"]
    if module is None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
            signal.signal(number, signal.SIG_DFL)
        os.execvp(request["argv"][0], request["argv"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [module, *request["arguments"]]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    _forget_modules(Path.cwd(), loaded_at_start)
    leave(_exit_code_of(module))


def _forget_modules(folder: Path, loaded_at_start: Set[str]) -> None:
    """Drop the engine's modules, and those whose name a module in the folder also has."""
    sys.path_importer_cache.pop(str(folder), None)
    dropped = {"dvcfleet", *(_module_names(folder) - loaded_at_start)}
    for name in [name for name in sys.modules if name.partition(".")[0] in dropped]:
        del sys.modules[name]


def _module_names(folder: Path) -> set[str]:
    """Return the modules and packages in a folder."""
    names = set()
    for entry in os.scandir(folder):
        stem, dot, suffix = entry.name.partition(".")
        if dot + suffix in all_suffixes() or os.path.exists(f"{entry.path}/__init__.py"):
            names.add(stem)
    return names


def _exit_code_of(module: str) -> int:
    """Run a module as `python -m` does, and return its exit code."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return exit_code(end)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def exit_code(end: SystemExit) -> int:
    """Return the exit code of a SystemExit, after printing its message if there is one."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """Exit as an interpreter does, but without tearing down its modules, which takes longer than most stages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
