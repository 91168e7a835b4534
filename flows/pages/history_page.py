"""The page of a comparison's history: one HTML file that loads nothing."""

from dataclasses import dataclass

from merganser.flows.evidence.runs.history import SavedPoint
from merganser.flows.evidence.runs.printing import as_page, by_entry

WIDTH, HEIGHT = 1000, 320  # of the drawing, without its margin
_COLOURS = ("#2f6db5", "#c2662d", "#2f8f6b", "#8a4fa3", "#b8442a", "#6b7280", "#a3862a", "#2a8fa3")
_DASHES = ("", "9 4", "2 3", "9 3 2 3")  # of SVG's lines; the first is whole


@dataclass(frozen=True)
class EntryCurve:
    """An entry's mean over the runs: the points of its line in the plot, and those where it fell.

    Colour, dashes and hollow points tell 64 entries apart.
    """

    entry: str
    colour: str
    dashes: str
    is_hollow: bool
    points: tuple[tuple[float, float], ...]
    worse: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """Return the line's points as SVG writes them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


def curves(points: list[SavedPoint]) -> tuple[list[EntryCurve], tuple[float, float]]:
    """Return each entry's line, and the lowest and highest mean, which are the limits of the plot."""
    means = [mean for point in points for mean, _ in point.scores.values()]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    step, span = WIDTH / max(len(points) - 1, 1), (high - low) or 1.0
    places = {point.commit: number * step for number, point in enumerate(points)}
    entry_curves = []
    for number, (entry, series) in enumerate(by_entry(points).items()):
        at = [(places[point.commit], HEIGHT * (high - mean) / span, point) for point, mean in series]
        worse = tuple((x, y) for x, y, point in at if any(line.entry == entry for line in point.worse))
        entry_curves.append(EntryCurve(entry, *_look(number), tuple((x, y) for x, y, _ in at), worse))
    return entry_curves, (low, high)


def _look(number: int) -> tuple[str, str, bool]:
    """Return the colour, the dashes and whether points are hollow, for the line with this number."""
    dashes, colour = divmod(number, len(_COLOURS))
    hollow, dashes = divmod(dashes, len(_DASHES))
    return _COLOURS[colour], _DASHES[dashes], hollow % 2 == 1


def history_page(points: list[SavedPoint]) -> str:
    """Return the page of a history."""
    lines, (low, high) = curves(points)
    size = {"low": low, "high": high, "width": WIDTH, "height": HEIGHT}
    return as_page("history", points=points[::-1], curves=lines, entries=list(by_entry(points)), **size)
