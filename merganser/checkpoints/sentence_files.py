"""The files of sentence-transformers next to a transformers model: pooling and truncation of texts.

Versions from 6 on write other keys than earlier ones; `DEFAULTS` has the values of new keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.companions import FOLDERS, MODULES
from merganser.errors import InputError, refusing
from merganser.limits import check_link, parse_json, read_small

SENTENCES, ENCODER = "sentence_bert_config.json", "config_sentence_transformers.json"
TYPES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
OLD_SENTENCES = tuple(f"sentence_{kind}_config.json" for kind in TYPES)  # read if there is no `SENTENCES`
POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
RENAMED = {"word_embedding_dimension": "embedding_dimension"}
DEFAULTS: Mapping[str, Any] = {
    "do_lower_case": False,
    "include_prompt": True,
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}
KNOWN = ("max_seq_length", "do_lower_case", "unpad_inputs")  # keys of `SENTENCES` of any value; the last one is speed
ORDER = ("Transformer", "Pooling", "Normalize")  # of the modules; the last one may be missing
SUPPORTED = "SentenceTransformer"
EMBEDDING = "sentence_embedding"  # sentence-transformers' name of what is scaled to length 1


@dataclass(frozen=True)
class SentenceEncoder:
    """How a text's embedding is made from its tokens' states."""

    pooling: tuple[str, ...]  # modes, whose vectors stand one behind the other
    normalized: bool  # to length 1
    longest: int | None  # the most tokens of a text; None: what the tokenizer and the configuration say
    lower_case: bool  # whether texts are put into lower case first


def read_sentence_encoder(folder: Path) -> SentenceEncoder:
    """Read how a folder's model embeds texts; raise InputError for an unsupported setting."""
    places = _places(folder)
    normalized = len(places) == 3
    _check_encoder(folder, normalized)
    if normalized:
        _check_scaling(folder / places[2] / CONFIG)
    said = _sentences(folder)
    longest, lower_case = said.get("max_seq_length"), bool(said.get("do_lower_case"))
    return SentenceEncoder(_modes(folder, places[1]), normalized, longest, lower_case)


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Read the modules of a sentence encoder in their order: the type and the folder of each."""
    check_link(folder / MODULES, folder)
    with refusing(f"{folder / MODULES}: not a list of modules", "fetch it again"):
        return [(str(each["type"]), str(each.get("path", ""))) for each in parse_json(read_small(folder / MODULES))]


def _places(folder: Path) -> list[str]:
    """Return the folders of the modules, two or three."""
    where = folder / MODULES
    if not where.is_file():
        what = "which says how a sentence encoder pools its tokens"
        raise InputError(f"{folder}: no {MODULES}, {what}; save the model with sentence-transformers")
    modules = read_modules(folder)
    for number, (kind, place) in enumerate(modules):
        _check_module(where, number, kind, place)
    if len(modules) < 2:
        raise InputError(f"{where}: no Pooling, so there is no embedding of a text; save it with sentence-transformers")
    return [place for _, place in modules]


def _check_module(where: Path, number: int, kind: str, place: str) -> None:
    package, _, name = kind.rpartition(".")
    if [name] != list(ORDER[number : number + 1]) or not f"{package}.".startswith("sentence_transformers."):
        what = f"module {number} is {kind}" + (f" in {place}/" if place else "")
        raise InputError(f"{where}: {what}; supported are {', '.join(ORDER[:2])} and, after them, {ORDER[2]}")
    if not FOLDERS.fullmatch(place) if number else place:
        expected = f"a folder such as {number}_{name}" if number else "the folder itself"
        raise InputError(
            f"{where}: the path of {name} is {place!r}, not {expected}; save it with sentence-transformers"
        )


def _modes(folder: Path, place: str) -> tuple[str, ...]:
    where = folder / place / CONFIG
    if (content := read_config(where)) is None:
        raise InputError(f"{where}: missing, and says how the model pools its tokens; fetch the model again")
    said = pooling_of(content)["pooling_mode"]
    modes = said if isinstance(said, list) else [said]
    if strange := [mode for mode in modes if mode not in POOLING.values()]:
        raise InputError(f"{where}: {strange[0]!r} is no pooling mode; known: {', '.join(POOLING.values())}")
    if not modes:
        raise InputError(f"{where}: no pooling mode; known: {', '.join(POOLING.values())}")
    if content.get("include_prompt") is False and (encoding_of(folder) or {}).get("prompts"):
        reason = f"include_prompt: false leaves the prompts of {ENCODER} out of the pooling, which is not supported"
        raise InputError(f"{where}: {reason}; remove the prompts if the data's texts have none")
    return tuple(modes)


def _check_encoder(folder: Path, normalized: bool) -> None:
    """Refuse a model that is no sentence encoder, adds a prompt to texts, or compares them in another way."""
    where, content, said = folder / ENCODER, read_config(folder / ENCODER) or {}, encoding_of(folder) or {}
    if (kind := content.get("model_type") or SUPPORTED) != SUPPORTED:
        raise InputError(f"{where}: the model is a {kind}; supported is {SUPPORTED}")
    default, prompts = content.get("default_prompt_name"), content.get("prompts")
    if default is not None and not (isinstance(prompts, dict) and prompts.get(str(default)) == ""):
        reason = f"default_prompt_name {default!r} puts a prompt before each text"
        raise InputError(f"{where}: {reason}; set it to null, and write the prompt into the data's texts")
    compared = said.get("similarity_fn_name", "cosine")
    if compared != "cosine" and not (compared == "dot" and normalized):
        reason = f"similarity_fn_name is {compared!r}, and embeddings are compared by their cosine"
        raise InputError(f"{where}: {reason}; set it to cosine if that is right for this model")


def _check_scaling(where: Path) -> None:
    said = read_config(where) or {}
    for key in ("module_input_name", "module_output_name"):
        if said.get(key) not in (None, EMBEDDING):
            raise InputError(f"{where}: {key} is {said[key]!r}; supported is {EMBEDDING}")


def _sentences(folder: Path) -> dict[str, Any]:
    """Read truncation and lower-casing of texts; raise InputError for an unsupported setting."""
    read = ((folder / name, read_config(folder / name)) for name in (SENTENCES, *OLD_SENTENCES))
    where, content = next(((path, said) for path, said in read if said), (folder / SENTENCES, {}))
    for key, value in content.items():
        if key not in KNOWN and not _is_default(key, value):
            raise InputError(f"{where}: {key} is {value!r}, which is not supported; save the model without it")
    longest = content.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise InputError(f"{where}: max_seq_length is {longest!r}, not a number of tokens; correct it")
    return content


def _is_default(key: str, value: Any) -> bool:
    """Tell whether a setting has no effect; settings of inputs other than texts do not matter."""
    if key == "modality_config" and isinstance(value, dict):
        return value.get("text") == DEFAULTS[key]["text"]
    return value in (None, {}) or (key in DEFAULTS and value == DEFAULTS[key])


def pooling_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pooling in the keys of sentence-transformers 6; earlier versions have a flag per mode.

    >>> pooling_of({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "word_embedding_dimension": 8})
    {'pooling_mode': 'mean', 'embedding_dimension': 8}
    """
    modes = [mode for flag, mode in POOLING.items() if content.get(flag)] or ["mean"]
    renamed = {RENAMED.get(key, key): value for key, value in content.items() if key not in POOLING}
    return {"pooling_mode": modes[0] if len(modes) == 1 else modes, **renamed}


def module_types(folder: Path) -> dict[str, Any] | None:
    """Read the classes of a sentence encoder's modules in order; None without such a file."""
    if not (folder / MODULES).is_file():
        return None
    return {"modules": ", ".join(kind.rpartition(".")[2] for kind, _ in read_modules(folder))}


def encoding_of(folder: Path) -> dict[str, Any] | None:
    """Read a sentence encoder's prompts and similarity; defaults are left out."""
    content = read_config(folder / ENCODER)
    if content is None:
        return None
    said = content.get("prompts")
    prompts = {name: text for name, text in said.items() if text} if isinstance(said, dict) else said or {}
    compared = content.get("similarity_fn_name") or "cosine"
    return {
        "prompts": prompts,
        "default_prompt_name": content.get("default_prompt_name"),
        "similarity_fn_name": compared,
    }


def pools_of(folder: Path) -> list[str]:
    """List the configurations of a sentence encoder's modules, such as its pooling."""
    inner = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and FOLDERS.fullmatch(path.name)]
    return [f"{name}/{CONFIG}" for name in inner]


def settings_of(name: str, folder: Path) -> dict[str, Any] | None:
    """Read settings of generation, or of pooling and truncation, without the version that wrote the file."""
    content = read_config(folder / name)
    if content is None:
        return None
    if name == SENTENCES:
        content = _with_length(content, folder)
    elif any(key in POOLING for key in content):
        content = pooling_of(content)
    defaults = DEFAULTS if name == SENTENCES or "pooling_mode" in content else {}
    return {
        key: value
        for key, value in content.items()
        if key != "transformers_version" and not (key in defaults and value == defaults[key])
    }


def _with_length(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Add the longest text, in tokens, which sentence-transformers 6 leaves to the tokenizer's configuration."""
    most = (read_config(folder / "tokenizer_config.json") or {}).get("model_max_length")
    return {"max_seq_length": most, **content}


def embedding_of(folder: Path) -> dict[str, Any] | None:
    """Read all settings that turn tokens' states into embeddings; None for other models."""
    if (modules := module_types(folder)) is None:
        return None
    files = {name: settings_of(name, folder) for name in (*pools_of(folder), SENTENCES, *OLD_SENTENCES)}
    return {**modules, ENCODER: encoding_of(folder), **{name: said for name, said in files.items() if said}}


def longest_of(folder: Path) -> Any:
    """Read a sentence encoder's longest text in tokens; None for other models."""
    if not (folder / MODULES).is_file():
        return None
    return _with_length(read_config(folder / SENTENCES) or {}, folder)["max_seq_length"]
