"""mergekit's settings of the tokenizer: the merge's tokenizer, and the model of each token's rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merganser.checkpoints.vocabulary.plan import BASE, UNION, TokenizerChoice
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.merging.tokenizers import CONFIG, TEMPLATE, tokenizer_of
from merganser.standalone.mergekit.configuration import Reference, reference_of

ABOUT_TOKENS = "{token}: its rows are those of {name} for all models, as with mergekit's force: true"
PADDED = (
    "tokenizer.pad_to_multiple_of: tables have the rows of the choice, padded as that is; leave it out, and pad the "
    "merge by transformers: model.resize_token_embeddings(pad_to_multiple_of={})"
)
WHAT_TO_DO = {
    "zero": "a row is a model's; leave the token out, and its row is the mean of those of the models that have it",
    "model_token": "a token's rows are a model's rows of the same token; add the token to that model first, or name a "
    "model that has it",
}


def import_tokenizer(
    rest: Mapping[str, Any], base: Reference, models: Mapping[str, Reference]
) -> tuple[TokenizerChoice, list[str]]:
    """Convert the tokenizer settings to our choice of one, with notes for the user.

    Without such settings the vocabularies must be equal, which is checked for models on this disk. Raises
    InputError for what cannot be expressed.
    """
    names = {reference.whole: name for name, reference in models.items()} | {base: BASE}
    wanted, key = rest.get("tokenizer_source"), "tokenizer_source"
    rows: dict[str, str] = {}
    notes = _template_notes(rest.get("chat_template"))
    if (settings := rest.get("tokenizer")) is not None:
        if not isinstance(settings, dict):
            raise InputError(f"tokenizer: expected a map, got {settings!r}")
        if settings.get("pad_to_multiple_of"):
            raise InputError(PADDED.format(settings["pad_to_multiple_of"]))
        wanted, key = settings.get("source", UNION), "tokenizer.source"
        if not isinstance(tokens := settings.get("tokens") or {}, dict):
            raise InputError(f"tokenizer.tokens: expected a map, got {tokens!r}")
        for token, about in tokens.items():
            place = f"tokenizer.tokens.{token}"
            rows[str(token)] = _named(_model_of(about, str(token), place), place, names)
            if not (isinstance(about, dict) and about.get("force")):
                notes.append(ABOUT_TOKENS.format(token=place, name=rows[str(token)]))
    if wanted is None:
        return TokenizerChoice(), notes
    choice = str(wanted) if wanted in (BASE, UNION) else _named(wanted, key, names)
    if rows:
        return TokenizerChoice(choice, rows), notes
    own = _vocabulary(base)
    if own is not None and all(_vocabulary(each.whole) == own for each in models.values()):
        return TokenizerChoice(), notes
    if own is None and choice == BASE and Path(base.model).is_dir():
        return TokenizerChoice(), [*notes, f"{key}: base: left out; {base} has no tokenizer"]
    return TokenizerChoice(choice), notes


def _model_of(about: Any, token: str, place: str) -> Any:
    """Return the model that mergekit takes a token's rows from."""
    source = about["source"] if isinstance(about, dict) and "source" in about else about
    if not isinstance(source, dict) or "kind" not in source:
        return source
    if source["kind"] == "model_token" and source.get("token") == token:
        return source.get("model")
    said = WHAT_TO_DO.get(str(source["kind"]), "mergekit has zero and model_token; name a model")
    raise InputError(f"{place}: {source['kind']}: {said}")


def _named(source: Any, place: str, names: Mapping[Reference, str]) -> str:
    """Return the name of the model for a token, or for the tokenizer."""
    reference = reference_of(source, place).whole
    if reference not in names:
        raise InputError(f"{place}: {reference} is none of the models")
    return names[reference]


def _vocabulary(reference: Reference) -> list[str] | None:
    """Return the hashes of a model's vocabulary files; None if there are none here."""
    folder = Path(reference.model)
    tokenizer = tokenizer_of(folder)
    if tokenizer is None:
        return None
    return [sha256_of(folder / name) for name in tokenizer.files if name not in (CONFIG, TEMPLATE)]


def _template_notes(template: Any) -> list[str]:
    if template is None:
        return []
    if template == "auto":
        return ["chat_template: auto: the merge has the base's own, where mergekit takes the most common one"]
    raise InputError(
        "chat_template: a merge takes a model's; leave it out, and name the model in merge.yaml (chat_template: NAME)"
    )
