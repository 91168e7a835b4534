"""The terms of the page, which are explained where they appear, and in a list at the end."""

from typing import NamedTuple


class Term(NamedTuple):
    """A term as the list names it, and its meaning, in plain text."""

    name: str
    text: str


TERMS = {
    "base": Term(
        "base",
        "the model before fine-tuning: the lower reference of a comparison.",
    ),
    "individual": Term(
        "individual",
        "each task's own fine-tuned model, unmerged: the upper reference of a comparison.",
    ),
    "chance": Term(
        "chance",
        "the expected score of drawing each class with the same probability.",
    ),
    "majority": Term(
        "majority",
        "the score of always predicting the most common label.",
    ),
    "delta": Term(
        "delta",
        "a task's fine-tuned model minus the base, parameter by parameter (also: task vector).",
    ),
    "parts": Term(
        "parts per task",
        "parameters that a task keeps in addition to the model shared by all tasks.",
    ),
    "mean": Term(
        "mean",
        "the mean score over the tasks, each measured by its own metric.",
    ),
    "error": Term(
        "± (sampling error)",
        "the standard error of a mean: its expected variation with other test examples of the same tasks.",
    ),
    "within": Term(
        "tied for best",
        "not significantly different from the best in a paired test on the same examples: two-sided p of at least "
        "0.05, after Holm's correction for the number of entries compared with the best.",
    ),
    "beyond": Term(
        "beyond our sampling error",
        "a difference from the published number of more than 1.96 standard errors of ours plus half of the paper's "
        "last digit.",
    ),
    "rank": Term(
        "rank",
        "the range of places an entry may have, by paired tests with every other entry and Holm's correction. "
        "Entries with overlapping ranks may be equally good.",
    ),
    "normalised": Term(
        "of individual",
        "normalised score: the score divided by that of the task's individual model, averaged over the tasks.",
    ),
    "drop": Term(
        "drop rate",
        "the loss of mean score relative to the individual models (DTS's ADR).",
    ),
    "memory": Term(
        "memory per task",
        "additional memory rate (AMR): the bytes on disk that each task adds to the shared model, in per cent of the"
        " merged parameters in float32. One more model for each task is 100 %.",
    ),
    "seconds": Term(
        "seconds",
        "wall time of the merge and of all measurements, searches and training on data for it. Shared decompositions "
        "are not included.",
    ),
    "peak": Term(
        "MiB",
        "peak memory of the merge process.",
    ),
    "front": Term(
        "Pareto front",
        "the entries with the best score for their cost: no entry with the same or less memory per task (in the plot "
        "of times: fewer seconds) scores higher.",
    ),
    "data": Term(
        "V, T, T* (data)",
        "the data an entry used in addition to the checkpoints. V: used validation data. T: adapted on examples "
        "without labels; T*: adapted on the test examples themselves (transductive). No mark: used checkpoints only.",
    ),
    "involvement": Term(
        "data in the survey",
        "the method's class in the survey of merging: no data (NDI), validation data for tuning (VDI), test-time"
        " adaptation (TTA).",
    ),
    "efficiency": Term(
        "efficiency",
        "the method's efficiency in the survey of merging: high, medium or low.",
    ),
    "routed": Term(
        "routed, known, router",
        "routed: scored without the task's label; a router chooses the tasks' parts for each input. "
        "Known: the same merge with the label. Router: the share of inputs sent to their own task.",
    ),
    "effective_rank": Term(
        "effective rank",
        "the exponential of the entropy of the normalised singular values: the number of directions that matter.",
    ),
    "row_spaces": Term(
        "row-space interference",
        "the overlap of the leading row spaces of two tasks' deltas: 0 for orthogonal, 1 for identical directions.",
    ),
    "sti": Term(
        "singular task interference (STI)",
        "the entrywise L1 norm of (UᵀU − I) Σ (VᵀV − I) over the tasks' stacked singular vectors; zero if no "
        "task writes into another's directions.",
    ),
    "agreement": Term(
        "sign agreement",
        "the share of tasks with the majority's sign, averaged over the entries where any task is nonzero.",
    ),
    "joint": Term(
        "joint basis",
        "the singular vectors of all tasks' matrices, concatenated.",
    ),
    "sar": Term(
        "subspace alignment ratio (SAR)",
        "the share of a task's delta in the merged delta's leading directions, which hold all but 5 % of its norm.",
    ),
    "relative_error": Term(
        "relative error",
        "the distance between the rebuilt and the original delta, divided by the norm of the original.",
    ),
}
