"""DTS for unseen tasks: a task that was never fine-tuned borrows from those whose class names are similar."""

from collections.abc import Callable
from dataclasses import replace

from merganser.inputs.layers import LayerDeltas, LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, Truncation, method
from merganser.operators.coefficients import triples_kept
from merganser.operators.sums import similarities
from merganser.overlays.budget import ADAPTIVE, THRESHOLDED
from merganser.overlays.parts import Parts
from merganser.overlays.thresholded import thresholded_parts, thresholded_vectors


@method(
    family="compressed",
    formula=r"\sum_{n \ne t} \gamma_n \hat U_n \Sigma_n \hat V_n^\top, "
    r"\quad \gamma_n = \cos(E_t, E_n) \big/ \sum_{j \ne t} \cos(E_t, E_j)",
    paper="Stay Unique, Stay Efficient (DTS), 2025, arXiv:2512.01461",
    law="with one other task a task gets that task's delta",
    embeddings=True,
    vectors="alike",
    rank_fraction=THRESHOLDED.share_needed,
    within=ADAPTIVE,
)
def dts_unseen(
    layers: LayerSource, *, rank_fraction: Truncation = 0.3, ratio: PositiveFraction = 0.01
) -> Callable[[LayerFactors | LayerDeltas], Parts]:
    """Evaluate each task as unseen: give it the other tasks' deltas as dts_t keeps them, weighted by similarity.

    So its score says what a task gets that has no fine-tuned model: each task is left out in turn, and no part
    of its own is used. The similarity is the cosine between the mean text embeddings of the tasks' class names, as a
    share of all the others' (DTS, equation 8). `rank_fraction` and `ratio` are those of dts_t.
    """
    share = THRESHOLDED.share(layers, rank_fraction, ratio)
    embeddings = {task: layers.table.embeddings[task] for task in layers.tasks}
    mixtures = {task: similarities(task, embeddings) for task in embeddings}

    def merge(layer: LayerFactors | LayerDeltas) -> Parts:
        if isinstance(layer, LayerDeltas):
            parts = thresholded_vectors(layer)
        else:
            parts = thresholded_parts(layer, triples_kept(layer, share))
        return replace(parts, mixtures=mixtures)

    return merge
