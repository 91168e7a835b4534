"""WUDI-Merging: the merged delta that interferes least with what each task's own delta does."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.descent import adam
from merganser.merging.method import Count, LearningRate, Scaling, method, spaced
from merganser.operators.angles import squared_lengths
from merganser.operators.interference import interference, minimum
from merganser.operators.sums import total
from merganser.operators.vectors import scaled_mean


@method(
    family="spectral",
    formula=r"\lambda \operatorname{argmin}_M \sum_t \frac{\lVert (M - \Delta_t) \Delta_t^\top \rVert_F^2}"
    r"{\lVert \Delta_t \rVert_F^2}",
    paper="Cheng et al., ICML 2025, arXiv:2503.08099",
    law="tasks whose rows are orthogonal to each other's are added up; one task is its own model",
    cost="gradient steps",
    vectors=scaled_mean,
    searched={"scaling": spaced(0.1, 1.5, 0.1)},
    copies=9,
)
def wudi(
    layer: LayerDeltas, *, steps: Count = 300, lr: LearningRate = 1e-5, solve: bool = False, scaling: Scaling = 1.0
) -> Tensor:
    """Begin with the sum of the deltas, and reduce by Adam how much it interferes with each task.

    A linear map's inputs lie nearly in the span of its delta's rows, so the rows stand for the inputs. The steps end
    before the minimum is reached: `lr` is in units of the weights, which move by at most about `steps` times `lr`.
    `solve: true` gives the minimum itself instead. The authors' first code divides by each norm, not by its square, and
    leaves all but linear maps at the base's weights; FusionBench averages these, as here.
    """
    if solve:
        least = minimum(layer.deltas)
        return (scaling * least.coordinates @ least.axes.mT).to(layer.dtype)
    quadratic = interference(layer.deltas, squared_lengths(layer.deltas).tolist())
    return (scaling * adam(total(layer.deltas), quadratic.gradient, steps, lr)).to(layer.dtype)
