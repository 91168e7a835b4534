"""The lines of Python that load and run a merge whose network computes more than its parameters say."""

from merganser.merging.method import Method
from merganser.plugins import FAMILIES, constants

PICTURES = "zero-shot-image-classification"  # of families whose class heads are made of prompts
OPEN = """from pathlib import Path
{imported}
from merganser.at_run_time import running
from merganser.models import open_network

folder = Path(".")  # where these files lie
{head}network = open_network("{family}", folder{outputs})
with running(network, folder{given}) as (network, _):
"""
IMPORTED_PICTURES = "from PIL import Image"
RUN_PICTURES = """    network.head([["a photo of a cat."], ["a photo of a dog."]])  # the prompts of each class
    print(network.logits({"pixels": network.pixels([Image.open("picture.png")])}).argmax(dim=1))"""
IMPORTED_TEXTS = "from merganser.inputs.heads import read_head"
HEAD = 'head = read_head(Path("{task}.safetensors"))  # of data/heads, where it was merged\n'
RUN_TEXTS = """    print(network.logits(network.encode(["a text"], 128)).argmax(dim=1))"""


def usage(method: Method, family: str, task: str) -> str:
    """Return the section of a model card that shows them, for one of the tasks; nothing for any other method."""
    if method.at_run_time is None:
        return ""
    pictures = PICTURES in constants(FAMILIES, family)["PIPELINES"].values()
    given = f', task="{task}"' if method.at_run_time.TASK_GIVEN else ""
    lines = OPEN.format(
        imported=IMPORTED_PICTURES if pictures else IMPORTED_TEXTS,
        head="" if pictures else HEAD.format(task=task),
        family=family,
        outputs="" if pictures else ", outputs=len(head.classes)",
        given=given if pictures else f"{given}, head=head",
    )
    told = "Parameters alone do not hold this merge; with Merganser installed, these lines run it"
    known = f"so is the task, here {task}" if given else "the task is not: each input is routed"
    run = RUN_PICTURES if pictures else RUN_TEXTS
    return f"## Use\n\n{told}. Each task's class head is given, {known}.\n\n```python\n{lines}{run}\n```"
