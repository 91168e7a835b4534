"""Localize-and-Stitch with data: put the entries of each task that were learned to matter into the base."""

from collections.abc import Callable

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.learning.applying import applied
from merganser.learning.learners import localize_stitch_learned as learner
from merganser.merging.method import method


@method(
    family="learned",
    formula=r"\sum_t \frac{m_t}{\sum_j m_j} \odot \Delta_t, \quad m_t = \mathbb{1}[x_t > 0], \quad "
    r"x_t = \mathrm{argmin}_x \mathbb{E}_t\, \ell(W_0 + \sigma(x) \odot \Delta_t) + \lambda \lVert \sigma(x) \rVert_1",
    paper="He et al., TMLR 2025, arXiv:2408.13656",
    law="all regions everywhere give the average, only one task's its own model, none the base",
    involvement="VDI",
    efficiency="Low",
    learned=True,
    weighted=False,
)
def localize_stitch_learned(layers: LayerSource) -> Callable[[LayerDeltas], Tensor]:
    """Keep the entries of each task that its own model needs, and share what several tasks keep equally among them.

    The stage `learn` finds a logit per task and entry, from few labelled examples of each class: it starts at the
    regions of `localize_stitch`, and an L1 penalty keeps them small.
    """
    return applied(layers, learner)
