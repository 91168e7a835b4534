"""Find files that no stage wrote: those hidden by DVC's ignore rules, strangers in output folders, and bytecode.

Python runs a .pyc instead of its .py if the size and time in it are those of the .py, or if it says that nobody is to
look. No hash in dvc.lock covers it, since .dvcignore leaves it out, so it is compared with its source.
"""

import importlib.util
import marshal
import os
import struct
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import CodeType

from dvcfleet.disk import overlap
from dvcfleet.dvc_adapter.objects import hidden_files, is_near_output, rules_at
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import some
from dvcfleet.lineage.contents import Contents, is_checked
from dvcfleet.lineage.steps import Finding, FindingKind, Lineage


def check_hidden(repo: Repo, lineage: Lineage, contents: Contents) -> Iterator[Finding]:
    """Find files in stages' folders that DVC does not see, because of an ignore rule newer than these stages."""
    concerned: dict[str, list[str]] = defaultdict(list)
    for name in lineage.steps:
        for item in filter(is_checked, (*lineage.stages[name].outs, *lineage.stages[name].deps)):
            if os.path.isdir(item.fs_path):
                concerned[item.fs_path].append(name)
    is_ignored, seen = _rules(repo, lineage), set[str]()
    for folder, stages in concerned.items():
        for path in sorted(hidden_files(folder, contents.within(folder))):
            if path not in seen and not is_ignored(path) and not _leads_to_own_folder(repo, path):
                seen.add(path)
                message = f"{some(stages)} did not have it, and a rule of .dvcignore hides it from DVC; remove it"
                yield Finding(FindingKind.UNKNOWN, os.path.relpath(path, repo.root_dir), message, tuple(stages))


def _leads_to_own_folder(repo: Repo, path: str) -> bool:
    """Tell whether a path that is no output is a link to a folder of the repository, which DVC never follows."""
    root, target = os.path.realpath(repo.root_dir), os.path.realpath(path)
    is_link = os.path.islink(path) and os.path.isdir(path) and target.startswith(f"{root}{os.sep}")
    return is_link and not is_near_output(repo, path) and not is_near_output(repo, target)


def check_strangers(repo: Repo, lineage: Lineage, files: Iterable[Path], known: Collection[str]) -> Iterator[Finding]:
    """Find files, or folders with nothing else, that are no outputs, in places for outputs alone.

    `known`: outputs, and files with other findings.
    """
    is_ignored, seen = _rules(repo, lineage), set[str]()
    for path in files:
        full = os.path.join(repo.root_dir, path)
        if is_near_output(repo, full) or is_ignored(full):
            continue
        name = str(_highest(repo, path))
        if name not in seen and not any(overlap(name, each) for each in known):
            seen.add(name)
            yield Finding(FindingKind.UNKNOWN, name, "no stage makes it; remove it, or move it elsewhere")


def _highest(repo: Repo, path: Path) -> Path:
    """Return the highest folder around a path without outputs of stages, else the path."""
    folders = path.parents[:-1]  # but for the root
    above = [folder for folder in folders if not is_near_output(repo, os.path.join(repo.root_dir, folder))]
    return above[-1] if above else path


def _rules(repo: Repo, lineage: Lineage) -> Callable[[str], bool]:
    """Return a function that tells whether the rules of a commit by which a stage ran ignore a file."""
    commits = dict.fromkeys(step.execution.commit if step.execution else None for step in lineage.steps.values())
    rules: list[Callable[[str], bool]] = []

    def is_ignored(path: str) -> bool:
        if not rules:
            rules.extend(rules_at(repo, commit) for commit in commits)
        return any(ignores(path) for ignores in rules)

    return is_ignored


_HEAD = 16  # bytes: the magic number, flags, and the time and size of the .py or its hash
_OPTIMIZED = ("", "1", "2")
_OF_CODE = (
    *("name", "qualname", "code", "exceptiontable", "flags", "linetable", "names", "varnames", "freevars", "cellvars"),
    *("firstlineno", "stacksize", "argcount", "kwonlyargcount", "posonlyargcount"),
)
_LEFT_OUT = frozenset({".git", ".venv", ".dvc", ".dvcfleet", "node_modules"})


def check_bytecode(root: Path, lineage: Lineage) -> Iterator[Finding]:
    """Find bytecode next to the stages' code that differs from its source, or has none."""
    read = {item.path for step in lineage.steps.values() for item in step.inputs if item.kind != "data"}
    folders = {path for path in read if (root / path).is_dir()}
    folders |= {os.path.dirname(path) for path in read if path.endswith(".py")}
    for path in sorted(_compiled(root, folders)):
        name = os.path.relpath(path, root)
        if path.parent.name != "__pycache__":
            if not path.with_suffix(".py").exists():
                yield Finding(FindingKind.CODE, name, "compiled code without its source, which is imported; remove it")
        elif (source := _source_of(path)) and not _says_the_same(source, path):
            message = f"Python runs it instead of {os.path.relpath(source, root)}, and its code differs; remove it"
            yield Finding(FindingKind.CODE, name, message)


def _compiled(root: Path, folders: Iterable[str]) -> set[Path]:
    """List the bytecode files in and below these folders; of the repository's root, only in it."""
    compiled_files: set[Path] = set()
    for folder in folders:
        if not folder:
            compiled_files.update(root.glob("*.pyc"), root.glob("__pycache__/*.pyc"))
        for place, names, files in os.walk(root / folder) if folder else ():
            names[:] = [name for name in names if name not in _LEFT_OUT]
            compiled_files.update(Path(place, name) for name in files if name.endswith(".pyc"))
    return compiled_files


def _source_of(path: Path) -> Path | None:
    """Return the .py of a bytecode file of this Python version; None for another version, or without one."""
    source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    names = {os.path.basename(importlib.util.cache_from_source(source, optimization=each)) for each in _OPTIMIZED}
    return source if path.name in names and source.is_file() else None


def _says_the_same(source: Path, path: Path) -> bool:
    """Tell whether Python would compile the source again, or the bytecode equals the compiled source."""
    content, compiled, info = source.read_bytes(), path.read_bytes(), source.stat()
    if len(compiled) < _HEAD or compiled[:4] != importlib.util.MAGIC_NUMBER:
        return True
    flags, time, size = struct.unpack("<LLL", compiled[4:_HEAD])
    is_used = (time, size) == (int(info.st_mtime) & 0xFFFFFFFF, info.st_size & 0xFFFFFFFF)
    if flags & 0b01:  # by a hash, which is looked at if the second bit is set
        is_used = not flags & 0b10 or compiled[8:_HEAD] == importlib.util.source_hash(content)
    if not is_used:
        return True
    level = 2 if path.name.endswith(".opt-2.pyc") else 1 if path.name.endswith(".opt-1.pyc") else 0
    return _code_of(content, str(source), level) == _digest(_loaded(compiled[_HEAD:]))


def _loaded(compiled: bytes) -> CodeType | None:
    with suppress(ValueError, EOFError, TypeError):
        content = marshal.loads(compiled)
        return content if isinstance(content, CodeType) else None
    return None


@lru_cache(maxsize=4096)
def _code_of(content: bytes, name: str, level: int) -> bytes | None:
    """Return a digest of a source's compiled code; None if it does not compile."""
    with warnings.catch_warnings(action="ignore"), suppress(SyntaxError, ValueError):
        return _digest(compile(content, name, "exec", dont_inherit=True, optimize=level))
    return None


def _digest(code: CodeType | None) -> bytes | None:
    """Return a digest of code, apart from the folder it was compiled in."""
    return None if code is None else sha256(repr(_parts(code)).encode()).digest()


def _parts(value: object) -> tuple[object, ...]:
    """Return everything that determines code, nested code included, or a constant in it."""
    if isinstance(value, CodeType):
        return (*(getattr(value, f"co_{name}") for name in _OF_CODE), *map(_parts, value.co_consts))
    if isinstance(value, frozenset):  # in no order
        return "frozenset", sorted((type(each).__name__, repr(each)) for each in value)
    if isinstance(value, tuple):
        return "tuple", *map(_parts, value)
    return type(value).__name__, repr(value)
