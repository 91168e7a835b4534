"""The fine-tuned models themselves: the upper bound."""

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import method
from merganser.operators.vectors import whole
from merganser.overlays.parts import Parts


@method(
    family="references",
    formula=r"\Delta_t",
    paper="none (the fine-tuned models)",
    law="each task gets its own model exactly",
)
def individual(layer: LayerDeltas) -> Parts:
    """Give each task its own delta whole."""
    return whole(layer)
