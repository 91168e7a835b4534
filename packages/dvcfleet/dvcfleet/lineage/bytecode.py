"""Python's caches of compiled code beside the code that stages run: what they say is to be what the code says.

Python runs a .pyc in place of its .py if the size and time in it are those of the .py, or if it says that nobody is to
look. No hash in dvc.lock covers it: caches are not code, and are left out by .dvcignore.
"""

import importlib.util
import marshal
import os
import struct
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import CodeType

from dvcfleet.lineage.findings import Finding, FindingKind
from dvcfleet.lineage.steps import Lineage

_HEAD = 16  # bytes: the magic number, flags, and the time and size of the .py or its hash
_OPTIMIZED = ("", "1", "2")
_LEFT_OUT = frozenset({".git", ".venv", ".dvc", ".dvcfleet", "node_modules"})


def check_bytecode(root: Path, lineage: Lineage) -> Iterator[Finding]:
    """Find caches beside the code that stages read that say other code, and such files without their source."""
    read = {item.path for step in lineage.steps.values() for item in step.inputs if item.kind != "data"}
    folders = {path for path in read if (root / path).is_dir()}
    folders |= {os.path.dirname(path) for path in read if path.endswith(".py")}
    for path in sorted(_compiled(root, folders)):
        name = os.path.relpath(path, root)
        if path.parent.name != "__pycache__":
            if not path.with_suffix(".py").exists():
                yield Finding(FindingKind.CODE, name, "compiled code without its source, which is imported; remove it")
        elif (source := _source_of(path)) and not _says_the_same(source, path):
            message = f"Python runs it in place of {os.path.relpath(source, root)}, and it says other code; remove it"
            yield Finding(FindingKind.CODE, name, message)


def _compiled(root: Path, folders: Iterable[str]) -> set[Path]:
    """List the compiled files of these folders and those below; of the repository's root, not below."""
    found: set[Path] = set()
    for folder in folders:
        if not folder:
            found.update(root.glob("*.pyc"), root.glob("__pycache__/*.pyc"))
        for place, names, files in os.walk(root / folder) if folder else ():
            names[:] = [name for name in names if name not in _LEFT_OUT]
            found.update(Path(place, name) for name in files if name.endswith(".pyc"))
    return found


def _source_of(path: Path) -> Path | None:
    """Return the .py that a cache of this version of Python is of; None if it is another's, or if there is no .py."""
    source = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    names = {os.path.basename(importlib.util.cache_from_source(source, optimization=each)) for each in _OPTIMIZED}
    return source if path.name in names and source.is_file() else None


def _says_the_same(source: Path, path: Path) -> bool:
    """Tell whether Python would compile the source again, or a cache says what it compiles to."""
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
        found = marshal.loads(compiled)
        return found if isinstance(found, CodeType) else None
    return None


@lru_cache(maxsize=4096)
def _code_of(content: bytes, name: str, level: int) -> bytes | None:
    """Return a digest of what a source compiles to; None if it does not compile."""
    with warnings.catch_warnings(action="ignore"), suppress(SyntaxError, ValueError):
        return _digest(compile(content, name, "exec", dont_inherit=True, optimize=level))
    return None


def _digest(code: CodeType | None) -> bytes | None:
    """Return a digest of code, but for the folder that it was compiled in."""
    if code is None:
        return None
    digest = sha256()
    for part in _parts(code):
        digest.update(repr(part).encode())
    return digest.digest()


def _parts(code: CodeType) -> Iterator[object]:
    """Yield all that code does: its instructions, names and constants, and those of the code in it."""
    yield code.co_name, code.co_qualname, code.co_code, code.co_exceptiontable, code.co_flags, code.co_linetable
    yield code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_firstlineno, code.co_stacksize
    yield code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount
    yield from (part for each in code.co_consts for part in _constant(each))


def _constant(value: object) -> Iterator[object]:
    if isinstance(value, CodeType):
        yield from _parts(value)
    elif isinstance(value, frozenset):  # in no order
        yield "frozenset", sorted((type(each).__name__, repr(each)) for each in value)
    elif isinstance(value, tuple):
        yield "tuple", len(value)
        yield from (part for each in value for part in _constant(each))
    else:
        yield type(value).__name__, repr(value)
