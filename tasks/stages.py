"""The pipeline's stages in a table, one row each, and the files that they write. dvc.yaml has the same paths.

All code that needs to know about stages reads this table: devices, reruns, profiles, expected sizes and times.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merganser.plugins import STATISTICS as STATISTIC_KINDS
from merganser.plugins import constants

if TYPE_CHECKING:
    from merganser.config.params import Params  # no stage waits for pydantic on account of a path
    from merganser.config.sections import Entry
    from merganser.merging.method import Method

BASE = Path("data/base")
CHECKPOINTS = Path("data/checkpoints")
CLASS_NAMES = Path("data/measures/classes.json")
CODE = Path("data/code")
KEPT = "kept.txt"  # there: what an update was told to keep
COMPANIONS = Path("data/companions")
DATA = Path("data")
DATASETS = Path("data/datasets")
DELTAS = Path("data/deltas")
DIFFERENCES = Path("data/differences")
EMBEDDINGS = Path("data/embeddings")
EXAMPLES = Path("data/examples")
FACTORS = Path("data/svd")
HEADS = Path("data/heads")
JOINTS = Path("data/joints")
LEARNED = Path("data/learned")
MERGED = Path("data/merged")
MERGE_MEASURES = Path("data/measures/merged")
MERGE_PROFILES = Path("data/profiles/merge")
METRICS = Path("data/metrics")
POINTS = Path("data/measures/points")
PREPARED = Path("data/prepared")
PROFILES = Path("data/profiles")  # of merges, and by what entries read: how long it took
PREVIOUS_METRICS = Path(".dvcfleet/previous_metrics.json")  # the numbers, as the present run found them
PREVIOUS = Path(".dvcfleet/previous")  # the files that they are of: METRICS, EXAMPLES and UNSEEN of then
PUBLISHED = Path("data/measures/published.json")
RANK_STUDIES = Path("data/measures/studies/rank")
RECORDS = Path("data/records")
REPORT = Path("report")
ROUTERS = Path("data/routers")
COST = "cost.json"  # in the folder of a router or of bottlenecks: the examples that went through a network
SCORES = Path("data/scores.json")  # each entry's numbers, task by task
SEARCHES = Path("data/searches")
SEARCH_MEASURES = Path("data/measures/searches")
SERVED = Path("data/served")  # of tasks' models, while a server has them
SOURCES = Path("data/sources")
STATISTICS = Path("data/statistics")
SUMMARY = Path("metrics.json")  # the best entries and their scores, for DVC
SURGERY = Path("data/surgery")
TASK_MEASURES = Path("data/measures/tasks.json")
UNSEEN = Path("data/measures/unseen")
UNSEEN_DATASETS = Path("data/unseen/datasets")
UNSEEN_HEADS = Path("data/unseen/heads")
UNSEEN_PREPARED = Path("data/unseen/prepared")
VALIDATION = Path("data/validation")
VOCABULARIES = Path("data/vocabularies")

SEEDS = "seeds"  # in the folder of what is drawn: a folder for each seed after the first


def seed_folders(folder: Path, seeds: Sequence[int]) -> dict[int, Path]:
    """Return each seed's place in a folder; the first seed's is the folder itself."""
    return {seed: folder / SEEDS / str(seed) if number else folder for number, seed in enumerate(seeds)}


def remove_other_seeds(folder: Path, seeds: Sequence[int]) -> None:
    """Remove the results of seeds that are no longer wanted from a folder that is kept."""
    for place in (folder / SEEDS).glob("*"):
        if place not in seed_folders(folder, seeds).values():
            shutil.rmtree(place)
    if len(seeds) == 1:
        shutil.rmtree(folder / SEEDS, ignore_errors=True)


FLOAT = 4  # bytes of a value in float32
BACKWARD = 3  # passes of a step: forward, and twice as much backward
BLOCKS = 6  # whole passes of a merge block by block, for a network of twelve: each ends behind its block
BASES = 3.5  # bytes of a joint's bases, a byte of one task's deltas
OWN = 1 / 8  # bytes of a task's own part, masks or low rank, a byte of its deltas
VECTORS = 1.5  # bytes of all singular vectors, a byte of the deltas
# What decomposing a task's matrices of width N costs: so many times as much as N tokens on their way through them.
FACTORED, JOINED, PAIRED = 4, 12, 11  # each task by itself; all tasks together; and multiplied in pairs
BY_COST = {"svd": 2, "joint svd": JOINED, "linear system": 2}  # of a merge


@dataclass(frozen=True)
class ComparisonSizes:
    """Known sizes of a comparison whose stages never ran; an unknown one raises LookupError, which names it.

    `sizes`: bytes of each source; `float32`: bytes of each model's values in float32; `picture`: tokens of a
    picture; `measured`, `validation`: examples of each task's splits.
    """

    params: "Params"
    sizes: Mapping[str, float]
    float32: Mapping[str, float]
    picture: int
    measured: Mapping[str, int]
    validation: Mapping[str, int]

    def task(self, name: str) -> str:
        """Return the task at the end of a stage instance's name."""
        return max((task for task in self.params.tasks if f"-{name}".endswith(f"-{task}")), key=len)

    def deltas(self, name: str) -> float:
        """Return the bytes of the deltas of the task at the end of a name."""
        return self.float32[self.params.tasks[self.task(name)].source]

    @property
    def values(self) -> float:
        """Return how many values the base has; if it is none of the sources, those of the largest model."""
        return (self.float32.get(str(self.params.base_source)) or sorted(self.float32.values())[-1]) / FLOAT

    def tokens(self, examples: Mapping[str, int]) -> float:
        """Return the tokens of so many examples of each task."""
        from merganser.evaluation import get_kind

        kinds = {task: get_kind(self.params.tasks[task].kind) for task in examples}
        return sum(count * (kinds[task].TOKENS or self.picture) for task, count in examples.items())

    def all_of(self, split: Mapping[str, int]) -> float:
        """Return the tokens of a split of all tasks that have data."""
        return self.tokens({task: split[task] for task in self.params.measured})

    def decomposed(self, times: float) -> float:
        """Return the tokens that cost as much as decomposing a model of this size so many times.

        It is counted as a transformer of N / 64 blocks, each of four N x N and two N x 4 N matrices, as ViT-B
        and GPT-2 are.
        """
        return times * (64 / 12 * self.values) ** (1 / 3)


Rule = Callable[[ComparisonSizes, str], float]  # of what stands after the @ of a stage's name


def _unknown(_: ComparisonSizes, name: str) -> float:
    raise KeyError(name)


def _nothing(_: ComparisonSizes, name: str) -> float:
    return 0.0


@dataclass(frozen=True)
class StageKind:
    """A kind of stage.

    `writes`: the files and folders that it writes to, one that it may share with other stages.
    `device`: the section of params.yaml that declares what it computes on; nothing where that is always the CPU.
    `by_entry`: each entry of that section declares its own, and the stage's name begins with the entry's.
    `size`: the bytes that it writes, as far as they follow from what is known before any stage ran.
    `tokens`: what it computes, in tokens on their way through a network of the base's size.
    `nameless`: its outputs' bytes are the same whatever the tasks are called, so that a renamed task keeps them.
    """

    writes: tuple[Path, ...]
    device: str | None = None
    by_entry: bool = False
    size: Rule = _unknown
    tokens: Rule = _nothing
    nameless: bool = False


def _base(known: ComparisonSizes, _: str = "") -> float:
    return known.sizes[str(known.params.base_source)]


def _factors(known: ComparisonSizes, name: str) -> float:
    settings = known.params.decompose
    return VECTORS * settings.rank_fraction * known.deltas(name) / (1 if settings.dtype == "float32" else 2)


def _method(entry: "Entry") -> "Method":
    from merganser.registry import get  # imports torch: only where something is expected

    return get(entry.method)


def _merged(known: ComparisonSizes, name: str) -> float:
    """Return the bytes of a merge: the base's, and those of the tasks' parts."""
    method = _method(known.params.methods[name])
    own = 1 if method.name == "individual" else OWN if method.overlay else 0
    return _base(known) + (own * sum(map(known.deltas, known.params.tasks)) if own else 0)


def _decomposed(known: ComparisonSizes, entry: "Entry") -> float:
    """Return the tokens that cost as much as one merge."""
    return known.decomposed(BY_COST.get(_method(entry).cost, 0) * len(known.params.tasks))


def _seeds(known: ComparisonSizes, entry: "Entry") -> int:
    """Return the number of an entry's merges: one per seed if its method draws at random, else one."""
    return len(known.params.seeds) if _method(entry).draws else 1


def _merge(known: ComparisonSizes, name: str) -> float:
    entry = known.params.methods[name]
    return _seeds(known, entry) * _decomposed(known, entry)


def _evaluated(known: ComparisonSizes, name: str) -> float:
    task = known.task(name)
    entry = known.params.methods[name.removesuffix(f"-{task}")]
    return _seeds(known, entry) * known.tokens({task: known.measured[task]})


def _measured_statistics(known: ComparisonSizes, name: str) -> float:
    task = known.task(name)
    about = known.params.statistics[name.removesuffix(f"-{task}")]
    passes = BACKWARD if constants(STATISTIC_KINDS, about.kind).get("BACKWARDS") else 1
    return known.tokens({task: about.examples * passes})


def _learned(known: ComparisonSizes, name: str) -> float:
    from merganser.learning import BlockLearner
    from merganser.registry import get_learner

    learned = known.params.learned[name]
    learner = get_learner(learned.learner)
    settings: Any = learner.settings.model_validate(learned.values)
    if not learner.takes_steps:
        passes = BLOCKS if isinstance(learner, BlockLearner) else 1
        return passes * known.tokens(dict.fromkeys(known.params.measured, settings.examples))
    return BACKWARD * settings.steps * known.tokens(dict.fromkeys(known.params.measured, settings.batch_size))


def _searched(known: ComparisonSizes, name: str) -> float:
    from merganser.config.inputs.from_data import own_of

    search = known.params.searches[name]
    merges = search.evolve.generations * search.evolve.population if search.evolve else int(bool(own_of(search)))
    return merges * (known.all_of(known.validation) + _decomposed(known, search.entry({})))


def _point(known: ComparisonSizes, name: str) -> float:
    from merganser.config.points import points_by_id

    point = points_by_id(known.params)[name]
    split = known.validation if point.split == VALIDATION.name else known.measured
    measured = known.tokens({task: split[task] for task in (*point.tasks, *point.others) if task in split})
    merged = 0.0 if point.entry.reads == CHECKPOINTS.name else _decomposed(known, point.entry)
    return measured + merged * len(point.tasks) / len(known.params.tasks)


def _fractions(known: ComparisonSizes, name: str) -> float:
    task = name.removesuffix("-fractions")
    return len(known.params.studies.rank.fractions) * known.tokens({task: known.measured[task]})


STAGES: Mapping[str, StageKind] = {
    "code": StageKind((CODE,)),
    "fetch_base": StageKind((BASE,), size=_base, nameless=True),
    "fetch": StageKind(
        (CHECKPOINTS, COMPANIONS, SOURCES),
        size=lambda known, name: known.sizes[known.params.tasks[name].source],
        nameless=True,
    ),
    "vocabulary": StageKind((VOCABULARIES,), size=_base),
    "fetch_data": StageKind(
        (DATASETS,), size=lambda known, name: known.sizes[known.params.tasks[name].data.source], nameless=True
    ),
    "extract": StageKind((DELTAS, HEADS), size=ComparisonSizes.deltas, nameless=True),
    "decompose": StageKind(
        (FACTORS,), size=_factors, tokens=lambda known, _: known.decomposed(FACTORED), nameless=True
    ),
    "join": StageKind(
        (JOINTS,),
        size=lambda known, _: BASES * max(map(known.deltas, known.params.tasks)),
        tokens=lambda known, _: known.decomposed(JOINED * len(known.params.tasks)),
        nameless=True,
    ),
    "difference": StageKind((DIFFERENCES,), size=_base, nameless=True),
    "extract_difference": StageKind((DIFFERENCES,), size=ComparisonSizes.deltas, nameless=True),
    "describe": StageKind((EMBEDDINGS,)),
    "merge": StageKind((MERGED, MERGE_PROFILES), "merge", size=_merged, tokens=_merge),
    "prepare": StageKind((PREPARED,), tokens=_unknown, nameless=True),  # decoding is no matter of tokens
    "prepare_validation": StageKind((VALIDATION,), tokens=_unknown, nameless=True),
    "name_classes": StageKind((CLASS_NAMES,)),
    "fetch_head": StageKind((UNSEEN_HEADS,)),
    "prepare_unseen": StageKind((UNSEEN_DATASETS, UNSEEN_PREPARED), tokens=_unknown),
    "statistics": StageKind((STATISTICS, PROFILES / "statistics"), "statistics", True, tokens=_measured_statistics),
    "route": StageKind(
        (ROUTERS, PROFILES / "routers"), "evaluation", tokens=lambda known, _: known.all_of(known.validation)
    ),
    "surgery": StageKind(
        (SURGERY, PROFILES / "surgery"), "evaluation", tokens=lambda known, _: 2 * known.all_of(known.validation)
    ),
    "learn": StageKind((LEARNED, PROFILES / "learned"), "learned", True, tokens=_learned),
    "search": StageKind((SEARCHES, SEARCH_MEASURES, PROFILES / "searches"), "evaluation", tokens=_searched),
    "evaluate": StageKind((EXAMPLES, METRICS), "evaluation", tokens=_evaluated, nameless=True),
    "evaluate_unseen": StageKind((UNSEEN,), "evaluation", tokens=_unknown),
    "measure": StageKind((TASK_MEASURES,), tokens=lambda known, _: known.decomposed(PAIRED * len(known.params.tasks))),
    "measure_merged": StageKind((MERGE_MEASURES,), tokens=lambda known, _: known.decomposed(PAIRED)),
    "point": StageKind((POINTS, PROFILES / "points"), "evaluation", tokens=_point),
    "step": StageKind((POINTS,), "evaluation", tokens=_point),
    "study_rank": StageKind((RANK_STUDIES,), "evaluation", tokens=_fractions, nameless=True),
    "publish": StageKind((PUBLISHED,)),
    "record": StageKind((RECORDS,)),
    "report": StageKind((REPORT, SCORES, SUMMARY)),
}
