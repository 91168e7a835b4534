"""Properties of checkpoints, each with a tiny merge that has it: what the project does with it is a row of the docs.

`python -m tests.checkpoints.properties` writes the rows into docs/checkpoint-cases.md, and `test_properties.py`
checks that they are up to date.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.checkpoints.writing import AS_THE_BASE, OutputFormat
from merganser.errors import InputError
from tests.merges import AS_IT_IS, merge_checkpoints

PAGE = Path(__file__).parents[2] / "docs/checkpoint-cases.md"
BEGIN, END = "<!-- properties: tests/checkpoints/properties.py writes this table -->\n", "\n<!-- end of properties -->"
State = dict[str, Tensor]
WHOLE = "model.safetensors"
PLAIN: State = {"a.weight": torch.ones(4, 3), "b.bias": torch.zeros(4)}
LLAMA = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 4}
TIED: State = {"model.embed_tokens.weight": torch.ones(4, 16), "model.norm.weight": torch.ones(16)}
HEAD = "lm_head.weight"
FLAGS = ParameterRules(flags=True)


@dataclass
class Case:
    """A base and a model in a folder, and how they are merged."""

    folder: Path
    method: str = "average"
    base: str | None = "base"
    model: str = "model"
    rules: ParameterRules = FLAGS
    output: OutputFormat = AS_THE_BASE
    choice: TokenizerChoice = AS_IT_IS

    @property
    def both(self) -> tuple[Path, Path]:
        """Return both folders."""
        return self.folder / "base", self.folder / "model"

    def merge(self) -> list[str]:
        """Merge the model onto the base, or both where there is no base; return what is said."""
        names = [self.model] if self.base else ["base", self.model]
        models = {name.partition(".")[0]: self.folder / name for name in names}
        base = self.folder / self.base if self.base else None
        how = {"rules": self.rules, "output": self.output, "device": "cpu", "choice": self.choice}
        return merge_checkpoints(self.method, {}, base, models, self.folder / "out", **how)

    def merged(self) -> State:
        """Read what the merge wrote."""
        opened = open_checkpoint(self.folder / "out")
        return {name: opened.read(name) for name in opened.names}


Build = Callable[[Case], None]
Check = Callable[[Case], bool]


@dataclass(frozen=True)
class Property:
    """A property, what has it, and for what is merged what that comes to, and whether it did."""

    name: str
    build: Build
    how: str = ""
    check: Check = lambda case: all(torch.equal(case.merged()[name], state) for name, state in plus(PLAIN).items())


def plus(state: Mapping[str, Tensor], by: float = 1.0) -> State:
    """Return the model that was fine-tuned from a base: each floating-point number is larger by one."""
    return {name: value + by if value.is_floating_point() else value.clone() for name, value in state.items()}


def saved(state: State, name: str = WHOLE, tuned: State | None = None, **config: Any) -> Build:
    """Save a base, and a model that is larger by one, as one file of safetensors."""

    def build(case: Case) -> None:
        for folder, own in zip(case.both, (state, plus(state) if tuned is None else tuned), strict=True):
            folder.mkdir(exist_ok=True)
            save_file({key: value.clone() for key, value in own.items()}, folder / name, {"format": "pt"})
            if config:
                (folder / "config.json").write_text(json.dumps(config))

    return build


def then(first: Build, *more: Build) -> Build:
    """Do one after another."""

    def build(case: Case) -> None:
        for each in (first, *more):
            each(case)

    return build


def by(**how: Any) -> Build:
    """Merge in another way."""

    def build(case: Case) -> None:
        for name, value in how.items():
            setattr(case, name, value)

    return build


def text(name: str, content: Any, *, base: bool = False, model: bool = True) -> Build:
    """Write a file beside the weights: of the model, the base, or both."""

    def build(case: Case) -> None:
        for folder, wanted in zip(case.both, (base, model), strict=True):
            if wanted:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))

    return build


def as_torch(name: str, wrap: Callable[[State], Any] = lambda state: state, **how: Any) -> Build:
    """Save both as torch weights."""

    def build(case: Case) -> None:
        for folder, own in zip(case.both, (PLAIN, plus(PLAIN)), strict=True):
            folder.mkdir()
            torch.save(wrap(own), folder / name, **how)

    return build


def shards(ending: str = "safetensors", named: bool = True, second: bool = False) -> Build:
    """Save both in shards; `named`: the index names all tensors; `second`: another index names files that are gone."""

    def build(case: Case) -> None:
        for folder, own in zip(case.both, (PLAIN, plus(PLAIN)), strict=True):
            folder.mkdir()
            stem = "model" if ending == "safetensors" else "pytorch_model"
            files = {name: f"{stem}-0000{number}-of-00002.{ending}" for number, name in enumerate(own, 1)}
            for name, file in files.items():
                rest = {} if named or name != "a.weight" else {"b.bias": own["b.bias"]}
                write = save_file if ending == "safetensors" else torch.save
                write({name: own[name], **rest}, folder / file)
            weights = files if named else {"a.weight": files["a.weight"]}
            (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": weights}))
            if second:
                gone = json.dumps({"weight_map": dict.fromkeys(own, "gone.safetensors")})
                (folder / "consolidated.safetensors.index.json").write_text(gone)

    return build


def instead(change: Callable[[Path], None]) -> Build:
    """Change the model's folder after it is written."""
    return lambda case: change(case.folder / "model")


def lora(config: Mapping[str, Any], names: tuple[str, ...] = ("a",), head: bool = False) -> Build:
    """Put an adapter of rank 1 in the model's place."""

    def build(case: Case) -> None:
        saved(PLAIN)(case)
        folder = case.folder / "model"
        (folder / WHOLE).unlink()
        tensors = {f"base_model.model.{name}.lora_A.weight": torch.ones(1, 3) for name in names}
        tensors |= {f"base_model.model.{name}.lora_B.weight": torch.ones(4, 1) for name in names}
        tensors |= {"base_model.model.score.weight": torch.ones(2, 3)} if head else {}
        save_file(tensors, folder / "adapter_model.safetensors")
        about = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, **config}
        (folder / "adapter_config.json").write_text(json.dumps(about))

    return build


def module(*where: str) -> Build:
    """Give the base, the model or both a module with weights of its own."""

    def build(case: Case) -> None:
        saved(PLAIN)(case)
        for number, name in enumerate(("base", "model")):
            if name in where:
                (case.folder / name / "2_Dense").mkdir()
                own = {"linear.weight": torch.full((2, 3), float(number))}
                save_file(own, case.folder / name / "2_Dense" / WHOLE)

    return build


def vocabulary(base: Mapping[str, int], model: Mapping[str, int]) -> Build:
    """Give both a tokenizer."""

    def build(case: Case) -> None:
        saved(PLAIN)(case)
        for folder, words in zip(case.both, (base, model), strict=True):
            (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": words}}))

    return build


def holds(**expected: float) -> Check:
    """Tell whether tensors of a merge hold one number each; a name's dots are written as two underscores."""
    wanted = {name.replace("__", "."): value for name, value in expected.items()}
    return lambda case: all(case.merged()[name].float().unique().tolist() == [x] for name, x in wanted.items())


def files(*names: str) -> Check:
    """Tell whether the weights of a merge are in these files."""
    return lambda case: sorted(path.name for path in (case.folder / "out").glob("*.safetensors*")) == sorted(names)


def flat(name: str, is_flat: bool = True) -> Check:
    """Tell whether all singular values of what iso_c adds to a parameter, or to each matrix of a stack, are equal."""

    def check(case: Case) -> bool:
        added = case.merged()[name] - load_file(case.folder / "base" / WHOLE)[name]
        matrices = added if "experts" in name else added.flatten(1)
        values = torch.linalg.svdvals(matrices)
        return bool((values.amax(-1) < 1.01 * values.amin(-1)).all()) == is_flat

    return check


def noise(state: Mapping[str, tuple[int, ...]]) -> Build:
    """Save a base and a model of random numbers."""
    generator = torch.Generator().manual_seed(0)
    base, tuned = ({name: torch.randn(shape, generator=generator) for name, shape in state.items()} for _ in range(2))
    return saved(base, tuned=tuned)


def code(dtype: torch.dtype) -> Build:
    """Save weights as floats of few bits."""
    state = {"a.weight": torch.zeros(4, 4, dtype=torch.uint8).view(dtype)}

    def build(case: Case) -> None:
        for folder in case.both:
            folder.mkdir()
            save_file(state, folder / WHOLE)

    return build


def words(**choice: str) -> Build:
    """Give both a tokenizer, the model's with a token more, and embeddings of as many rows."""

    def build(case: Case) -> None:
        more = {**TIED, "model.embed_tokens.weight": torch.full((5, 16), 2.0)}
        saved(TIED, tuned=more, **LLAMA)(case)
        text("config.json", {**LLAMA, "vocab_size": 5})(case)
        text("tokenizer.json", tokenizer(4), base=True, model=False)(case)
        text("tokenizer.json", tokenizer(5))(case)
        case.choice = TokenizerChoice(**choice) if choice else AS_IT_IS

    return build


def tokenizer(count: int) -> str:
    """Return the file of a tokenizer of so many words."""
    return Tokenizer(models.WordLevel({f"w{number}": number for number in range(count)}, unk_token="w0")).to_str()


def gguf(model: Path) -> None:
    """Write the heads of two GGUF files in a model's place."""
    (model / WHOLE).unlink()
    for name in ("m-Q4.gguf", "m-Q8.gguf"):
        (model / name).write_bytes(b"GGUF" + bytes(400))


MATRICES = {"x.experts.gate_up_proj": (2, 4, 10), "x.experts.down_proj": (2, 5, 4), "c.conv.weight": (4, 3, 3)}
GPT2 = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "vocab_size": 4}
WORDS = {"<pad>": 0, "a": 1, "b": 2}
UNTIED = {**TIED, HEAD: torch.zeros(4, 16)}
SECOND = {**TIED, HEAD: TIED["model.embed_tokens.weight"]}
CLASSES = {"classifier.weight": torch.ones(2, 3), "a.weight": torch.ones(4, 3)}
ALL = by(rules=ParameterRules(matrices="any_2d", flags=True))
CONSTANTS = {"rotary_emb.inv_freq": torch.ones(3)}


def ones(state: State, **others: Tensor) -> State:
    """Return a state with more tensors."""
    return {**state, **{name.replace("__", "."): value for name, value in others.items()}}


PROPERTIES = (
    Property("one safetensors file", saved(PLAIN), "every parameter", files(WHOLE)),
    Property("shards with an index", shards(), "into shards as the base's"),
    Property("a tensor that a shard holds and no index names", shards(named=False), "as transformers loads it"),
    Property("two indices", shards(second=True), "the one that transformers reads"),
    Property("torch weights, `.bin`", as_torch("pytorch_model.bin"), "written as safetensors", files(WHOLE)),
    Property(
        "`.bin` of torch before 1.6", as_torch("pytorch_model.bin", _use_new_zipfile_serialization=False), "whole"
    ),
    Property("shards of `.bin`", shards("bin"), "into shards of safetensors"),
    Property(
        "what training saved around a state", as_torch("last.pt", lambda own: {"model": own, "epoch": 3}), "the state"
    ),
    Property("Lightning's `.ckpt`", as_torch("last.ckpt", lambda own: {"state_dict": own}), "the state"),
    Property(
        "a variant alone, `model.fp16.safetensors`", saved(PLAIN, "model.fp16.safetensors"), "as `model`", files(WHOLE)
    ),
    Property(
        "diffusers' file name",
        saved(PLAIN, "diffusion_pytorch_model.safetensors"),
        "under that name",
        files("diffusion_pytorch_model.safetensors"),
    ),
    Property("the folder of a diffusers pipeline", lambda case: pipeline(case.folder)),
    Property(
        "two files of weights, none of a usual name", then(saved(PLAIN, "a.safetensors"), saved(PLAIN, "b.safetensors"))
    ),
    Property("a missing shard", then(shards(), instead(lambda model: next(model.glob("*1-of*")).unlink()))),
    Property("a file that is cut off", then(saved(PLAIN), instead(lambda model: cut(model / WHOLE)))),
    Property("a pointer of git-lfs", then(saved(PLAIN), text(WHOLE, "version https://git-lfs.github.com/spec/v1\n"))),
    Property("several GGUF files of one model", then(saved(PLAIN), instead(gguf))),
    Property("a pickle with code in it", as_torch("pytorch_model.bin", lambda own: {**own, "f": Path("x")})),
    Property("half precision", saved({name: value.half() for name, value in PLAIN.items()}), "in the base's dtype"),
    Property(
        "a base and a model of two dtypes",
        saved(PLAIN, tuned={n: v.double() + 1 for n, v in PLAIN.items()}),
        "in the base's",
    ),
    Property(
        "values beyond float16",
        then(
            saved({"a.weight": torch.full((4, 4), 6e4)}, tuned={"a.weight": torch.full((4, 4), 1e5)}),
            by(output=OutputFormat("float16")),
        ),
    ),
    Property("floats of eight bits", code(torch.float8_e4m3fn)),
    Property("floats of four bits", code(torch.float4_e2m1fn_x2)),
    Property("GPTQ's codes", saved(ones(PLAIN, q__qweight=torch.ones(2, 8, dtype=torch.int32)))),
    Property(
        "MXFP4's blocks", saved(ones(PLAIN, experts__down_proj_blocks=torch.ones(2, 8, 1, 16, dtype=torch.uint8)))
    ),
    Property("MLX's codes", saved(ones(PLAIN, q__weight=torch.ones(4, 4, dtype=torch.uint32)))),
    Property("bitsandbytes' codes", saved(ones(PLAIN, q__weight=torch.ones(4, 4, dtype=torch.int8)))),
    Property("complex constants", saved(ones(PLAIN, freqs=torch.ones(2, dtype=torch.complex64)))),
    Property(
        "indices and masks",
        saved(ones(PLAIN, index=torch.ones(2, 2, dtype=torch.int64), mask=torch.ones(2, dtype=torch.bool))),
    ),
    Property("NaN", saved(PLAIN, tuned=plus(PLAIN, float("nan")))),
    Property(
        "tensors of one value, and of none",
        saved(ones(PLAIN, scale=torch.tensor(1.0), empty=torch.ones(0, 3))),
        "as any other",
        holds(scale=2),
    ),
    Property(
        "names with one prefix more",
        saved(PLAIN, tuned={f"model.{n}": v + 1 for n, v in PLAIN.items()}),
        "under the base's names",
    ),
    Property(
        "names with one prefix less",
        saved({f"model.{n}": v for n, v in PLAIN.items()}, tuned=plus(PLAIN)),
        "under the base's names",
        holds(model__a__weight=2),
    ),
    Property(
        "names that fit under two prefixes",
        saved(PLAIN, tuned={f"{s}.{n}": v + 1 for n, v in PLAIN.items() for s in "xy"}),
    ),
    Property(
        "LayerNorm's `gamma` and `beta`",
        saved({"n.LayerNorm.weight": torch.ones(3)}, tuned={"n.LayerNorm.gamma": torch.full((3,), 2.0)}),
        "as `weight` and `bias`",
        holds(n__LayerNorm__weight=2),
    ),
    Property("a parameter that is missing", saved(PLAIN, tuned={"a.weight": torch.ones(4, 3)})),
    Property("a parameter that the base lacks", saved(PLAIN, tuned=plus(ones(PLAIN, c__weight=torch.ones(2, 2))))),
    Property("another shape", saved(PLAIN, tuned=ones(PLAIN, b__bias=torch.ones(5)))),
    Property("none of the base's names", saved(PLAIN, tuned={"z.weight": torch.ones(2)})),
    Property("a tied weight under both names", saved(SECOND, **LLAMA), check=holds(model__embed_tokens__weight=2)),
    Property(
        "a tied weight under both names in the model alone",
        saved(TIED, tuned=plus(SECOND), **LLAMA),
        "once",
        holds(model__embed_tokens__weight=2),
    ),
    Property("an untied model on a tied base", saved(TIED, tuned=plus(UNTIED), **LLAMA)),
    Property(
        "constants of older versions",
        saved(ones(TIED, **CONSTANTS), **LLAMA),
        check=lambda case: not CONSTANTS.keys() & case.merged().keys(),
    ),
    Property(
        "GPT-2's maps, in x out",
        then(noise({"h.0.attn.c_attn.weight": (4, 12)}), text("config.json", GPT2, base=True), by(method="iso_c")),
        "turned round and back",
        flat("h.0.attn.c_attn.weight"),
    ),
    Property(
        "experts in one tensor",
        then(noise(MATRICES), by(method="iso_c")),
        "each matrix by itself",
        flat("x.experts.down_proj"),
    ),
    Property(
        "convolutions of one and three dimensions",
        then(noise(MATRICES), by(method="iso_c")),
        "as matrices",
        flat("c.conv.weight"),
    ),
    Property(
        "`--matrices any_2d`",
        then(noise(MATRICES), ALL, by(method="iso_c")),
        "experts and kernels as vectors",
        flat("c.conv.weight", is_flat=False),
    ),
    Property(
        "another number of experts",
        saved(
            {"e.experts.up": torch.ones(3, 4, 4), "n.w": torch.ones(2, 2), "n.v": torch.ones(2, 2)},
            tuned={"e.experts.up": torch.ones(2, 4, 4), "n.w": torch.ones(2, 2), "n.v": torch.ones(2, 2)},
        ),
    ),
    Property(
        "another number of heads", then(saved(TIED, **LLAMA), text("config.json", {**LLAMA, "num_attention_heads": 4}))
    ),
    Property("another model type", then(saved(TIED, **LLAMA), text("config.json", {**LLAMA, "model_type": "mistral"}))),
    Property(
        "another epsilon",
        then(saved(TIED, **LLAMA), text("config.json", {**LLAMA, "rms_norm_eps": 1e-3})),
        check=holds(model__norm__weight=2),
    ),
    Property(
        "classes in another order",
        then(
            saved(CLASSES, **LLAMA),
            text("config.json", {**LLAMA, "id2label": {"0": "yes", "1": "no"}}, base=True, model=False),
            text("config.json", {**LLAMA, "id2label": {"0": "no", "1": "yes"}}),
        ),
    ),
    Property(
        "its own code, `auto_map`", then(saved(PLAIN), text("config.json", {"auto_map": {"AutoModel": "own.Own"}}))
    ),
    Property("a token with another number", vocabulary(WORDS, {"<pad>": 0, "b": 1, "a": 2})),
    Property("a token that the base has not", vocabulary(WORDS, {**WORDS, "c": 3})),
    Property("embeddings with a row for a token more", words()),
    Property(
        "the same, with `--tokenizer union`",
        words(tokenizer="union"),
        "by token",
        lambda case: case.merged()["model.embed_tokens.weight"].shape == (5, 16),
    ),
    Property("another chat template", then(saved(PLAIN), text("chat_template.jinja", "{{ a }}"))),
    Property(
        "other settings of generation",
        then(
            saved(PLAIN),
            text("generation_config.json", {"top_k": 1}, base=True, model=False),
            text("generation_config.json", {"top_k": 2}),
        ),
    ),
    Property(
        "other special tokens",
        then(
            saved(PLAIN),
            text("special_tokens_map.json", {"eos_token": "a"}, base=True, model=False),
            text("special_tokens_map.json", {"eos_token": "b"}),
        ),
    ),
    Property("a LoRA adapter", lora({}), "its update", holds(a__weight=2, b__bias=0)),
    Property("an adapter that changes no weights", lora({"peft_type": "PROMPT_TUNING"})),
    Property("an adapter of other layers", lora({}, ("z",))),
    Property("an adapter with a head that the base lacks", lora({}, head=True)),
    Property(
        "an adapter that names another base", lora({"base_model_name_or_path": "org/other"}), check=holds(a__weight=2)
    ),
    Property("an adapter as the base", then(lora({}), by(base="model", model="base"))),
    Property("a module with its own weights", module("base", "model"), check=lambda case: dense(case) == 1),
    Property("a module that the base alone has", module("base"), check=lambda case: dense(case) == 0),
    Property("a module that the model alone has", module("model")),
    Property(
        "a head in a separate file",
        then(saved(PLAIN), instead(lambda model: save_file(PLAIN, model / "value_head.safetensors"))),
    ),
    Property(
        "another pooling",
        then(
            saved(PLAIN),
            text("1_Pooling/config.json", {"mode": "cls"}, base=True, model=False),
            text("1_Pooling/config.json", {"mode": "mean"}),
        ),
    ),
    Property(
        "what training left, and other formats",
        then(
            saved(PLAIN),
            text("onnx/model.onnx", "", base=True),
            text("checkpoint-5/optimizer.pt", "", base=True),
            text("flax_model.msgpack", "", base=True),
        ),
    ),
    Property("a model that equals the base", saved(PLAIN, tuned=PLAIN), check=holds(a__weight=1)),
    Property("no base", then(saved(PLAIN), by(base=None)), "onto the models' mean", holds(a__weight=1.5)),
)


def pipeline(folder: Path) -> None:
    """Write the folders of two pipelines."""
    for name in ("base", "model"):
        (folder / name / "unet").mkdir(parents=True)
        save_file(PLAIN, folder / name / "unet/diffusion_pytorch_model.safetensors")
        (folder / name / "model_index.json").write_text("{}")


def cut(path: Path) -> None:
    """Cut a file's last byte off."""
    path.write_bytes(path.read_bytes()[:-1])


def dense(case: Case) -> float:
    """Read the number that a merge's module holds."""
    return float(load_file(case.folder / "out/2_Dense" / WHOLE)["linear.weight"][0, 0])


def outcome(each: Property, folder: Path) -> tuple[str, str]:
    """Do the merge of a property; return whether it is merged, named or refused, and what is said of it.

    Raises AssertionError where it is merged and not as it should be.
    """
    case = Case(folder)
    each.build(case)
    try:
        notes = case.merge()
    except InputError as error:
        return "refused", _plain(str(error), folder)
    assert each.check(case), f"{each.name}: merged, and not as it should be"
    return ("named" if notes else "merged"), _plain("; ".join([*([each.how] if each.how else []), *notes]), folder)


def _plain(said: str, folder: Path) -> str:
    """Write what is said without the folder, in one cell of a table."""
    return (
        re.sub(r"\s+", " ", said.replace(f"{folder}/", "")).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    )


def table() -> str:
    """Return the rows of all properties, as they stand in the docs."""
    lines = ["| property | outcome | how, or what is said |", "|---|---|---|"]
    for each in PROPERTIES:
        with tempfile.TemporaryDirectory() as folder:
            kind, said = outcome(each, Path(folder))
        lines.append(f"| {each.name} | {kind} | {said} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into the docs."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
