"""Write the head of each grids.yaml out of the params.yaml beside it: `python suites/grids.py`, after an edit of one.

What is compared, all above `decompose`, is written once, in a suite's params.yaml; what is searched stands in its
grids.yaml from there on. Those without the note are left alone: clip.py writes those of the nine clip-vit suites.
"""

from pathlib import Path

SUITES = Path(__file__).parent
REST = "\ndecompose:"
NOTE = "# `python suites/grids.py` writes what is above `decompose` out of params.yaml: edit there, and run it.\n"


def write(folder: Path) -> None:
    """Write the head of every grids.yaml that has the note."""
    for path in sorted(folder.glob("*/grids.yaml")):
        params, grids = path.with_name("params.yaml").read_text(), path.read_text()
        title, _, head = params.partition(REST)[0].partition("\n")
        if grids.partition("\n")[2].startswith(NOTE):
            path.write_text(f"{title}\n{NOTE}{head}{REST}{grids.partition(REST)[2]}")


if __name__ == "__main__":
    write(SUITES)
