"""An input is a section of params.yaml, what is checked of it, how it is opened, and the stage that makes it."""

from pathlib import Path

import torch
import yaml

from merganser.checkpoints.reading import open_checkpoint
from tests.chapters import PYTEST, Copy

SETTINGS = '''class Scaled(Strict):
    """The tasks' deltas times a number."""

    by: float


'''
INPUT = '''class ScaledInput(Input):
    """The tasks' deltas times a number, in place of the deltas."""

    name = "scaled"

    def source_mistakes(self, params: Params, entry: Entry, method: "Method") -> Iterator[Mistake]:
        """Check that they are there, and that the method reads deltas."""
        name = entry.named(self.name)
        if name is None or method.reads != "deltas":
            yield other_source(entry, method)
        else:
            yield from name_mistakes(self.name, params.scaled, name, entry.reads)


'''
MODULE = '''
"""Scale the tasks' deltas by a number."""

import json

from merganser.checkpoints.writing import write_checkpoint
from merganser.config.params import Params
from merganser.inputs.deltas import DeltaFile
from merganser.outputs import fresh_folder
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import DELTAS, SCALED


@stage("scaled")
def main(params: Params, name: str) -> None:
    """Write each task's deltas times the number of one name in params.yaml."""
    by = params.scaled[name].by
    with fresh_folder(SCALED / name) as folder:
        for task in params.tasks:
            file = DeltaFile(DELTAS / f"{task}.safetensors")
            tensors = ((each, by * file.read(each)) for each in file.names)
            write_checkpoint(folder / f"{task}.safetensors", file.specs, tensors, json.dumps(file.index))


if __name__ == "__main__":
    run_main(main)
'''
STAGE = """  scale:
    foreach: ${scaled}
    do:
      desc: scale all tasks' deltas by a number
      cmd: python -m merganser.tasks.scale @
      deps: [data/code/scale.txt, data/deltas]
      params: ["scaled.${key}", tasks]
      outs: ["data/scaled/${key}"]

"""
LINES = {
    "merganser/config/sections.py": {"class Statistic(": SETTINGS},
    "merganser/config/params.py": {
        "    joints: dict[": "    scaled: dict[str, Scaled] = Field(default={})\n",
        "    Search,\n": "    Scaled,\n",
    },
    "merganser/config/inputs/deltas.py": {"class JointsInput(": INPUT},
    "merganser/config/inputs/__init__.py": {"JointsInput\n": "ScaledInput, ", "JointsInput()": "ScaledInput(), "},
    "tasks/opening.py": {'    "joints": Opening': '    "scaled": Opening(_models),\n'},
    "tasks/stages.py": {
        "JOINTS = ": 'SCALED = Path("data/scaled")\n',
        '    "join": ': '    "scale": StageKind((SCALED,)),\n',
    },
    "dvc.yaml": {"joints: {}": "scaled: {}, ", "  join:\n": STAGE},
    "tests/config/test_inputs.py": {'        "joints": {"x"': '        "scaled": {"x": {"by": 0.5}},\n'},
}
MERGE = """
from pathlib import Path
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.tasks import merge, scale
scale.main(["x"])
merge.main(["half"])
Path("params.yaml").write_text(Path("params.yaml").read_text().replace("scaled/x", "scaled/y"))
try:
    load_params()
except InputError as error:
    print(error)
"""


def test_an_input_is_a_section_its_checks_its_opening_and_a_stage(folder: Path, tmp_path: Path) -> None:
    copy = Copy(tmp_path / "code", "Add an input", "Add a stage")
    copy.add("tasks/scale.py", MODULE)
    for path, inserted in LINES.items():
        for before, text in inserted.items():
            copy.insert(path, text, before)
    done = copy.run(*PYTEST, "tests/config/test_inputs.py", folder=copy.folder)
    assert done.returncode == 0, done.stdout[-3000:]
    params = yaml.safe_load(Path("params.yaml").read_text()) | {"scaled": {"x": {"by": 0.5}}}
    params["methods"] |= {"half": {"method": "average", "reads": "scaled/x"}}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    done = copy.run("-c", MERGE, folder=folder)
    assert done.returncode == 0, done.stderr
    base, whole, half = (open_checkpoint(Path("data", name)) for name in ("base", "merged/average", "merged/half"))
    for name in base.names:
        delta = (whole.read(name) - base.read(name)) / 2
        assert torch.allclose(half.read(name) - base.read(name), delta, atol=1e-6), name
    assert "methods.half.reads: no 'y' under scaled, there are x" in done.stdout
