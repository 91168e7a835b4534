"""The lines of Python that load and run a merge whose network computes more than its parameters say."""

from merganser.merging.method import Method
from merganser.plugins import FAMILIES, constants

MODULES = {"routers": ("experts", "routed"), "surgery": ("surgery", "with_bottleneck"), None: ("", "")}
PICTURES = "zero-shot-image-classification"  # of families whose class heads are made of prompts
OPEN = """from pathlib import Path
{imports}
from merganser.models import open_network
from merganser.routed.{module} import {name}

folder = Path(".")  # where these files lie
{head}network = open_network("{family}", folder{outputs})
{load}with {name}(network, folder{given}):
{run}"""
RUN_PICTURES = """    network.head([["a photo of a cat."], ["a photo of a dog."]])  # the prompts of each class
    print(network.logits({"pixels": network.pixels([Image.open("picture.png")])}).argmax(dim=1))"""
RUN_TEXTS = """    print(network.logits(network.encode(["a text"], 128)).argmax(dim=1))"""


def usage(method: Method, family: str, task: str) -> str:
    """Return the section of a model card that shows them, for one of the tasks; nothing for any other method."""
    if method.family != "routed":
        return ""
    surgery, pictures = method.beside == "surgery", PICTURES in constants(FAMILIES, family)["PIPELINES"].values()
    imports = ["from PIL import Image"] if pictures else ["from merganser.inputs.heads import read_head"]
    imports += ["from merganser.overlays import task_model"] if surgery else []
    module, name = MODULES[method.beside]
    module, name = ("gates", "gated") if method.gated else ("blocks", "blended") if method.blended else (module, name)
    head = "" if pictures else f'head = read_head(Path("{task}.safetensors"))  # of data/heads, where it was merged\n'
    given = "" if pictures else ", head"
    model = f'task_model(folder, "{task}")'
    load = f"network.load({model if pictures else f'head.put_on({model})'})\n" if surgery else ""
    lines = OPEN.format(
        imports="\n".join(imports),
        module=module,
        name=name,
        head=head,
        family=family,
        outputs="" if pictures else ", outputs=len(head.classes)",
        load=load,
        given=f', "{task}"' if surgery else given,
        run=RUN_PICTURES if pictures else RUN_TEXTS,
    )
    intro = "Parameters alone do not hold this merge; with Merganser installed, these lines run it"
    known = f"so is the task, here {task}" if surgery else "the task is not: each input is routed"
    return f"## Use\n\n{intro}. Each task's class head is given, {known}.\n\n```python\n{lines}\n```"
