"""Localize-and-Stitch without data: put each task's largest entries into the base."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.merging.method import Densities, method
from merganser.operators.masks import stitch
from merganser.operators.ties import trim, vector_cut


@method(
    family="sparse",
    formula=r"\sum_t \frac{m_t}{\sum_j m_j} \odot \Delta_t, "
    r"\quad m_t = \mathbb{1}\big[|\Delta_t| \in \mathrm{top}_d(|\Delta_t|)\big]",
    involvement="VDI",
    efficiency="Low",
    paper="He et al., TMLR 2025, arXiv:2408.13656",
    law="regions that do not overlap appear unchanged; where they do, the tasks share by count",
    by_rows=True,
)
def localize_stitch(layers: LayerSource, *, density: Densities = 0.01) -> Callable[[LayerDeltas], Tensor]:
    """Keep each task's largest entries, and share what several tasks keep equally among them.

    `density` is a share of the whole task vector: the paper's rule where there is no data to learn the regions from.
    An entry that a task left as it was is never its own, even where its other entries are fewer. With a few labelled
    examples, `localize_stitch_learned` learns the regions.
    """
    cut = vector_cut(layers, density)
    return lambda layer: stitch(trim(layer.deltas, cut))
