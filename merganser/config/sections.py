"""The sections of `params.yaml` that declare things by names: models, tasks, entries, what they read, and studies."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # with what is put before and behind it, it must fit a file's name
# What the report's tables name their other columns, and files their means: no task may have such a name.
TAKEN_COLUMNS = frozenset(
    (
        *("entry", "method", "reads", "family", "group", "data", "mean", "normalised_score", "score_drop_rate", "amr"),
        *("wall_s", "peak_rss_bytes", "stderr", "spread", "forwards", "backwards", "before_s", "unseen", "partial"),
        *("normalised", "adr"),
    )
)
UNMEASURED = "unmeasured"  # the kind of tasks that are merged and have no data
VOCABULARIES = Path("data/vocabularies")  # under base.source: a base that was brought into another vocabulary
BASE = Path("data/base")  # as the head of a task without a model: what stands in the base and its merges
OWN_MODELS = Path("data/checkpoints")  # as base.source: the mean of the tasks' own models
Text = Annotated[str, Field(min_length=1)]
DeviceName = Literal["cpu", "cuda"]
Share = Annotated[float, Field(gt=0, le=1)]


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

    `split`, `validation`: instead of evaluation.split and validation.split. `columns`: the data set's own name of
    each column that the kind reads.
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


class Entry(Open):
    """The use of a registered method under a name: what it reads, and its parameters.

    By default the method is that of the entry's name, and it reads what the method does.
    """

    method: Annotated[Text, Field(examples=["ties"])]
    reads: Annotated[
        Text, Field(examples=["deltas"], description="the input that its method reads: see `merganser methods NAME`")
    ]

    @property
    def difference(self) -> str | None:
        """The name of the difference vectors it reads, None when it reads something else."""
        return self.named("differences")

    def named(self, kind: str) -> str | None:
        """Return the name under a section of what it reads, None when it reads something else."""
        section, _, name = self.reads.partition("/")
        return name if section == kind and name else None

    def at(self, values: Mapping[str, Any]) -> "Entry":
        """Return the entry with these values, which replace its own."""
        return Entry(method=self.method, reads=self.reads, **{**self.values, **values})


class DifferenceVectors(Strict):
    """Difference vectors: the tasks' models minus what an entry of methods merged them into."""

    merged: Annotated[Text, Field(examples=["average"])]


class Joint(Strict):
    """Joint decompositions of the tasks' matrices, set side by side (rows) or one above the other (columns)."""

    side: Literal["rows", "columns"]


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
    """Something trained for a merge: `of` names the difference vectors that start from the merge."""

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
    over: dict[Text, list[Any]] = Field(default={})
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


class ContinualStudy(Strict):
    """Entries that merge the tasks one after another, in so many orders: that of `tasks` first."""

    orders: Annotated[int, Field(ge=1, examples=[3])] = 1
    methods: dict[str, Entry]


class RankStudy(Strict):
    """The shares of each spectrum at which every task's own delta is measured."""

    fractions: list[Share]


class Sweep(Entry):
    """An entry at several values of one parameter: `over` names it, with the values."""

    over: dict[Text, list[Any]]


class Ablation(Entry):
    """An entry, and variants with steps removed or replaced, each with values from its own search.

    `steps`: by a name, the values that replace the entry's. `over`: the values that are searched for each variant
    on the validation split, in all combinations; by default the scaling.
    """

    steps: Annotated[dict[str, dict[Text, Any]], Field(min_length=1)]
    over: dict[Text, list[Any]] | None = None


class BudgetStudy(Strict):
    """Methods with a part per task at the same bytes: `at`, the shares of the merged parameters' that a task takes."""

    at: Annotated[list[Share], Field(min_length=1)] = Field(default=[0.01, 0.02, 0.05, 0.1])
    methods: dict[str, Entry]


class Studies(Strict):
    """Measurements besides the comparison; a part that is left out measures nothing."""

    tasks: TaskStudy = TaskStudy(methods={})
    continual: ContinualStudy = ContinualStudy(methods={})
    rank: RankStudy = RankStudy(fractions=[])
    sweeps: dict[str, Sweep] = Field(default={})
    ablations: dict[str, Ablation] = Field(default={})
    budgets: BudgetStudy = BudgetStudy(methods={})


# Where the entries of studies stand: these are checked and completed.
STUDIED = tuple(
    ("studies", *place.split("."))
    for place in ("tasks.methods", "continual.methods", "sweeps", "ablations", "budgets.methods")
)
