"""Feed the readers of foreign files with broken and hostile ones: nothing but InputError may come out."""

import copy
import io
import json
import signal
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint, open_for_merging
from merganser.checkpoints.tensors import to_bytes
from merganser.checkpoints.views import as_stored
from merganser.checkpoints.vocabularies import division_of, template_of, vocabulary_of
from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.evaluation.data_sets import open_split, read_headers
from merganser.inputs.deltas import extract
from merganser.models import get_family
from merganser.overlays.files import task_model
from tests.config import test_params
from tests.overlays import test_overlays

INPUTS, SAMPLE = 10_000, 60  # for each reader
LIMIT_S = 240.0  # for one input: what takes longer hangs
STATE = {
    "fc.bias": torch.arange(4.0),
    "fc.weight": torch.ones(4, 3),
    "steps": torch.tensor(3),
    "half": torch.ones(5).half(),
}
ADAPTER = {"base_model.model.fc.lora_A.weight": torch.ones(2, 3), "base_model.model.fc.lora_B.weight": torch.ones(4, 2)}
SETTINGS = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "rank_pattern": {"fc": 2}, "alpha_pattern": {"^f.*c$": 1.0}}
SIDES = {"a": (4, 2), "b": (2, 3)}
LOHA = {f"base_model.model.fc.hada_w{n}_{side}": torch.ones(size) for n in (1, 2) for side, size in SIDES.items()}
LOHA_SETTINGS = {"peft_type": "LOHA", "r": 2, "alpha": 4, "rank_pattern": {"fc": 2}, "target_modules": ["fc"]}
MODEL = "model.safetensors"
YAML_PIECES = (
    *(
        "*a",
        "&a ",
        "<<: *a",
        "!!int x",
        "!!float .",
        "!!bool x",
        "!!binary ä",
        "!!timestamp x",
        "2001-99-99",
        "!!set {a}",
    ),
    *(
        "!!omap [a]",
        "!!python/name:os.system",
        "1e999",
        "0x",
        "0b2",
        "0o8",
        "1_000",
        ".nan",
        "-.inf",
        "~",
        "=",
        "1:60:60",
    ),
    *(
        "? ",
        "- ",
        ": ",
        ", ",
        "{",
        "}",
        "[",
        "]",
        "\t",
        "|",
        ">",
        "%YAML 9.9\n",
        "---\n",
        "...\n",
        "'",
        '"',
        '"\\ud800"',
        "#",
    ),
    *(
        "? [a]\n: b",
        "? {a: b}\n: c",
        "9" * 5000,
        "\ufeff",
        "\x85",
        "\u2028",
        "seed",
        "tasks",
        "methods",
        "../x",
        "\n  ",
    ),
)
texts = st.text(max_size=8) | st.sampled_from(
    ["", "F32", "a/F32", "__metadata__", "../x", "/etc/passwd", "\ud800", "\x1b[2J"]
)
numbers = st.integers() | st.sampled_from([-1, 2**31, 2**63, 2**64, 10**400]) | st.floats()
plain = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=6
)


@dataclass(frozen=True)
class Reader:
    """What is fed, as names and contents of files, and how they are read."""

    files: Callable[[], st.SearchStrategy[dict[str, bytes]]]
    read: Callable[[Path], None]


@st.composite
def changed(draw: st.DrawFn, content: Any) -> Any:
    """Put strange values, or values from other places, into some places of a JSON-like structure; take some out."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(content))
        if not places:
            return draw(values)
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["replace", "take out", "copy", "rename"]))
        if how == "take out":
            del holder[key]
        elif how == "rename" and isinstance(holder, dict):
            holder[draw(texts)] = holder.pop(key)
        elif how == "copy":
            other, its = draw(st.sampled_from(places))
            holder[key] = copy.deepcopy(other[its])
        else:
            holder[key] = draw(values)
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from _places(value)


@st.composite
def spoilt(draw: st.DrawFn, whole: bytes) -> bytes:
    """Change, insert, take out and cut off bytes, more often near the beginning."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(len(content), 80)) | st.integers(0, len(content)))
        length = draw(st.integers(0, 8) | st.integers(0, len(content)))
        how = draw(st.sampled_from(["change", "insert", "take out", "cut", "double"]))
        if how == "cut":
            del content[place:]
        elif how == "take out":
            del content[place : place + length]
        elif how == "double":
            content[place:place] = content[place : place + length]
        else:
            piece = draw(st.binary(min_size=1, max_size=8))
            content[place : place + (len(piece) if how == "change" else 0)] = piece
    return bytes(content)


def rewritten(whole: bytes, header: Callable[[Any], st.SearchStrategy[Any]]) -> st.SearchStrategy[bytes]:
    """Give a safetensors file another header, of the right length."""
    end = 8 + struct.unpack("<Q", whole[:8])[0]

    def joined(content: Any) -> bytes:
        text = json.dumps(content).encode()
        return struct.pack("<Q", len(text)) + text + whole[end:]

    return header(json.loads(whole[8:end])).map(joined)


@cache
def written(**tensors: torch.Tensor) -> bytes:
    """Return a safetensors file of these tensors."""
    with tempfile.TemporaryDirectory() as folder:
        save_tensors(Path(folder) / MODEL, tensors)
        return (Path(folder) / MODEL).read_bytes()


def safetensors(whole: bytes) -> st.SearchStrategy[bytes]:
    """Break a safetensors file: anywhere, in what its header says, or in its values only."""
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    others = st.binary(min_size=len(whole) - end, max_size=len(whole) - end).map(lambda body: whole[:end] + body)
    return spoilt(whole) | rewritten(whole, changed) | others | st.binary(max_size=64)


def as_json(content: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Write as JSON what is drawn."""
    return content.map(lambda value: json.dumps(value).encode())


def _checkpoint() -> st.SearchStrategy[dict[str, bytes]]:
    return st.fixed_dictionaries({MODEL: safetensors(written(**STATE))})


def _shards() -> st.SearchStrategy[dict[str, bytes]]:
    whole = {"1.safetensors": written(a=torch.ones(2)), "2.safetensors": written(b=torch.ones(3))}
    index = {"metadata": {"total_size": 20}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    indices = as_json(changed(index)) | spoilt(json.dumps(index).encode())
    kept = st.fixed_dictionaries({}, optional={name: st.just(content) for name, content in whole.items()})
    return st.builds(lambda shards, index: shards | {f"{MODEL}.index.json": index}, kept | st.just(whole), indices)


def _transformers() -> st.SearchStrategy[dict[str, bytes]]:
    config = {"model_type": "gpt2", "tie_word_embeddings": True, "text_config": {"model_type": "x"}}
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "c"}]}
    words = {
        "tokenizer_config.json": {"chat_template": "{{ x }}"},
        "vocab.json": {"a": 0},
        "added_tokens.json": {"b": 1},
    }
    broken = {
        name: as_json(changed(content)) | spoilt(json.dumps(content).encode())
        for name, content in ({"config.json": config, "tokenizer.json": tokenizer} | words).items()
    }
    state = {"transformer.h.0.attn.c_attn.weight": torch.ones(2, 6), "lm_head.weight": torch.ones(3, 2)}
    whole = written(**state, **{"transformer.wte.weight": torch.ones(3, 2)})
    one = st.fixed_dictionaries({MODEL: st.just(whole), "config.json": broken["config.json"]})
    return one | st.fixed_dictionaries({MODEL: st.just(whole)}, optional=broken)


def _torch() -> st.SearchStrategy[dict[str, bytes]]:
    plain, strange = {"state_dict": STATE}, {"complex": torch.ones(2, dtype=torch.complex64), 7: torch.ones(1)}
    wholes = st.sampled_from([_saved(plain), _saved(strange)])
    return st.fixed_dictionaries({"pytorch_model.bin": wholes.flatmap(spoilt)})


@cache
def _rows() -> dict[str, bytes]:
    """Return the files of a saved data set, with columns of many kinds."""
    columns = {"text": Value("string"), "label": ClassLabel(names=["a", "b"]), "more": List({"it": Value("int64")})}
    picture = {"bytes": Value("binary"), "path": Value("string")}
    rows = {
        "text": ["one", "two"],
        "label": [0, 1],
        "more": [[{"it": 1}], []],
        "picture": [{"bytes": b"x", "path": None}] * 2,
    }
    with tempfile.TemporaryDirectory() as name:
        data = Dataset.from_dict(rows, features=Features(columns | {"picture": picture}))
        DatasetDict({"test": data}).save_to_disk(name)
        return {
            path.relative_to(name).as_posix(): path.read_bytes() for path in Path(name).rglob("*") if path.is_file()
        }


def _data_set() -> st.SearchStrategy[dict[str, bytes]]:
    whole = _rows()
    broken = {
        name: spoilt(content) if name.endswith(".arrow") else as_json(changed(json.loads(content))) | spoilt(content)
        for name, content in whole.items()
    }
    return st.sampled_from(sorted(whole)).flatmap(
        lambda name: st.fixed_dictionaries({other: st.just(whole[other]) for other in whole} | {name: broken[name]})
    )


def _configuration() -> st.SearchStrategy[dict[str, bytes]]:
    config = {
        **{"model_type": "bert", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1},
        **{"intermediate_size": 4, "max_position_embeddings": 8, "num_labels": 2, "id2label": {"0": "a", "1": "b"}},
    }
    weights = written(**{"bert.embeddings.word_embeddings.weight": torch.ones(8, 4)})
    places = st.sampled_from(sorted(set(config) - {"model_type", "id2label"}))
    huge = st.tuples(places, numbers | st.sampled_from([10**7, 10**10, 999])).map(lambda one: config | {one[0]: one[1]})
    return st.fixed_dictionaries({MODEL: st.just(weights), "config.json": as_json(changed(config) | huge)})


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _adapter(
    settings: Mapping[str, Any] = SETTINGS, tensors: Mapping[str, torch.Tensor] = ADAPTER
) -> st.SearchStrategy[dict[str, bytes]]:
    text, whole = json.dumps(settings).encode(), written(**tensors)
    one = st.fixed_dictionaries(
        {"adapter_config.json": as_json(changed(settings)) | spoilt(text), "adapter_model.safetensors": st.just(whole)}
    )
    other = st.fixed_dictionaries(
        {"adapter_config.json": st.just(text), "adapter_model.safetensors": safetensors(whole)}
    )
    return one | other


def _overlay() -> st.SearchStrategy[dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        test_overlays.write(folder, mixtures={"c": {"a": 0.25, "b": 0.75}})
        shared = {name: torch.zeros(shape) for name, shape in test_overlays.SHAPES.items()}
        save_tensors(folder / MODEL, shared)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    overlays = files["overlays.safetensors"]
    broken = {"overlays.safetensors": safetensors(overlays) | rewritten(overlays, _reindexed)}
    shared = {"unified.safetensors": st.just(files["unified.safetensors"]) | safetensors(files["unified.safetensors"])}
    return st.fixed_dictionaries({MODEL: st.just(files[MODEL]), **broken}, optional=shared)


def _reindexed(header: Any) -> st.SearchStrategy[Any]:
    """Change the index inside of an overlay file's header."""
    index = json.loads(header["__metadata__"]["merganser"])
    return changed(index).map(lambda made: header | {"__metadata__": {"merganser": json.dumps(made)}})


def _params() -> st.SearchStrategy[dict[str, bytes]]:
    whole = _dumped(test_params.GOOD)
    pieces = st.lists(st.tuples(st.integers(0, len(whole)), st.sampled_from(YAML_PIECES)), min_size=1, max_size=4)
    inserted = pieces.map(lambda found: _inserted(whole.decode(), found).encode())
    return st.fixed_dictionaries({"params.yaml": spoilt(whole) | inserted | changed(test_params.GOOD).map(_dumped)})


def _dumped(content: Any) -> bytes:
    try:
        text = io.StringIO()
        YAML(typ="safe").dump(content, text)
        return text.getvalue().encode(errors="surrogatepass")
    except Exception:  # YAML cannot say it: JSON can, and is YAML too
        return json.dumps(content).encode()


def _inserted(text: str, pieces: list[tuple[int, str]]) -> str:
    for place, piece in pieces:
        text = text[:place] + piece + text[place:]
    return text


def _read_all(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name in checkpoint.names:
        to_bytes(checkpoint.read(name))


def _read_transformers(folder: Path) -> None:
    checkpoint = open_for_merging(folder)
    for name in checkpoint.names:
        as_stored(checkpoint, name, checkpoint.read(name))
    check_model(folder)
    vocabulary_of(folder)
    division_of(folder)
    template_of(folder)


def _read_adapter(folder: Path) -> None:
    save_tensors(folder / "base", STATE)
    extract(open_checkpoint(folder / "base"), open_model(folder), ParameterRules(), "task", folder / "deltas")


def _read_overlay(folder: Path) -> None:
    for task in ("a", "b", "c"):
        for _ in task_model(folder, task):
            pass


def _read_data_set(folder: Path) -> None:
    read_headers(folder)
    open_split(folder, "test").data.table.to_pylist()


def _read_configuration(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    get_family("encoder").check(folder, checkpoint)


READERS = {
    "checkpoint": Reader(_checkpoint, _read_all),
    "shards": Reader(_shards, _read_all),
    "transformers": Reader(_transformers, _read_transformers),
    "torch": Reader(_torch, _read_all),
    "adapter": Reader(_adapter, _read_adapter),
    "adapter by PEFT": Reader(partial(_adapter, LOHA_SETTINGS, LOHA), _read_adapter),
    "overlay": Reader(_overlay, _read_overlay),
    "data set": Reader(_data_set, _read_data_set),
    "configuration": Reader(_configuration, _read_configuration),
    "params": Reader(_params, lambda folder: load_params(folder / "params.yaml") and None),
}


def fuzz(reader: Reader, count: int) -> Counter[str]:
    """Feed a reader so many inputs; return how many it took and refused. Raises what else comes out of it."""
    tried: Counter[str] = Counter()

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(reader.files())
    def feed(files: dict[str, bytes]) -> None:
        with tempfile.TemporaryDirectory() as folder, _in_time():
            for name, content in files.items():
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_bytes(content)
            tried[_outcome(reader, Path(folder))] += 1

    feed()
    return tried


def _outcome(reader: Reader, folder: Path) -> str:
    try:
        reader.read(folder)
    except InputError as error:
        if not str(error).encode().strip():
            raise ValueError("a refusal without a word") from error
        return "refused"
    return "taken"


@contextmanager
def _in_time() -> Iterator[None]:
    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still reading after {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def drill(folder: Path, sample: bool) -> None:
    """Feed every reader, and print how many inputs it took and refused."""
    count = SAMPLE if sample else INPUTS
    for name, reader in READERS.items():
        tried = fuzz(reader, count)
        print(f"{name}: {tried.total()} inputs, {tried['refused']} refused, {tried['taken']} taken", flush=True)
        assert tried.total() >= count
        assert tried["refused"] > count / 4
