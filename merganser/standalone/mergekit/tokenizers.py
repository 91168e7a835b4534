"""mergekit's settings of the tokenizer: accepted if they mean the base's, which every merge has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.merging.tokenizers import CONFIG, TEMPLATE, tokenizer_of
from merganser.standalone.mergekit.configuration import Reference, reference_of

KEPT = "a merge has the base's tokenizer and its embeddings' rows"


def tokenizer_notes(rest: Mapping[str, Any], base: Reference, models: Sequence[Reference]) -> list[str]:
    """Check what is asked of the tokenizer; raise InputError where the merge would not have the base's own."""
    wanted: Any = rest.get("tokenizer_source")
    key = "tokenizer_source"
    if (settings := rest.get("tokenizer")) is not None:
        key = "tokenizer.source"
        if not isinstance(settings, dict):
            raise InputError(f"tokenizer: expected a map, got {settings!r}")
        for changes in ("tokens", "pad_to_multiple_of"):
            if settings.get(changes):
                raise InputError(f"tokenizer.{changes}: changes the embeddings' rows; {KEPT}")
        wanted = settings.get("source", "union")
    if wanted is not None and wanted != "base":
        _check_source(key, wanted, base, models)
    return _template_notes(rest.get("chat_template"))


def _check_source(key: str, wanted: Any, base: Reference, models: Sequence[Reference]) -> None:
    """Accept a source that is the base itself, or one of the same vocabulary."""
    other = None if wanted == "union" else reference_of(wanted, key).whole
    if other == base:
        return
    compared = [each.whole for each in models] if other is None else [other]
    own = _vocabulary(base)
    for each in compared:
        if each != base and (own is None or _vocabulary(each) != own):
            reason = (
                "has another vocabulary" if own and _vocabulary(each) else "is not on this disk, or has no tokenizer"
            )
            raise InputError(f"{key}: {wanted}: {each} {reason}; {KEPT}: write base, if these are what you want")


def _vocabulary(reference: Reference) -> list[str] | None:
    """Return the hashes of a model's vocabulary; None where it has none here."""
    folder = Path(reference.model)
    found = tokenizer_of(folder)
    if found is None:
        return None
    return [sha256_of(folder / name) for name in found.files if name not in (CONFIG, TEMPLATE)]


def _template_notes(template: Any) -> list[str]:
    if template is None:
        return []
    if template == "auto":
        return ["chat_template: auto: the merge has the base's own, where mergekit takes the most common one"]
    raise InputError("chat_template: a merge has the base's own; leave it out, and put another into the merged folder")
