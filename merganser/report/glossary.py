"""The terms of the page: each is explained where it stands, and all together at the end."""

from typing import NamedTuple


class Term(NamedTuple):
    """A term as the list at the end names it, and what it means, in plain text."""

    name: str
    text: str


TERMS = {
    "base": Term(
        "base",
        "the model before fine-tuning, unmerged: the lower mark of a comparison.",
    ),
    "individual": Term(
        "individual",
        "each task by its own fine-tuned model, unmerged: the upper mark of a comparison.",
    ),
    "chance": Term(
        "chance",
        "what each class drawn with the same probability, whatever the example, scores on average.",
    ),
    "majority": Term(
        "majority",
        "what always answering the commonest class among the labels scores.",
    ),
    "delta": Term(
        "delta",
        "a task's fine-tuned model minus the base, parameter by parameter (also: task vector).",
    ),
    "parts": Term(
        "parts per task",
        "what a task keeps of its own beside the model that all tasks share.",
    ),
    "mean": Term(
        "mean",
        "the mean over the tasks of their scores, each task's by its own metric.",
    ),
    "error": Term(
        "± (sampling error)",
        "the standard error of a mean: how much it would vary with other test examples of the same tasks.",
    ),
    "within": Term(
        "within the error",
        "not told apart from the best by a paired test on the same examples: two-sided p of at least 0.05, after "
        "Holm's correction for the number of entries that are compared with this best one.",
    ),
    "beyond": Term(
        "beyond our sampling error",
        "further from what a paper reports than 95 % of other test examples of these tasks would put our number, and "
        "than the paper rounds.",
    ),
    "rank": Term(
        "rank",
        "from how many entries are better, to how many are no worse, by more than chance: paired tests of the "
        "entry with every other one, with Holm's correction. Entries whose ranks overlap may be equally good.",
    ),
    "normalised": Term(
        "of individual",
        "normalised score: the mean over the tasks of the score divided by that of the task's individual model.",
    ),
    "drop": Term(
        "drop rate",
        "how far the mean lies below the individual models' mean, as a share of the latter (DTS's ADR).",
    ),
    "memory": Term(
        "memory per task",
        "additional memory rate (AMR): the bytes that are kept for each task beside the shared model, measured on"
        " disk, in per cent of the bytes of the merged parameters in float32. One more model for each task is 100"
        " %.",
    ),
    "seconds": Term(
        "seconds",
        "wall time of the merge, and of what was measured, learned, searched or trained on data for it. "
        "Decompositions, which many entries share, are not counted.",
    ),
    "peak": Term(
        "MiB",
        "peak memory of the process that merged.",
    ),
    "front": Term(
        "Pareto front",
        "the entries that no other one beats with as few bytes per task or fewer (in the plot of times: seconds).",
    ),
    "data": Term(
        "V, T, T* (data)",
        "what an entry had beside the checkpoints. V: validation data. T: it was adapted on examples without "
        "their labels; T*: on the very examples that are measured (transductive). No mark: the checkpoints alone.",
    ),
    "involvement": Term(
        "data in the survey",
        "how the survey of merging classes the method: no data (NDI), validation data for tuning (VDI), test-time"
        " adaptation (TTA).",
    ),
    "efficiency": Term(
        "efficiency",
        "how the survey of merging classes the method's cost: high, medium or low.",
    ),
    "routed": Term(
        "routed, known, router",
        "routed: scored without the task's label, each input given to the tasks' parts by what it looks like. "
        "Known: the same merge with the label. Router: how often an input goes to its own task.",
    ),
    "effective_rank": Term(
        "effective rank",
        "the exponential of the entropy of the singular values' shares: how many directions count.",
    ),
    "row_spaces": Term(
        "row-space interference",
        "how far the leading row spaces of two tasks' deltas overlap: 0 for orthogonal ones, 1 for identical "
        "directions.",
    ),
    "sti": Term(
        "singular task interference (STI)",
        "the entrywise L1 norm of (UᵀU − I) Σ (VᵀV − I) over the tasks' stacked singular vectors; zero where no "
        "task writes into another's directions.",
    ),
    "agreement": Term(
        "sign agreement",
        "the share of tasks with the majority's sign, the mean over the entries where a task has one.",
    ),
    "joint": Term(
        "joint basis",
        "the singular vectors of all tasks' matrices set side by side.",
    ),
    "sar": Term(
        "subspace alignment ratio (SAR)",
        "the share of a task's delta that lies in the directions of the merged one, as many as hold 95 % of its norm.",
    ),
    "relative_error": Term(
        "relative error",
        "the distance of a rebuilt delta from the task's own, over the norm of the latter.",
    ),
}
