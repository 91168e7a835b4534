"""The sections of `params.yaml`, their keys and types.

The file holds choices only: the methods' defaults live in their signatures, all others here, paths of outputs in
`dvc.yaml`. A base, tasks and methods must be there; what DVC needs besides is written into the file (`completing`).
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from merganser.errors import InputError, did_you_mean

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # with what is put before and behind it, it must fit a file's name
NAMED = 12  # names of a change that are said
UNMEASURED = "unmeasured"  # the kind of tasks that are merged and have no data
VOCABULARIES = Path("data/vocabularies")  # under base.source: a base that was brought into another vocabulary
BASE = Path("data/base")  # as the head of a task without a model: what stands in the base and its merges
OWN_MODELS = Path("data/checkpoints")  # as base.source: the mean of the tasks' own models
Text = Annotated[str, Field(min_length=1)]
DeviceName = Literal["cpu", "cuda"]


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


class Strict(BaseModel):
    """A section of the file: exactly these keys, exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Open(Strict):
    """A section in which keys of another's stand too: a kind's of task, a method's, a learner's."""

    model_config = ConfigDict(extra="allow")

    @property
    def values(self) -> dict[str, Any]:
        """The other's keys, as written."""
        return dict(self.model_extra or {})


class Base(Strict):
    """The model that all tasks were fine-tuned from, or the mean of the tasks' own.

    `heads`: patterns of the names of parameters that are each task's own: read from its checkpoint, never merged.
    `pad_token_id`: the number of the token that batches of texts are padded with, for a tokenizer without one.
    """

    source: Annotated[Text, Field(examples=["models/base"])]
    family: Annotated[Text, Field(examples=["open_clip"], description="or another of docs/families.md")]
    heads: list[Text] = []
    pad_token_id: Annotated[int, Field(ge=0)] | None = None

    @property
    def is_mean(self) -> bool:
        """Tell whether the mean of the tasks' own models takes the base's place."""
        return Path(self.source) == OWN_MODELS


class Vocabulary(Strict):
    """A base with the tokens that its merge has: rows of embeddings and heads are matched by token.

    `source`: the base's. `tokenizer`: base, union (the base's, and what the tasks add) or a task. `rows`: by token, the
    task (or base) that its rows are of. `chat_template`: base or a task, where not that of the tokenizer.
    """

    source: Annotated[Text, Field(examples=["models/base"])]
    tokenizer: Annotated[Text, Field(examples=["union"])] = "union"
    rows: dict[Text, Text] = {}
    chat_template: Text | None = None


class Parameters(Strict):
    """Which parameters are merged (name patterns; the rest stays as in the base), and which count as matrices.

    By default all are merged, of a dual encoder the image tower (docs/families.md).
    """

    merged: Annotated[list[Text], Field(min_length=1, examples=[["visual.*"]])] = ["*"]
    matrices: Literal["linear", "any_2d"] = "linear"


class Data(Open):
    """A task's data set; the keys of the task's kind stand here too.

    `split`, `validation`: in place of evaluation.split and validation.split. `columns`: the data set's own name of each
    column that the kind reads.
    """

    source: Annotated[Text, Field(examples=["datasets/digits"])]
    split: Text | None = None
    validation: Text | None = None
    columns: dict[Text, Text] = {}
    metric: Text | None = None


class Task(Strict):
    """A fine-tuned checkpoint and its data, of some kind."""

    source: Annotated[
        Text, Field(examples=["models/digits"], description="or declare it under unseen if it has no fine-tuned model")
    ]
    kind: Text = "image_classification"
    data: Data


class Unseen(Strict):
    """A task that no model is merged of: its data, on which every merge is measured.

    `head`: a checkpoint that the parameters of `base.heads` are taken of, for kinds of task that need a head.
    """

    head: Text = str(BASE)
    kind: Text = "image_classification"
    data: Data

    @property
    def has_head(self) -> bool:
        """Tell whether it names a checkpoint for its head; otherwise a merge's own last parameters stay."""
        return Path(self.head) != BASE


class Decompose(Strict):
    """The share of each matrix's singular vectors that is kept, and the dtype they are stored in."""

    rank_fraction: Annotated[float, Field(gt=0, le=1, examples=[1.0])] = 1.0
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"


class Entry(Open):
    """The use of a registered method under a name: what it reads, and its parameters.

    By default the method is that of the entry's name, and it reads what the method does.
    """

    method: Annotated[Text, Field(examples=["ties"])]
    reads: Annotated[
        Text, Field(examples=["deltas"], description="what its method reads: `merganser methods NAME` says it")
    ]

    @property
    def difference(self) -> str | None:
        """The name of the difference vectors it reads, None when it reads something else."""
        return self.named("differences")

    def named(self, kind: str) -> str | None:
        """Return the name under a section of what it reads, None when it reads something else."""
        found, _, name = self.reads.partition("/")
        return name if found == kind and name else None

    def at(self, values: Mapping[str, Any]) -> "Entry":
        """Return the entry with these values, in place of its own where it has them."""
        return Entry(method=self.method, reads=self.reads, **{**self.values, **values})


class DifferenceVectors(Strict):
    """Difference vectors: the tasks' models minus what an entry of methods merged them into."""

    merged: Annotated[Text, Field(examples=["average"])]


class Joint(Strict):
    """Joint decompositions of the tasks' matrices, set side by side (rows) or one above the other (columns)."""

    side: Literal["rows", "columns"]


class Merge(Strict):
    """Where merges run: it can change bytes."""

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
        message = "lacks {missing}, in whose place a merge's folder and a free port are put"
        raise PydanticCustomError("server", message, {"missing": " and ".join(missing)})
    return command


class Evaluation(OfSplit):
    """The split that is measured on, the examples per batch, where networks run and in which precision.

    `batch_size`: at most; lm-eval's questions are fewer at a time where they are long, as memory asks. `server`: a
    command that serves a merge to lm-eval in place of this process, run without a shell.
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
    """A file of what papers report of the entries, which the report sets beside what was measured."""

    source: Annotated[Text, Field(examples=["suites/mine/published.yaml"])]


class Validation(OfSplit):
    """The split that statistics, learning, searches, ablations and routers read.

    It is not the one that is measured on, unless all that reads it adapts without labels.
    """

    split: Annotated[Text | SomeOfSplit, Field(examples=["validation"])] = "validation"


class Statistic(Strict):
    """What is measured of each task's own model on some examples of its validation split, drawn by the seed.

    `gram`: Gram matrices of the inputs of linear maps; `fisher`: diagonal Fisher information, with `base` of the base
    model too. `device`: where the network runs.
    """

    kind: Annotated[Text, Field(examples=["gram"])]
    examples: Annotated[int, Field(ge=1, examples=[256])] = 256
    base: bool = False
    device: DeviceName = "cpu"

    @property
    def measured(self) -> tuple[str, ...]:
        """Name what layers get of it."""
        return (self.kind, f"base_{self.kind}") if self.base else (self.kind,)


class Embedding(Strict):
    """Text embeddings of the tasks' class names, and what an entry reads with them: deltas, svd or differences/NAME."""

    of: Annotated[Text, Field(examples=["deltas"])]


class Beside(Strict):
    """What is trained beside a model: `of` names the difference vectors that start from it."""

    of: Annotated[Text, Field(examples=["deltas"])]


class Routing(Beside):
    """A router over the tasks, fitted to a model's features: a merged one's, or with `of: deltas` the base's.

    `penalty`: of the squared norm of its weights.
    """

    penalty: Annotated[float, Field(ge=0)] = 1.0


class Surgery(Beside):
    """A bottleneck per task, trained to bring the merged model's features near those of the task's own model."""

    rank: Annotated[int, Field(ge=1)] = 16
    steps: Annotated[int, Field(ge=0)] = 1000
    batch_size: Annotated[int, Field(ge=1)] = 16
    lr: Annotated[float, Field(gt=0)] = 1e-3


class LearnedEntry(Open):
    """Values that a learner finds on the tasks' validation data; the learner's keys stand here too.

    `of`: what the learner reads: deltas, svd or differences/NAME.
    """

    learner: Text
    of: Annotated[Text, Field(examples=["deltas"])]


class Evolution(Strict):
    """A search of a coefficient per task by CMA-ES: generations of so many candidates, about 1 with deviation sigma."""

    generations: Annotated[int, Field(ge=1)] = 50
    population: Annotated[int, Field(ge=4)] = 20
    sigma: Annotated[float, Field(gt=0)] = 0.3


class Search(Open):
    """A search for a method's parameters on the tasks' validation data; those that are not searched stand here too.

    `of`: what the method reads: deltas, svd or differences/NAME. `over`: the values that are tried of each parameter,
    in all combinations; in its place `evolve`: a coefficient per task, by CMA-ES. `grid`, without either: the values of
    the scaling and the density that are tried of all methods, or those that the method's own paper tries.
    """

    method: Text
    of: Annotated[Text, Field(examples=["deltas"])]
    over: dict[Text, list[Any]] = {}
    grid: Literal["common", "paper"] = "common"
    evolve: Evolution | None = None

    def entry(self, values: Mapping[str, Any]) -> Entry:
        """Return a candidate as an entry of methods would have it."""
        return Entry(method=self.method, reads=self.of, **{**self.values, **values})

    @property
    def tried(self) -> Literal["common", "paper", "own", "evolved"]:
        """Return which values are tried: a grid, those written here, or what CMA-ES asks for."""
        return "evolved" if self.evolve else "own" if self.over else self.grid


class StudyEntry(Entry):
    """An entry that merges subsets of the tasks; `unseen`: each merge is measured on the other tasks too."""

    unseen: bool = False


class TaskStudy(Strict):
    """Entries that merge subsets of the tasks: at most so many of each size, the same ones for every entry."""

    subsets: Annotated[int, Field(ge=1, examples=[4])] = 10
    methods: dict[str, StudyEntry]


class RankStudy(Strict):
    """The shares of each spectrum at which every task's own delta is measured."""

    fractions: list[Annotated[float, Field(gt=0, le=1)]]


class Sweep(Entry):
    """An entry at several values of one parameter: `over` names it, with the values."""

    over: dict[Text, list[Any]]


class Ablation(Entry):
    """An entry, and the same with steps taken out or replaced, each at values that a search of its own chose.

    `steps`: by a name, the values in place of the entry's. `over`: what is searched for each of them on the validation
    split, in all combinations; by default the scaling.
    """

    steps: Annotated[dict[str, dict[Text, Any]], Field(min_length=1)]
    over: dict[Text, list[Any]] | None = None


class BudgetStudy(Strict):
    """Methods with a part per task at the same bytes: `at`, the shares of the merged parameters' that a task takes."""

    at: Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)] = [0.01, 0.02, 0.05, 0.1]
    methods: dict[str, Entry]


class Studies(Strict):
    """What is measured beside the comparison: nothing where a part is left out."""

    tasks: TaskStudy = TaskStudy(methods={})
    rank: RankStudy = RankStudy(fractions=[])
    sweeps: dict[str, Sweep] = {}
    ablations: dict[str, Ablation] = {}
    budgets: BudgetStudy = BudgetStudy(methods={})


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
    unseen: dict[str, Unseen] = {}
    decompose: Decompose = Decompose()
    joints: dict[str, Joint] = {}
    differences: dict[str, DifferenceVectors] = {}
    embeddings: dict[str, Embedding] = {}
    learned: dict[str, LearnedEntry] = {}
    routers: dict[str, Routing] = {}
    searches: dict[str, Search] = {}
    surgery: dict[str, Surgery] = {}
    merge: Merge = Merge()
    methods: Annotated[
        dict[str, Entry], Field(min_length=1, examples=[{"ties": {"method": "ties", "reads": "deltas"}}])
    ]
    evaluation: Evaluation = Evaluation()
    validation: Validation | None = None
    published: PublishedSource | None = None
    statistics: dict[str, Statistic] = {}
    studies: Studies = Studies()
    vocabularies: dict[str, Vocabulary] = {}
    trial: dict[Text, TrialChange] = {}

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
    def with_data(self) -> "dict[str, Task | Unseen]":
        """Return what has data, by its place in the file: the tasks that are measured, then the unseen ones."""
        seen = {f"tasks.{name}": self.tasks[name] for name in self.measured}
        return seen | {f"unseen.{name}": task for name, task in self.unseen.items()}

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
            raise InputError("validation: missing, and what reads data needs it; write validation: {split: validation}")
        return self.tasks[task].data.validation or self.validation.name

    def inner(self, entry: Entry) -> Entry:
        """Return an entry as one that reads what its input is of; as it is where its input is of no other."""
        section, _, name = entry.reads.partition("/")
        found = getattr(self, section, None)
        of = getattr(found.get(name), "of", None) if isinstance(found, Mapping) else None
        return entry if of is None else entry.model_copy(update={"reads": of})


def declared(section: Mapping[str, T], name: str, where: str) -> T:
    """Return what a section declares under a name; raise InputError with the nearest name when there is none.

    `where`: the section's own name in the file.
    """
    if name not in section:
        raise InputError(f'no "{name}" under {where} in params.yaml{did_you_mean(name, section)}')
    return section[name]
