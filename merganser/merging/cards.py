"""Model cards: a README.md that describes a merged model and its inputs, with the metadata that hubs expect.

For a merge that changes the network, the card has the lines of Python that load and run it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merganser.checkpoints.architecture import CONFIG, model_type_of, read_config
from merganser.checkpoints.companions import ModelOrigin
from merganser.hashes import sha256_of
from merganser.merging.licences import licence_warnings
from merganser.merging.method import Method
from merganser.merging.tokenizers import tokenizer_of
from merganser.models import family_names
from merganser.plugins import FAMILIES, constants

if TYPE_CHECKING:
    from huggingface_hub.repocard_data import ModelCardData


@dataclass(frozen=True)
class Example:
    """The lines of a card that make a network's input and read the answer from its logits, by pipeline."""

    inputs: str = 'network.encode(["a text"], 128)'
    answer: str = ".argmax(dim=1)"
    imported: str = ""
    before: str = ""
    has_head: bool = True  # in `data/heads`; otherwise the classes are prompts, or the task has none


PIL, PIXELS = "from PIL import Image\n", '{"pixels": network.pixels([Image.open("picture.png")])}'
OF_PROMPTS = '    network.head([["a photo of a cat."], ["a photo of a dog."]])  # the prompts of each class\n'
READ = '    sound, _ = soundfile.read("sound.wav", dtype="float32")\n'
EXAMPLES = {
    "zero-shot-image-classification": Example(PIXELS, imported=PIL, before=OF_PROMPTS, has_head=False),
    "image-classification": Example(PIXELS, imported=PIL),
    "audio-classification": Example(
        "network.encode_sounds([sound], len(sound))", imported="import soundfile\n", before=READ
    ),
    "token-classification": Example(answer=".argmax(dim=2)"),
    "sentence-similarity": Example(answer="", has_head=False),
}
READ_HEAD = "from merganser.inputs.heads import read_head\n"
HEAD = 'head = read_head(Path("{task}.safetensors"))  # of data/heads, where it was merged\n'
LINES = """from pathlib import Path
{imported}from merganser.at_run_time import running
from merganser.models import open_network

folder = Path(".")  # where these files lie
{head}network = open_network("{family}", folder{outputs})
with running(network, folder{given}) as (network, _):
{before}    print(network.logits({inputs}){answer})"""


def usage(method: Method, family: str, task: str) -> str:
    """Return a card's section with these lines for one task; empty for methods that do not change the network."""
    if method.at_run_time is None:
        return ""
    pipelines = constants(FAMILIES, family)["PIPELINES"].values()
    example = next((EXAMPLES[name] for name in pipelines if name in EXAMPLES), Example())
    given = method.at_run_time.TASK_GIVEN
    lines = LINES.format(
        imported=example.imported + READ_HEAD * example.has_head,
        head=HEAD.format(task=task) if example.has_head else "",
        family=family,
        outputs=", outputs=len(head.classes)" if example.has_head else "",
        given=(f', task="{task}"' if given else "") + (", head=head" if example.has_head else ""),
        before=example.before,
        inputs=example.inputs,
        answer=example.answer,
    )
    told = "Parameters alone do not hold this merge; with Merganser installed, these lines run it"
    known = f"is the task, here {task}" if given else "the task is not: each input is routed"
    heads = f"Each task's class head is given, {'so ' * given}{known}"
    if not (example.has_head or example.before):
        heads = f"The task is given, here {task}" if given else "The task is not given: each input is routed"
    return f"## Use\n\n{told}. {heads}.\n\n```python\n{lines}\n```"


CARD = "README.md"  # in the folder of a merged model
LINEAGE = (
    "## Lineage\n\nIn the repository that made it, `merganser lineage show DIR` gives the revision of each source and "
    "all stages between them and this folder; `merganser lineage verify DIR` recomputes their hashes."
)
TRANSFORMERS = "transformers"
UNKNOWN = "unknown"  # the licence of a model without a card, or with one that gives none
LICENCE_ID = re.compile(r"[a-z0-9.+-]+")  # as hubs have it


def model_card(
    entry: str,
    method: Method,
    values: Mapping[str, Any],
    reads: str,
    seed: int,
    base: Path,
    origins: Mapping[str, ModelOrigin],
    usage: str = "",
    again: str = LINEAGE,
    family: str | None = None,
) -> str:
    """Write the card of a merge; `base`: the checkpoint whose configuration it has; `origins`: base and tasks by name;
    `usage`: a section that says how to run what is more than parameters; `again`: one on how the merge is repeated;
    `family`: of the base, where it is declared.

    It is a function of the merge's inputs alone: no times, no hosts.
    """
    library, pipeline = library_of(base, family)
    sections = [
        f"# {entry}",
        _about(method, len(origins) - 1),
        *([usage] if usage else []),
        "## Merge",
        _table(("", ""), _choices(method, values, reads, seed)),
        "## Made of",
        _table(("model", "from", "file", "sha256"), _sources(origins)),
        *_licences(origins),
        *(_text(base) if library in (TRANSFORMERS, None) else []),
        "## Files",
        _files(method),
        again,
    ]
    metadata = _metadata(method, library, pipeline, origins).to_yaml()
    return "---\n" + metadata + "\n---\n\n" + "\n\n".join(sections) + "\n"


def _metadata(
    method: Method, library: str | None, pipeline: str | None, origins: Mapping[str, ModelOrigin]
) -> "ModelCardData":
    from huggingface_hub.repocard_data import ModelCardData

    hub = list(dict.fromkeys(origin.name for origin in origins.values() if origin.kind == "hub"))
    relation = "merge" if hub else None
    licence, name = _licence(origins)
    return ModelCardData(
        license=licence,
        license_name=name,
        datasets=list(dict.fromkeys(name for each in origins.values() for name in each.datasets)) or None,
        base_model=hub or None,
        library_name=library,
        pipeline_tag=pipeline,
        tags=["merge", "merganser", method.name],
        base_model_relation=relation,
    )


def _licence(origins: Mapping[str, ModelOrigin]) -> tuple[str | None, str | None]:
    """Return the licence that all models share, or `other` and the list of them; nothing if no card gives one."""
    several = {licence for each in _licences_of(origins).values() for licence in each}
    if several <= {UNKNOWN}:
        return None, None
    if len(several) == 1:
        (only,) = several
        return (only, None) if LICENCE_ID.fullmatch(only) else ("other", only)
    return "other", ", ".join(sorted(several))


def library_of(base: Path, family: str | None) -> tuple[str | None, str | None]:
    """Return the library that loads a checkpoint, and the pipeline, by its family or by a family that knows it."""
    declared = [constants(FAMILIES, name) for name in ([family] if family else family_names())]
    declared.sort(key=lambda each: "CONFIG" not in each)  # a configuration of its own is the surer sign
    config = read_config(base / CONFIG)
    named = (config or {}).get("architectures")
    architecture = str(named[0] if isinstance(named, list) and named else model_type_of(config or {}) or "")
    for each in declared:
        if (base / each.get("CONFIG", CONFIG)).is_file():
            use = next((use for ending, use in each["PIPELINES"].items() if architecture.endswith(ending)), None)
            if use or family:
                return each["LIBRARY"], use
    return None if config is None else TRANSFORMERS, None


def _text(base: Path) -> list[str]:
    """Return the tokenizer and the chat template of a transformers model that has one."""
    tokenizer = tokenizer_of(base)
    if tokenizer is None:
        return []
    size = (read_config(base / CONFIG) or {}).get("vocab_size")
    words = f", for {size} tokens" if isinstance(size, int) else ""
    named = _code(tokenizer.kind) if tokenizer.kind else "not named"
    template = f"in {_code(tokenizer.template)}" if tokenizer.template else "none; texts are given as they are"
    files = [(_code(name), _code(sha256_of(base / name))) for name in tokenizer.files]
    facts = f"The base's, unchanged. Class: {named}{words}. Chat template: {template}."
    return ["## Tokenizer", facts, _table(("file", "sha256"), files)]


def _about(method: Method, tasks: int) -> str:
    gives = "one model for all tasks" if method.one_model else "one shared model and a small part per task"
    return f"{tasks} fine-tuned models merged by `{method.name}` ({method.paper}) into {gives}."


def _choices(method: Method, values: Mapping[str, Any], reads: str, seed: int) -> list[tuple[str, ...]]:
    given = {"method": method.name, "reads": reads, "seed": seed, **values}
    return [(name, _code(value if isinstance(value, str) else json.dumps(value))) for name, value in given.items()]


def _sources(origins: Mapping[str, ModelOrigin]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for model, origin in origins.items():
        for name, digest in origin.files.items() or [("", "")]:
            rows.append((model, _code(origin.name), _code(name), _code(digest)))
    return rows


def _licences_of(origins: Mapping[str, ModelOrigin]) -> dict[str, list[str]]:
    """Return each model's licences; a mean is left out, since the models that it averages are listed too."""
    return {name: list(one.licences) or [UNKNOWN] for name, one in origins.items() if one.kind != "mean"}


def _licences(origins: Mapping[str, ModelOrigin]) -> list[str]:
    """List each model's licences, if any is known."""
    licences = _licences_of(origins)
    if all(each == [UNKNOWN] for each in licences.values()):
        return []
    rows = [(model, _code(", ".join(each))) for model, each in licences.items()]
    said = "As the models' own cards give them, or the licence files beside them."
    lines = "\n".join(f"- {_code(line)}" for line in licence_warnings(origins))
    warned = [f"Before it is passed on:\n\n{lines}"] if lines else []
    return ["## Licences", said, _table(("model", "licence"), rows), *warned]


def _files(method: Method) -> str:
    weights = (
        "- `model.safetensors`, or the shards of `model.safetensors.index.json`: the merged weights; parameters that "
        "are not merged are the base's"
    )
    part = (
        "- `overlays.safetensors`, beside `unified.safetensors` where tasks share a delta: each task's part; "
        "`merganser reconstruct DIR --task NAME --out FILE` adds it"
    )
    lines = [weights, *([part] if method.overlay else [])]
    lines += [f"- `{added.FILE}`: {added.HOLDS}"] if (added := method.at_run_time) else []
    return "\n".join(lines)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """Quote a text for a table's cell so that it cannot end the cell or the line, or become a link."""
    plain = "".join(" " if not sign.isprintable() else sign for sign in text).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
