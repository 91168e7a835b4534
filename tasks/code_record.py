"""The record of the code that makes a comparison's results, for a comparison without code in its repository."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from merganser.errors import InputError, some
from merganser.limits import parse_json, read_small

RECORD = Path(".merganser/code.json")
FORMAT = 1


@dataclass(frozen=True)
class Digest:
    """The code of a stage or of a module found by its name: its class and its digest.

    `kept`: the version of Merganser whose results a comparison keeps, though the installed code makes others.
    """

    of: str
    digest: str
    kept: str | None = None


@dataclass(frozen=True)
class Code:
    """A version of Merganser: its digests by the names of files below `data/code`, and the digest of its dvc.yaml."""

    version: str
    digests: Mapping[str, Digest]
    pipeline: str = ""


def pipeline_digest(text: str) -> str:
    """Return the digest of a dvc.yaml."""
    return hashlib.sha256(text.encode()).hexdigest()


def record_text(code: Code) -> str:
    """Return the text of the record."""
    said = {
        name: {key: value for key, value in asdict(digest).items() if value is not None}
        for name, digest in sorted(code.digests.items())
    }
    content = {"format": FORMAT, "version": code.version, "pipeline": code.pipeline, "code": said}
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
        digests = {str(name): Digest(**digest) for name, digest in content["code"].items()}
        return Code(str(content["version"]), digests, str(content["pipeline"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: not a record of code ({reason}); `git checkout {RECORD}` brings it back") from error


def kept_digests(recorded: Code | None) -> dict[str, Digest]:
    """Return the digests that a comparison keeps of earlier versions; `recorded`: its record, if it has one."""
    return {name: digest for name, digest in recorded.digests.items() if digest.kept} if recorded else {}


def other_code(recorded: Code, installed: Code) -> list[str]:
    """Name the stages and modules whose code differs, or that only one side has."""
    names = sorted(recorded.digests.keys() | installed.digests.keys())
    return [name for name in names if recorded.digests.get(name) != installed.digests.get(name)]


def other_results(recorded: Code, installed: Code) -> list[str]:
    """Name those of them that were not shown to write the same bytes."""
    both = recorded.digests.keys() & installed.digests.keys()
    return sorted(name for name in both if recorded.digests[name].of != installed.digests[name].of)


def refuse_other_code(recorded: Code, installed: Code) -> None:
    """Raise InputError if a record is of other code; results kept of earlier versions cannot run again."""
    kept = kept_digests(recorded)
    differing = [name.removesuffix(".txt") for name in other_code(recorded, installed) if name not in kept]
    if differing and recorded.version == installed.version:  # as of a method of the comparison's own
        raise InputError(f"these results were made by other code of {some(differing)}; `merganser run` records it")
    if differing:
        raise InputError(
            f"these results were made by Merganser {recorded.version}, and the installed {installed.version} has other "
            f"code of {some(differing)}; run `merganser update` to see the effect, or "
            f"`pip install merganser=={recorded.version}` to keep the old code"
        )
