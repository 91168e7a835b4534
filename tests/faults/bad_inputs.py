"""Kinds of bad input, each with how it is made, what is run, and what must be said.

`python -m tests.faults.bad_inputs` tries them all through the command line, prints what each is told, and the count.
"""

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.flows.commands import cli
from merganser.tasks import evaluate, fetch, stage
from tests.overlays import test_overlays
from tests.small_models import write_models
from tests.tiny import make_models, make_repository

Spoil = Callable[[Path], object]
DARK = Path("hub/dark/open_clip_model.safetensors")
WEIGHT = "visual.proj"
OWN = (".dvcfleet", ".dvc", ".git")  # what merganser and DVC keep for themselves
STATUS, MERGE = ("status",), ("merge", "ties", "--base", "base", "--out", "merged", "--device", "cpu")
TOWERS = (
    *("merge", "dts_unseen", "--base", "hub/base", "--out", "merged", "--device", "cpu"),
    *("--model", "dark=hub/dark", "--classes", "dark=names.txt"),
    *("--model", "light=hub/light", "--classes", "light=names.txt"),
)
MERGEKIT = "merge_method: linear\nmodels: [{model: task0, parameters: {weight: 1}}]\ntokenizer: {tokens: 5}\n"
MODELS = [word for t in range(3) for word in ("--model", f"task{t}=task{t}")]


@dataclass(frozen=True)
class Kind:
    """A kind of bad input: what is spoilt in a folder, the command that meets it there, and a part of its message."""

    ground: str  # the folder it starts from
    spoil: Spoil
    command: tuple[str, ...]
    said: str


def written(content: Any) -> str:
    """Write YAML."""
    return str(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True))


def put(place: str, value: Any) -> Spoil:
    """Set a value of params.yaml."""

    def spoil(folder: Path) -> None:
        *path, last = place.split(".")
        content = yaml.load((folder / "params.yaml").read_text(), yaml.CSafeLoader)
        section = content
        for key in path:
            section = section[key]
        section[last] = value
        (folder / "params.yaml").write_text(written(content))

    return spoil


def renamed(section: str, name: Any) -> Spoil:
    """Give the first of a section of params.yaml another name."""

    def spoil(folder: Path) -> None:
        content = yaml.load((folder / "params.yaml").read_text(), yaml.CSafeLoader)
        first = next(iter(content[section]))
        content[section] = {name: content[section].pop(first), **content[section]}
        (folder / "params.yaml").write_text(written(content))

    return spoil


def text(name: str, content: str | bytes) -> Spoil:
    """Write a file."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def replaced(name: str, old: str, new: str) -> Spoil:
    """Replace a text in a file that has it."""

    def spoil(folder: Path) -> None:
        before = (folder / name).read_text()
        assert old in before
        (folder / name).write_text(before.replace(old, new))

    return spoil


def pointing(content: str) -> Spoil:
    """Let a task's source be a pointer file."""
    return lambda folder: (text("there.yaml", content)(folder), put("tasks.dark.source", "there.yaml")(folder))


def header(change: Callable[[dict[str, Any]], object], path: Path = DARK) -> Spoil:
    """Change the header of a safetensors file, its length told right."""

    def spoil(folder: Path) -> None:
        whole = (folder / path).read_bytes()
        end = 8 + struct.unpack("<Q", whole[:8])[0]
        content = json.loads(whole[8:end])
        made = change(content)
        encoded = made if isinstance(made, bytes) else json.dumps(content).encode()
        (folder / path).write_bytes(struct.pack("<Q", len(encoded)) + encoded + whole[end:])

    return spoil


def first_shape(content: dict[str, Any], shape: list[Any]) -> None:
    next(entry for entry in content.values() if entry["shape"])["shape"] = shape


def first_entry(content: dict[str, Any]) -> dict[str, Any]:
    return next(iter(content.values()))


def retitled(content: dict[str, Any], name: str) -> None:
    """Give a tensor another name."""
    content[name] = content.pop(next(iter(content)))


def moved(content: dict[str, Any], by: int) -> None:
    """Move a tensor in the middle over its neighbour, or away from it."""
    entries = sorted(content.values(), key=lambda entry: entry["data_offsets"])
    entries[1]["data_offsets"] = [offset + by for offset in entries[1]["data_offsets"]]


def name_again(content: dict[str, Any]) -> bytes:
    whole = json.dumps(content)
    name, entry = next(iter(content.items()))
    return f"{whole[:-1]}, {json.dumps(name)}: {json.dumps(entry)}}}".encode()


def state(change: Callable[[dict[str, Tensor]], object], path: Path = DARK) -> Spoil:
    """Change the tensors of a checkpoint."""

    def spoil(folder: Path) -> None:
        found = open_checkpoint(folder / path)
        tensors = {name: found.read(name) for name in found.names}
        change(tensors)
        save_tensors(folder / path, tensors)

    return spoil


def bytes_of(change: Callable[[bytes], bytes], path: Path = DARK) -> Spoil:
    """Change a file's bytes."""
    return lambda folder: (folder / path).write_bytes(change((folder / path).read_bytes()))


def instead(**files: Any) -> Spoil:
    """Put other files in the place of a task's weights: bytes as they are, dictionaries as JSON, else torch's own."""

    def spoil(folder: Path) -> None:
        (folder / DARK).unlink()
        for name, content in files.items():
            path = folder / DARK.with_name(name.replace("__", "."))
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif name.endswith("json"):
                path.write_text(json.dumps(content))
            elif name.endswith("safetensors"):
                save_tensors(path, content)
            else:
                torch.save(content, path)

    return spoil


def piped(path: Path) -> None:
    """Put a named pipe in a file's place, which nobody writes into."""
    path.unlink()
    os.mkfifo(path)


class RunsCode:
    """What a hostile pickle holds."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch pickle-ran",)


@dataclass(frozen=True)
class Makes:
    """An object that unpickling rebuilds by a function call."""

    function: Callable[..., object]
    argument: int

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return self.function, (self.argument,)


def doubled(times: int) -> tuple[Any, ...]:
    """Return a tuple of one tuple twice, of one twice, and so on: small, and to hash it takes 2 ** times steps."""
    made: tuple[Any, ...] = ()
    for _ in range(times):
        made = (made, made)
    return made


class MakesBrokenDict:
    """An object that unpickling rebuilds as a state dict whose method is a number."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (), {"items": 1}


def archived(compression: int) -> bytes:
    """Write torch weights whose records are compressed in this way."""
    written, again = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.ones(2)}, written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(again, "w", compression) as out:
        for record in source.infolist():
            out.writestr(record.filename, source.read(record))
    return again.getvalue()


def shards(index: Any) -> Spoil:
    """Put an index and one shard in the place of a task's weights."""
    return instead(**{"model__safetensors__index__json": index, "1__safetensors": {"a": torch.ones(2)}})


LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
SIDES = {
    "base_model.model.visual.transformer.resblocks.0.mlp.c_fc.lora_A.weight": torch.zeros(2, 32),
    "base_model.model.visual.transformer.resblocks.0.mlp.c_fc.lora_B.weight": torch.zeros(128, 2),
}


def adapter(settings: Any, tensors: dict[str, Tensor] = SIDES) -> Spoil:
    """Put an adapter in the place of a task's weights."""
    return instead(adapter_config__json=settings, adapter_model__safetensors=tensors)


def linked(name: str, target: str, folder_of: str) -> Spoil:
    """Put a link to a file of this machine into a folder that came from elsewhere."""

    def spoil(folder: Path) -> None:
        (folder / "private.json").write_text('{"key": "of this machine"}')
        (folder / folder_of / name).unlink(missing_ok=True)
        (folder / folder_of / name).symlink_to(Path(target) if target.startswith("/") else folder / target)

    return spoil


def renumbered(folder: Path) -> None:
    """Let a model's tokenizer number its tokens the other way round."""
    for name, words in (("base", ["a", "b"]), ("task0", ["b", "a"])):
        content = {"model": {"vocab": {word: number for number, word in enumerate(words)}}}
        (folder / name / "tokenizer.json").write_text(json.dumps(content))


def in_json(path: str, change: Callable[[Any], object]) -> Spoil:
    """Change what a JSON file holds."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / path).read_text())
        change(content)
        (folder / path).write_text(json.dumps(content))

    return spoil


def only_named(folder: Path) -> None:
    """Keep of each picture no more than a path to a file of this machine."""
    import pyarrow

    (path,) = (folder / "datasets/dark/test").glob("*.arrow")
    with path.open("rb") as file:
        table = pyarrow.ipc.open_stream(file).read_all()
    named = [{"bytes": None, "path": "/etc/secret.png"}] * table.num_rows
    place = table.column_names.index("image")
    table = table.set_column(place, table.field(place), pyarrow.array(named, type=table.field(place).type))
    path.unlink()
    with path.open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def all_masked(folder: Path) -> None:
    """Set every bit of a task's masks."""
    file = SafetensorsFile(folder / "merged/overlays.safetensors")
    tensors = {name: file.read(name) for name in file.names}
    tensors["a/U8"].fill_(255)
    save_tensors(file.path, tensors, file.metadata["merganser"])


def reindexed(change: Callable[[dict[str, Any]], object]) -> Spoil:
    return lambda folder: test_overlays.reindexed(folder / "merged/overlays.safetensors", change)


YAML_TEXTS: dict[str, tuple[str | bytes, str]] = {
    "an empty params.yaml": ("", "expected a mapping"),
    "a params.yaml that is a list": ("- a\n", "expected a mapping"),
    "bytes that are not text": (b"seed: \xff\xfe", "not UTF-8 text"),
    "an unclosed bracket": ("seed: [1\nbase: x\n", "line "),
    "a key that stands twice": ("seed: 0\nseed: 1\n", "line 2: found duplicate key"),
    "a tag that makes a Python object": (
        "tasks: !!python/object/apply:os.system [ls]\n",
        "line 1: could not determine",
    ),
    "an alias of nothing": ("seed: *nowhere\n", "line 1: found undefined alias"),
    "aliases that stand for a million values": (
        "a: &a [0,0,0,0,0,0,0,0,0,0]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)),
        "more than 100000 values",
    ),
    "an alias of what it stands in": ("seed: &a [*a]\n", "more than 100000 values with its aliases"),
    "lists nested a thousand deep": ("seed: " + "[" * 5000, "params.yaml"),
    "a file of two megabytes": ("seed: 0 #" + "x" * 2**21, "larger than 1024 KiB"),
    "a date that there is not": ("seed: 2001-99-99\n", "not YAML: month must be in 1..12"),
    "a number of five thousand digits": ("seed: " + "9" * 5000, "not YAML: Exceeds the limit"),
    "a zero byte": ("seed: \x00", "not YAML"),
    "a list as a key": ("? [a]\n: b", "the key ['a'] is a list"),
}
PARAMS: dict[str, tuple[Spoil, str]] = {
    "a missing key": (replaced("params.yaml", "source: hub/base, ", ""), "base.source: missing"),
    "an unknown section": (put("mmethods", {}), 'mmethods: unknown key; did you mean "methods"?'),
    "an unknown method": (
        put("methods.ties.method", "tise"),
        'methods.ties: unknown method "tise"; did you mean "ties"?',
    ),
    "a method by a path": (put("methods.ties.method", "../../os"), 'methods.ties: unknown method "../../os"'),
    "a misspelt parameter": (put("methods.ties.densty", 0.5), 'has no such parameter; did you mean "density"?'),
    "a value out of range": (put("methods.ties.density", 1.4), "methods.ties.density: "),
    "a value that is not a number": (put("methods.ties.density", float("nan")), "got nan"),
    "a value of the wrong type": (put("evaluation.batch_size", "eight"), "evaluation.batch_size: "),
    "no tasks": (put("tasks", {}), "tasks: there are none"),
    "no methods": (put("methods", None), "methods: there are none"),
    "a name with ..": (renamed("tasks", "../dark"), "tasks.../dark: not a name"),
    "a name that is a path": (renamed("tasks", "/etc/x"), "not a name"),
    "a name with a second command": (renamed("tasks", "a; touch injected"), "not a name"),
    "a name with a substitution": (renamed("methods", "$(touch injected)"), "not a name"),
    "a name with backticks": (renamed("methods", "`touch injected`"), "not a name"),
    "a name with a quote": (renamed("methods", "a' touch injected '"), "not a name"),
    "a name that is an option": (renamed("tasks", "-rf"), "not a name"),
    "a name with a line end": (renamed("tasks", "a\ntouch injected"), "not a name"),
    "a name that commands a terminal": (renamed("tasks", "a\x1b[2J"), "tasks.a\\x1b[2J: not a name"),
    "a name of another alphabet": (renamed("tasks", "é"), "not a name"),
    "an empty name": (renamed("methods", ""), "not a name"),
    "a name too long for a file": (renamed("tasks", "a" * 101), "use at most 100 letters"),
    "a name that YAML takes for a number": (renamed("tasks", 7), 'a name must be text, got 7; write "7"'),
    "names that make two stages one": (
        lambda folder: (
            renamed("tasks", "b-light")(folder),
            put("methods.ties-b", {"method": "ties", "reads": "deltas"})(folder),
        ),
        "2 pairs of names join to 'ties-b-light'",
    ),
    "something read from elsewhere": (put("methods.ties.reads", "../../etc"), "methods.ties.reads: ties reads deltas"),
    "differences that are not declared": (put("methods.dts_d.reads", "differences/x"), "no 'x' under differences"),
    "a joint that is not declared": (put("methods.drm_h.reads", "joints/x"), "no 'x' under joints"),
    "a coefficient of no task": (put("methods.ties.coefficients", {"drak": 1.0}), "no such task: drak"),
    "a source that is nowhere": (put("tasks.dark.source", "hub/drak"), "hub/drak: no such file or folder"),
    "a source with a zero byte": (put("tasks.dark.source", "hub\0dark"), "no such file or folder"),
    "a prompt without a place": (put("tasks.dark.data.templates", ["an image."]), "must have {} once"),
    "a prompt that reaches into objects": (put("tasks.dark.data.templates", ["{0.__class__} {}"]), "must have {} once"),
    "an unknown kind of task": (put("tasks.dark.kind", "image_clasification"), 'did you mean "image_classification"?'),
    "a metric of another kind of task": (
        put("tasks.dark.data.metric", "spearman"),
        "tasks.dark.data.metric: 'spearman' is not a metric of this kind of task",
    ),
    "a key of another kind of task": (put("tasks.dark.data.masked", [1]), "tasks.dark.data.masked: "),
    "an unknown family of models": (put("base.family", "open_clp"), 'did you mean "open_clip"?'),
    "vectors that are not kept": (put("decompose.rank_fraction", 0.1), "decompose.rank_fraction"),
    "a batch of no images": (put("evaluation.batch_size", 0), "evaluation.batch_size: "),
    "a study of no subsets": (put("studies.tasks.subsets", 0), "studies.tasks.subsets: "),
    "a pointer to a branch": (pointing("hub: a/b\nrevision: main\n"), "must be a full 40-digit commit"),
    "a pointer out of the hub": (pointing(f"hub: ../../x/y\nrevision: {'a' * 40}\n"), "hub: "),
    "a pointer to what lies above the hub": (pointing(f"hub: ../x\nrevision: {'a' * 40}\n"), "hub: "),
    "a branch by a path upwards": (pointing("hub: a/b\nfollow: ../x\n"), "follow: "),
    "a pointer that is a list": (pointing("- a\n"), "expected a pointer with"),
    "a pointer with a key too many": (pointing(f"hub: a/b\nrevision: {'a' * 40}\ntoken: x\n"), "token: "),
    "a pointer nested too deeply": (pointing("[" * 5000), "there.yaml"),
}
DEEP = b'{"a": ' * 100_000
HEADERS: dict[str, tuple[Spoil, str]] = {
    "a source with code of its own": (
        text("hub/dark/config.json", '{"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}}'),
        "tasks.dark.source: hub/dark/config.json: 'auto_map' asks for code",
    ),
    "an empty checkpoint": (bytes_of(lambda whole: b""), "not a safetensors file"),
    "a checkpoint that is cut off": (bytes_of(lambda whole: whole[:-7]), "truncated or corrupt"),
    "a checkpoint cut off in its header": (bytes_of(lambda whole: whole[:50]), "cut off within its header"),
    "a checkpoint with bytes behind it": (bytes_of(lambda whole: whole + b"more"), "truncated or corrupt"),
    "a header of many gigabytes": (
        bytes_of(lambda whole: struct.pack("<Q", 2**40) + whole[8:]),
        "not a safetensors file",
    ),
    "a header that is not JSON": (header(lambda content: b"{not json}"), "header is corrupt"),
    "a header that is a list": (header(lambda content: b"[1, 2]"), "header is corrupt"),
    "a header nested too deeply": (header(lambda content: DEEP), "nested too deeply"),
    "a tensor that stands twice": (header(name_again), "a key is repeated"),
    "tensors that overlap": (header(lambda content: moved(content, -4)), "tensors neither overlap nor leave gaps"),
    "tensors with a gap": (header(lambda content: moved(content, 4)), "tensors neither overlap nor leave gaps"),
    "a negative size": (header(lambda content: first_shape(content, [-1, 5])), "a shape or offset that is not a count"),
    "a size that is a truth value": (header(lambda content: first_shape(content, [True])), "that is not a count"),
    "a size that is a fraction": (header(lambda content: first_shape(content, [1.5])), "that is not a count"),
    "sizes beyond any memory": (header(lambda content: first_shape(content, [2**62, 2**62, 0])), "that no tensor has"),
    "a tensor of a hundred dimensions": (header(lambda content: first_shape(content, [1] * 100)), "that no tensor has"),
    "sizes that do not fit the bytes": (header(lambda content: first_shape(content, [3])), "bytes for shape [3]"),
    "an unknown dtype": (header(lambda content: first_entry(content).update(dtype="F7")), "unsupported dtype F7"),
    "a tensor without an offset": (header(lambda content: first_entry(content).pop("data_offsets")), "corrupt"),
    "a tensor's name with a line end": (header(lambda content: retitled(content, "a\nb")), "not a name for a tensor"),
    "a tensor's name too long for a file": (
        header(lambda content: retitled(content, "a" * 300)),
        "not a name for a tensor",
    ),
    "metadata that are not texts": (
        header(lambda content: content.update(__metadata__={"a": [1]})),
        "not a map of texts",
    ),
    "a parameter of another shape": (
        state(lambda tensors: tensors.update({WEIGHT: torch.zeros(3, 2)})),
        f"dark: {WEIGHT} has shape [3, 2]",
    ),
    "a parameter that is missing": (
        state(lambda tensors: tensors.pop(WEIGHT)),
        f"dark: the parameter {WEIGHT} is missing",
    ),
    "a parameter that the base lacks": (
        state(lambda tensors: tensors.update({"visual.x": torch.ones(1)})),
        "visual.x is not in the base",
    ),
    "another architecture": (
        state(lambda tensors: (tensors.clear(), tensors.update(x=torch.ones(1)))),
        "another architecture",
    ),
    "a folder without weights": (instead(), "no checkpoint in this folder"),
    "a shard by a path upwards": (shards({"weight_map": {"a": "../x"}}), "outside its folder"),
    "a shard by an absolute path": (shards({"weight_map": {"a": "/etc/passwd"}}), "outside its folder"),
    "a shard that is missing": (shards({"weight_map": {"a": "2.safetensors"}}), "the shard 2.safetensors is missing"),
    "a shard of a name that no file has": (
        shards({"weight_map": {"a": f"{'x' * 300}.safetensors"}}),
        "longer than a name may be",
    ),
    "a tensor that its shard lacks": (shards({"weight_map": {"b": "1.safetensors"}}), "b is not in its shard"),
    "an index that is none": (shards([1]), "not an index of shards"),
    "an index nested too deeply": (shards(DEEP), "not an index of shards"),
    "a pickle that runs code": (instead(pytorch_model__bin={"a": RunsCode()}), "cannot be loaded as plain weights"),
    "a bare pickle": (instead(pytorch_model__bin=pickle.dumps(RunsCode())), "cannot be loaded as plain weights"),
    "torch weights that are compressed": (
        instead(pytorch_model__bin=archived(zipfile.ZIP_DEFLATED)),
        "cannot be loaded as plain weights (its records are compressed",
    ),
    "a pickle of a kilobyte that fills memory": (
        instead(pytorch_model__bin={"a": torch.ones(2), "b": Makes(bytearray, 10**9)}),
        "cannot be loaded as plain weights (it makes a bytearray",
    ),
    "a bare pickle that fills memory": (
        instead(pytorch_model__bin=pickle.dumps(Makes(bytearray, 10**9), protocol=2)),
        "cannot be loaded as plain weights (it makes a bytearray",
    ),
    "a torch tensor without values": (
        instead(pytorch_model__bin={"a": Makes(torch.FloatTensor, 10**9)}),
        "cannot be loaded as plain weights (it makes a FloatTensor",
    ),
    "a pickle that is hashed for ever": (
        instead(pytorch_model__bin=b"\x80\x02}" + pickle.dumps(doubled(60), protocol=2)[2:-1] + b"K\x01s."),
        "cannot be loaded as plain weights (it has a tuple of more than",
    ),
    "a state dict that cannot be read": (
        instead(pytorch_model__bin=MakesBrokenDict()),
        "cannot be loaded as plain weights",
    ),
    "torch weights that repeat their values": (
        instead(pytorch_model__bin=dict.fromkeys(map(str, range(200)), torch.ones(2**20))),
        "views of a few values, many times as large",
    ),
    "torch weights under a header's name": (
        instead(pytorch_model__bin={"__metadata__": torch.ones(2)}),
        "is not a name for a tensor",
    ),
    "torch weights of too many dimensions": (
        instead(pytorch_model__bin={"a": torch.ones([1] * 20)}),
        "a has a shape that no tensor has",
    ),
    "torch weights cut off": (instead(pytorch_model__bin=b"PK\3\4" + b"\0" * 99), "cannot be loaded as plain weights"),
    "torch weights without names": (instead(pytorch_model__bin=[torch.ones(2)]), "holds no named tensors"),
    "torch weights under numbers": (
        instead(pytorch_model__bin={7: torch.ones(2)}),
        "7 is not a plain tensor under a name",
    ),
    "complex torch weights": (
        instead(pytorch_model__bin={"a": torch.ones(2, dtype=torch.complex128)}),
        "not a plain tensor",
    ),
    "sparse torch weights": (instead(pytorch_model__bin={"a": torch.ones(2).to_sparse()}), "not a plain tensor"),
    "one value that passes for a terabyte": (
        instead(pytorch_model__bin={"a": torch.ones(1).expand(2**38)}),
        "not a plain tensor",
    ),
    "an adapter without its settings": (instead(adapter_model__safetensors=SIDES), "an adapter, not a whole model"),
    "an adapter of another type": (adapter({"peft_type": "IA3"}), "none of its tensors is of a layer"),
    "an adapter that cannot be merged": (adapter({"peft_type": "PROMPT_TUNING"}), "cannot be merged"),
    "an adapter without its magnitudes": (adapter(LORA | {"use_dora": True}), "lora_magnitude_vector"),
    "an adapter's settings that are none": (adapter(b"[" * 100_000), "not the configuration of a PEFT adapter"),
    "an adapter's settings of two megabytes": (adapter(b'{"a": "' + b"x" * 2**21 + b'"}'), "larger than 1024 KiB"),
    "an adapter's pattern that never ends": (
        adapter(LORA | {"rank_pattern": {"(a+)+$": 2}}),
        "too intricate a pattern",
    ),
    "an adapter's pattern that is none": (adapter(LORA | {"rank_pattern": {"(a": 2}}), "not a pattern"),
    "an adapter of another rank": (adapter(LORA | {"r": 3}), "make no update of rank 3"),
    "half an adapter": (adapter(LORA, dict([next(iter(SIDES.items()))])), "has no lora_B"),
}
SOURCES: dict[str, tuple[Spoil, tuple[str, ...], str]] = {
    "pictures for a task of texts": (
        put("tasks.dark", {"source": "hub/dark", "kind": "text_classification", "data": {"source": "datasets/dark"}}),
        ("data", "dark"),
        "tasks.dark.kind: the family open_clip does not support the kind of task text_classification; it supports ",
    ),
    "a configuration that links to a file elsewhere": (
        linked("config.json", "private.json", "hub/dark"),
        ("task", "dark"),
        "config.json: a link to ",
    ),
    "weights that link elsewhere": (
        lambda folder: (shutil.move(folder / DARK, folder / "w"), linked(DARK.name, "w", "hub/dark")(folder)),
        ("task", "dark"),
        "outside its folder; replace it by the file itself",
    ),
    "a data set that links elsewhere": (
        linked("test/notes.json", "/etc/passwd", "datasets/dark"),
        ("data", "dark"),
        "notes.json: a link to /etc/passwd",
    ),
    "a data set with files elsewhere": (
        in_json(
            "datasets/dark/test/state.json", lambda found: found["_data_files"][0].update(filename="../../x.arrow")
        ),
        ("data", "dark"),
        "names the file '../../x.arrow' outside its folder",
    ),
    "a data set with a split elsewhere": (
        in_json("datasets/dark/dataset_dict.json", lambda found: found.update(splits=["../light"])),
        ("data", "dark"),
        "names the file '../light' outside its folder",
    ),
    "a data set whose list of splits is none": (
        text("datasets/dark/dataset_dict.json", "[" * 10**5),
        ("data", "dark"),
        "does not list the splits",
    ),
    "pictures that are only named": (only_named, ("data", "dark"), "only names the file"),
    "a data set whose file is a named pipe": (
        lambda folder: piped(folder / "datasets/dark/test/state.json"),
        ("data", "dark"),
        "datasets/dark/test/state.json: a named pipe, where a file is expected",
    ),
    "a data set that is cut off": (
        lambda folder: [os.truncate(path, 300) for path in (folder / "datasets/dark").rglob("*.arrow")],
        ("data", "dark"),
        "not a whole saved data set",
    ),
    "a folder that is not a data set": (
        lambda folder: (folder / "datasets/dark/dataset_dict.json").unlink(),
        ("data", "dark"),
        "no saved data set",
    ),
    "a task that is not declared": (
        lambda folder: None,
        ("task", "drak"),
        'no "drak" under tasks in params.yaml; did you mean "dark"?',
    ),
}
OVERLAYS: dict[str, tuple[Spoil, str]] = {
    "an overlay file without an index": (
        lambda folder: save_tensors(folder / "merged/overlays.safetensors", {"a/F32": torch.ones(2)}),
        "not an overlay file",
    ),
    "an overlay file that is cut off": (
        bytes_of(lambda whole: whole[:-1], Path("merged/overlays.safetensors")),
        "truncated or corrupt",
    ),
    "an index that does not add up": (
        reindexed(lambda index: index["parameters"].pop("scale")),
        "does not match its tensors",
    ),
    "an index nested too deeply": (
        lambda folder: header(
            lambda content: content.update(__metadata__={"merganser": "[" * 10**5}), Path("merged/overlays.safetensors")
        )(folder),
        "nested too deeply",
    ),
    "a mixture beyond all numbers": (
        reindexed(lambda index: index.update(mixtures={"a": {"b": 10**400}})),
        "not an overlay file",
    ),
    "a part of a kind unheard of": (
        reindexed(lambda index: index["forms"][0].__setitem__(0, "x")),
        "unknown kind of part x",
    ),
    "a mask that contradicts its values": (
        all_masked,
        "its mask keeps",
    ),
    "a shared delta of another shape": (
        lambda folder: save_tensors(folder / "merged/unified.safetensors", {"masked.weight": torch.ones(2)}),
        "is not stored as float32 of shape",
    ),
}
CONFIG = "hub/base/open_clip_config.json"
CONFIGS: dict[str, tuple[Spoil, str]] = {
    "a configuration that trusts foreign code": (
        in_json(
            CONFIG, lambda found: found["model_cfg"]["text_cfg"].update(tokenizer_kwargs={"trust_remote_code": True})
        ),
        "'trust_remote_code' could lead out of the checkpoint or run code",
    ),
    "a tokenizer that comes with code": (
        text("hub/base/tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["x.Y", null]}}'),
        "'auto_map' asks for code that came with the checkpoint",
    ),
    "an image tower from elsewhere": (
        in_json(CONFIG, lambda found: found["model_cfg"]["vision_cfg"].update(timm_model_name="hf-hub:a/b")),
        "'hf-hub:a/b' could lead out",
    ),
    "a text tower by a path": (
        in_json(CONFIG, lambda found: found["model_cfg"]["text_cfg"].update(hf_model_name="/home/x")),
        "'/home/x' could lead out",
    ),
    "a model's configuration that is none": (text(CONFIG, "[" * 10**5), "not a configuration"),
    "sizes that make no model": (
        in_json(CONFIG, lambda found: found["model_cfg"].update(embed_dim=-1)),
        "model_cfg.embed_dim is -1, and must be a whole number",
    ),
    "more layers than any model has": (
        in_json(CONFIG, lambda found: found["model_cfg"]["vision_cfg"].update(layers=10**9)),
        "model_cfg.vision_cfg.layers is 1000000000, and no model has more than",
    ),
    "weights that are a named pipe": (
        lambda folder: piped(folder / DARK),
        "hub/dark/open_clip_model.safetensors: a named pipe, where a file is expected",
    ),
    "no configuration": (lambda folder: (folder / CONFIG).unlink(), "open_clip_config.json"),
}
COMMANDS: dict[str, tuple[Spoil, tuple[str, ...], str]] = {
    "an unknown command": (lambda folder: None, ("rum",), "No such command"),
    "an unknown option": (lambda folder: None, ("run", "--no-such-option"), "No such option"),
    "an unknown runner": (lambda folder: None, ("run", "--runner", "kubernetes"), "kubernetes"),
    "no workers": (lambda folder: None, ("run", "--workers", "0"), "--workers"),
    "a repository that is nowhere": (lambda folder: None, ("status", "--repo", "nowhere"), "nowhere: no such folder"),
    "a folder that no database can be in": (
        lambda folder: (folder / "w?t").mkdir(),
        ("status", "--repo", "w?t"),
        "w?t: SQLite databases, such as Prefect's, allow no ? in a path; rename it",
    ),
    "a broken dvc.yaml": (text("dvc.yaml", "stages: ["), STATUS, "dvc.yaml"),
    "a dvc.yaml with a loop": (
        text("dvc.yaml", "stages: {a: {cmd: x, deps: [p], outs: [q]}, b: {cmd: x, deps: [q], outs: [p]}}"),
        STATUS,
        "both a dependency and an output",
    ),
    "a dvc.lock that is none": (text("dvc.lock", "<<<<<<< HEAD\nstages: {}\n=======\n"), STATUS, "dvc.lock"),
    "a method that there is not": (lambda folder: None, ("methods", "tise"), 'did you mean "ties"?'),
}
MERGES: dict[str, tuple[Spoil, tuple[str, ...], str]] = {
    "a weight that is not a number": (
        state(lambda tensors: tensors["proj"].fill_(torch.nan), Path("task1/model.safetensors")),
        (*MERGE, *MODELS),
        "task1: proj holds NaN or infinity",
    ),
    "an infinite weight": (
        state(lambda tensors: tensors["proj"].fill_(torch.inf), Path("base/model.safetensors")),
        (*MERGE, *MODELS),
        "base: proj holds NaN or infinity",
    ),
    "a model's name that is a path": (lambda folder: None, (*MERGE, "--model", "../x=task1"), "not a name"),
    "a model that is nowhere": (
        lambda folder: None,
        (*MERGE, *MODELS, "--model", "x=nowhere"),
        "nowhere: no such checkpoint",
    ),
    "a model that is given twice": (
        lambda folder: None,
        (*MERGE, *MODELS, "--model", "task0=task1"),
        "task0 is given twice",
    ),
    "a setting without a value": (lambda folder: None, (*MERGE, *MODELS, "--set", "density"), "expected NAME=VALUE"),
    "a setting that is not YAML": (lambda folder: None, (*MERGE, *MODELS, "--set", "density=[1"), "--set density"),
    "a setting nested too deeply": (
        lambda folder: None,
        (*MERGE, *MODELS, "--set", f"density={'[' * 5000}"),
        "--set density",
    ),
    "a result that exists already": (
        lambda folder: (folder / "merged").write_text("mine"),
        (*MERGE, *MODELS),
        "exists already",
    ),
    "a base that brings a file of this machine": (
        linked("config.json", "private.json", "base"),
        (*MERGE, *MODELS),
        "config.json: a link to ",
    ),
    "a model with code of its own": (
        text("task0/config.json", '{"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}}'),
        (*MERGE, *MODELS),
        "task0/config.json: 'auto_map' asks for code that came with the checkpoint",
    ),
    "a model whose tokens have other numbers": (
        renumbered,
        (*MERGE, *MODELS),
        "task0: its tokenizer gives 'b' the number 0, that of the base 1",
    ),
    "a tokenizer whose merges are no pairs": (
        text("task0/tokenizer.json", '{"model": {"vocab": {"a": 0}, "merges": [[1, 2]]}}'),
        (*MERGE, *MODELS),
        "task0: its tokenizer's files cannot be read (",
    ),
    "tokens of mergekit's that are no map": (
        text("c.yml", MERGEKIT),
        ("import-mergekit", "c.yml", "--out", "brought"),
        "tokenizer.tokens: expected a map, got 5",
    ),
    "a configuration that is none": (
        text("base/config.json", "model_type: gpt2"),
        (*MERGE, *MODELS),
        "base/config.json: not a configuration",
    ),
    "a size of files that is none": (
        lambda folder: None,
        (*MERGE, *MODELS, "--max-shard-size", "five"),
        "--max-shard-size: expected a size such as 5GB",
    ),
}

KINDS: dict[str, Kind] = {
    **{
        name: Kind("project", text("params.yaml", content), STATUS, said)
        for name, (content, said) in YAML_TEXTS.items()
    },
    **{name: Kind("project", spoil, STATUS, said) for name, (spoil, said) in (PARAMS | HEADERS).items()},
    **{
        name: Kind("project", spoil, ("merganser.tasks.fetch", *args), said)
        for name, (spoil, args, said) in SOURCES.items()
    },
    **{name: Kind("project", spoil, args, said) for name, (spoil, args, said) in COMMANDS.items()},
    **{name: Kind("models", spoil, args, said) for name, (spoil, args, said) in MERGES.items()},
    **{
        name: Kind("overlays", spoil, ("reconstruct", "merged", "--task", "a", "--out", "own.safetensors"), said)
        for name, (spoil, said) in OVERLAYS.items()
    },
    "a task that was not merged": Kind(
        "overlays",
        lambda folder: None,
        ("reconstruct", "merged", "--task", "d", "--out", "x"),
        "no parts for the task 'd'",
    ),
    **{
        name: Kind(
            "towers",
            spoil,
            TOWERS,
            said,
        )
        for name, (spoil, said) in CONFIGS.items()
    },
}


def make_grounds(folder: Path) -> dict[str, Path]:
    """Make the folders that bad input is put into: a project, checkpoints, a merge with overlays, dual encoders."""
    make_repository(folder / "project", linked=True)
    write_models(folder / "models")
    make_models(folder / "towers/hub")
    (folder / "towers/names.txt").write_text("night\nday\n")
    merged = folder / "overlays/merged"
    merged.mkdir(parents=True)
    test_overlays.write(merged)
    save_tensors(
        merged / "model.safetensors", {name: torch.zeros(shape) for name, shape in test_overlays.SHAPES.items()}
    )
    return {name: folder / name for name in ("project", "models", "overlays", "towers")}


def attempt(kind: Kind, ground: Path, folder: Path) -> str:
    """Spoil a copy of the ground, run the command in it and return what it said.

    Raises AssertionError unless it was refused as promised: exit code 2, the message and no traceback, nothing lost.
    """
    shutil.copytree(ground, folder, symlinks=True)
    kind.spoil(folder)
    before = content(folder)
    code, said = run_in(folder, kind.command)
    assert code == 2, f"exit code {code}: {said}"
    assert kind.said in said, said
    assert "Traceback" not in said
    assert len(said) < 3000, "a message that nobody reads"
    assert content(folder) == before, "something was lost or left behind"
    return said


def run_in(folder: Path, command: tuple[str, ...]) -> tuple[int, str]:
    """Run the command line, or a stage's main, in a folder; return the exit code and what it said."""
    said = io.StringIO()
    argv = sys.argv
    with chdir(folder), redirect_stdout(said), redirect_stderr(said):
        try:
            if command[0].startswith("merganser.tasks."):
                sys.argv = list(command)
                stage.run_main(
                    {"merganser.tasks.fetch": fetch.main, "merganser.tasks.evaluate": evaluate.main}[command[0]]
                )
            else:
                sys.argv = ["merganser", *command]
                cli.main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
        finally:
            sys.argv = argv
    return 0, said.getvalue()


def content(folder: Path) -> dict[str, str]:
    """Return the digests of all files and links, but for what merganser, DVC and git keep for themselves."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in OWN or "__pycache__" in name.parts or not (path.is_symlink() or path.is_file()):
            continue
        found[str(name)] = hashlib.sha256(
            os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        ).hexdigest()
    return found


def main() -> None:
    """Try every kind, print what is said to each, and how many there were."""
    with tempfile.TemporaryDirectory() as name:
        grounds = make_grounds(Path(name) / "grounds")
        for number, (title, kind) in enumerate(KINDS.items(), 1):
            said = attempt(kind, grounds[kind.ground], Path(name) / str(number))
            print(f"{title}: {' '.join(said.split())[:160]}", flush=True)
            shutil.rmtree(Path(name) / str(number))
    print(f"{len(KINDS)} kinds of bad input, each refused by name, nothing lost")


if __name__ == "__main__":
    main()
