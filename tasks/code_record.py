"""The record of the code that makes a comparison's results, where it is not code of the comparison's own repository."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from merganser.errors import InputError, some
from merganser.limits import parse_json, read_small

RECORD = Path(".merganser/code.json")
FORMAT = 1


@dataclass(frozen=True)
class Code:
    """A version of Merganser, and the sha256 of what `digests` says of each stage and each module found by its name."""

    version: str
    digests: Mapping[str, str]


def installed_code(found: Mapping[str, str]) -> Code:
    """Return the code that runs here; `found`: its `digests`."""
    return Code(version("merganser"), {name: hashlib.sha256(text.encode()).hexdigest() for name, text in found.items()})


def record_text(code: Code) -> str:
    """Return the text of the record."""
    content = {"format": FORMAT, "version": code.version, "code": dict(sorted(code.digests.items()))}
    return json.dumps(content, indent=1) + "\n"


def read_record(root: Path) -> Code:
    """Read a comparison's record; raise InputError for one that no version up to this wrote."""
    path = root / RECORD
    try:
        content = parse_json(read_small(path))
        if content["format"] != FORMAT:
            raise InputError(
                f"{path}: of format {content['format']}; a newer Merganser reads it: pip install -U merganser"
            )
        return Code(str(content["version"]), {str(name): str(digest) for name, digest in content["code"].items()})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: not a record of code ({reason}); `git checkout {RECORD}` brings it back") from error


def other_code(recorded: Code, installed: Code) -> list[str]:
    """Name the stages and modules whose code differs, or that only one of both has."""
    names = sorted(recorded.digests.keys() | installed.digests.keys())
    differing = [name for name in names if recorded.digests.get(name) != installed.digests.get(name)]
    return [name.removesuffix(".txt") for name in differing]


def refuse_other_code(root: Path, found: Mapping[str, str]) -> None:
    """Refuse to run in a comparison whose record is of other code; a clone has none, and runs its own."""
    if not (root / RECORD).is_file():
        return
    recorded, installed = read_record(root), installed_code(found)
    if differing := other_code(recorded, installed):
        raise InputError(
            f"the results here are by Merganser {recorded.version}, and the installed {installed.version} has other "
            f"code of {some(differing)}; `merganser update` says what that changes, "
            f"`pip install merganser=={recorded.version}` goes on with the other"
        )
