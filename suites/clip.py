"""Write the clip-vit suites out of one: `python suites/clip.py`, after an edit of clip-vit-b-32-20.

The nine differ by the model and by how many of the 20 tasks they take. Class names, prompts and entries are written
once, in clip-vit-b-32-20/params.yaml, and what is searched in its grids.yaml from `decompose` on.
"""

import re
from pathlib import Path

SUITES = Path(__file__).parent
MODEL, COUNT = "clip-vit-b-32", 20
MODELS = {MODEL: "CLIP ViT-B/32", "clip-vit-b-16": "CLIP ViT-B/16", "clip-vit-l-14": "CLIP ViT-L/14"}
COUNTS = (8, 14, COUNT)
TASKS, REST = "\ntasks:", "\ndecompose:"
EDIT = "# `python suites/clip.py` derives the other clip-vit suites from this file: edit here, and run it.\n"
DERIVED = "# `python suites/clip.py` derives this file from clip-vit-b-32-20: edit there, and run it.\n"


def derive(text: str, model: str, count: int) -> str:
    """Return a params.yaml for another model, and the first tasks."""
    head, _, rest = text.partition(TASKS)
    tasks, _, rest = rest.partition(REST)
    title, *blocks = re.split(r"^(?=  \w+:\n)", tasks, flags=re.MULTILINE)
    whole = f"{head}{TASKS}{title}{''.join(blocks[:count])}".rstrip("\n") + f"\n{REST}{rest}"
    renamed = whole.replace(f"{MODEL}-{COUNT}", f"{model}-{count}").replace(MODEL, model)
    return renamed.replace(f"{MODELS[MODEL]}, {COUNT}", f"{MODELS[model]}, {count}")


def write(folder: Path) -> None:
    """Write all but what is edited by hand."""
    source = folder / f"{MODEL}-{COUNT}"
    params, grids = (source / "params.yaml").read_text(), (source / "grids.yaml").read_text()
    grids = params.partition(REST)[0].replace(EDIT, DERIVED) + REST + grids.partition(REST)[2]
    for model in MODELS:
        for count in COUNTS:
            place = folder / f"{model}-{count}"
            if place != source:
                (place / "params.yaml").write_text(_derived(params, model, count))
            (place / "grids.yaml").write_text(_derived(grids, model, count))


def _derived(text: str, model: str, count: int) -> str:
    """Derive, but for the line that says where a file comes from."""
    head = text.partition("\n")[0].replace(MODELS[MODEL], MODELS[model]).replace(str(COUNT), str(count), 1)
    body = text.partition("\n")[2].removeprefix(EDIT).removeprefix(DERIVED)
    return f"{head}\n{DERIVED}{derive(body, model, count)}"


if __name__ == "__main__":
    write(SUITES)
