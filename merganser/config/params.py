"""The sections of `params.yaml`, their keys and types.

The file holds choices only: the methods' defaults live in their signatures, all others here, paths of outputs in
`dvc.yaml`. A base, tasks and methods must be there; what DVC needs besides is written into the file (`completing`).
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from merganser.config.sections import (
    OWN_MODELS,
    UNMEASURED,
    VOCABULARIES,
    Base,
    DeviceName,
    DifferenceVectors,
    Embedding,
    Entry,
    Joint,
    LearnedEntry,
    Parameters,
    Routing,
    Search,
    Statistic,
    Strict,
    Studies,
    Surgery,
    Task,
    Text,
    Unseen,
    Vocabulary,
)
from merganser.errors import InputError, did_you_mean

T = TypeVar("T")
NAMED = 12  # names of a change that are said


class Decompose(Strict):
    """The share of each matrix's singular vectors that is kept, and the dtype they are stored in."""

    rank_fraction: Annotated[float, Field(gt=0, le=1, examples=[1.0])] = 1.0
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"


class Merge(Strict):
    """The device of merges: it can change bytes."""

    device: DeviceName = "cpu"


class SomeOfSplit(Strict):
    """At most so many examples of a split, evenly spaced, of each class its share: the same ones at every seed."""

    name: Text
    examples: Annotated[int, Field(ge=1)]


class OfSplit(Strict):
    """What reads a split of the tasks' data, or some of it."""

    split: Text | SomeOfSplit

    @property
    def name(self) -> str:
        """Return the split's name."""
        return self.split.name if isinstance(self.split, SomeOfSplit) else self.split

    @property
    def examples(self) -> int | None:
        """Return how many examples are read at most; None for all."""
        return self.split.examples if isinstance(self.split, SomeOfSplit) else None


def _server(command: str) -> str:
    """Refuse a command that is given no model, or no port."""
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise PydanticCustomError("server", "is not a command line ({error})", {"error": str(error)}) from error
    missing = [each for each in ("{model}", "{port}") if not any(each in part for part in parts[1:])]
    if missing:
        message = "lacks {missing}: Merganser replaces them by a merge's folder and a free port"
        raise PydanticCustomError("server", message, {"missing": " and ".join(missing)})
    return command


class Evaluation(OfSplit):
    """The split that is measured on, the examples per batch, and the networks' device and precision.

    `batch_size`: at most; long questions of lm-eval come in smaller batches, to fit into memory. `server`: a
    command that serves a merge to lm-eval instead of this process, run without a shell.
    """

    split: Annotated[Literal["validation", "test"] | SomeOfSplit, Field(examples=["test"])] = "test"
    batch_size: Annotated[int, Field(ge=1, examples=[256])] = 64
    device: DeviceName = "cpu"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    server: Annotated[Text, AfterValidator(_server), Field(examples=["vllm serve {model} --port {port}"])] | None = None

    @property
    def partial(self) -> str | None:
        """Say that not all examples of the split are measured on; None where they are."""
        return None if self.examples is None else f"at most {self.examples} examples of each task"


class PublishedSource(Strict):
    """A file of papers' figures for the entries, which the report sets next to the measured ones."""

    source: Annotated[Text, Field(examples=["suites/mine/published.yaml"])]


class Validation(OfSplit):
    """The split that statistics, learning, searches, ablations and routers read.

    It is not the one that is measured on, unless all that reads it adapts without labels.
    """

    split: Annotated[Text | SomeOfSplit, Field(examples=["validation"])] = "validation"


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value) if len(value) <= NAMED else f"{len(value)} of them"
    return "its default" if value is None else json.dumps(value)


def _seeds(given: Any) -> Any:
    """Accept a whole number, or several different ones."""
    several = given if isinstance(given, list) else [given]
    if not several or not all(type(seed) is int and seed >= 0 for seed in several) or len(set(several)) < len(several):
        raise PydanticCustomError("seeds", "expected a whole number from 0 on, or a list of different ones")
    return given


class TrialChange(Strict):
    """A value of params.yaml that a trial replaces, None for a default, and the trial's; of entries, their names."""

    before: Any = None
    now: Any = None

    @property
    def shown(self) -> str:
        """Return it in words, names that went or stayed as their number where they are many."""
        return " -> ".join(map(_shown, (self.before, self.now)))


class Params(Strict):
    """The whole of `params.yaml`; a section that has a default may be left out.

    `seed`: of all that draws at random; a list of several for merges, which draw once with each. `trial`: what a trial
    has otherwise than the params.yaml that it was made from, by key; `merganser run --set` writes it.
    """

    seed: Annotated[int | list[int], PlainValidator(_seeds), Field(examples=[0])] = 0
    base: Base
    parameters: Parameters = Parameters()
    tasks: Annotated[
        dict[str, Task],
        Field(
            min_length=1,
            examples=[
                {"digits": {"source": "models/digits", "data": {"source": "datasets/digits", "templates": ["a {}."]}}}
            ],
        ),
    ]
    unseen: dict[str, Unseen] = Field(default={})
    decompose: Decompose = Decompose()
    joints: dict[str, Joint] = Field(default={})
    differences: dict[str, DifferenceVectors] = Field(default={})
    embeddings: dict[str, Embedding] = Field(default={})
    learned: dict[str, LearnedEntry] = Field(default={})
    routers: dict[str, Routing] = Field(default={})
    searches: dict[str, Search] = Field(default={})
    surgery: dict[str, Surgery] = Field(default={})
    merge: Merge = Merge()
    methods: Annotated[
        dict[str, Entry], Field(min_length=1, examples=[{"ties": {"method": "ties", "reads": "deltas"}}])
    ]
    evaluation: Evaluation = Evaluation()
    validation: Validation | None = None
    published: PublishedSource | None = None
    statistics: dict[str, Statistic] = Field(default={})
    studies: Studies = Studies()
    vocabularies: dict[str, Vocabulary] = Field(default={})
    trial: dict[Text, TrialChange] = Field(default={})

    @property
    def vocabulary(self) -> str | None:
        """Return the name of the vocabulary that the base is brought into; None where it is as its source has it."""
        source = Path(self.base.source)
        return source.name if source.parent == VOCABULARIES else None

    @property
    def base_source(self) -> Path | None:
        """Return where the base is from, before it is brought into a vocabulary; None: it is the tasks' mean."""
        about = self.vocabularies.get(self.vocabulary or "")
        source = Path(self.base.source if about is None else about.source)
        return None if source == OWN_MODELS else source

    @property
    def measured(self) -> list[str]:
        """Return the tasks that have data, in the file's order."""
        return [name for name, task in self.tasks.items() if task.kind != UNMEASURED]

    @property
    def with_data(self) -> "dict[tuple[str, str], Task | Unseen]":
        """Return what has data, by its place in the file: the tasks that are measured, then the unseen ones."""
        seen: dict[tuple[str, str], Task | Unseen] = {("tasks", name): self.tasks[name] for name in self.measured}
        return seen | {("unseen", name): task for name, task in self.unseen.items()}

    def about(self, task: str) -> "Task | Unseen":
        """Return a task, or an unseen one, by its name."""
        return self.tasks.get(task) or self.unseen[task]

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of entries that draw at random, in the file's order."""
        return self.seed if isinstance(self.seed, list) else [self.seed]

    @property
    def first_seed(self) -> int:
        """Return the seed of what is drawn once."""
        return self.seeds[0]

    def with_seed(self, seed: int) -> "Params":
        """Return the same comparison with one seed."""
        return self.model_copy(update={"seed": seed})

    def split_of(self, task: str) -> str:
        """Return the split that a task, or an unseen one, is measured on."""
        return self.about(task).data.split or self.evaluation.name

    def validation_split_of(self, task: str) -> str:
        """Return the split of a task that statistics, learning and searches read; raise InputError if there is none."""
        if self.validation is None:
            raise InputError(
                "validation: missing, and methods that read data need it; write validation: {split: validation}"
            )
        return self.tasks[task].data.validation or self.validation.name

    def inner(self, entry: Entry) -> Entry:
        """Return an entry as one that reads what its input is of; as it is where its input is of no other."""
        section, _, name = entry.reads.partition("/")
        inputs = getattr(self, section, None)
        of = getattr(inputs.get(name), "of", None) if isinstance(inputs, Mapping) else None
        return entry if of is None else entry.model_copy(update={"reads": of})

    def merged_before(self, entry: Entry) -> str | None:
        """Name the entry whose merge an entry's difference vectors start from; None where it reads none."""
        vectors = self.differences.get(self.inner(entry).difference or "")
        return vectors.merged if vectors is not None and vectors.merged in self.methods else None


def declared(section: Mapping[str, T], name: str, where: str) -> T:
    """Return what a section declares under a name; raise InputError with the nearest name when there is none.

    `where`: the section's own name in the file.
    """
    if name not in section:
        raise InputError(f'no "{name}" under {where} in params.yaml{did_you_mean(name, section)}')
    return section[name]
