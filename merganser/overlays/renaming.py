"""Give the tasks of an overlay file other names: its index names them, the values stay where they are."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from merganser.checkpoints.safetensors_file import SafetensorsFile
from merganser.outputs import replacing
from merganser.overlays.index import ParameterParts, header_of, parse, stored_tensors


def rename_tasks(path: Path, names: Mapping[str, str]) -> None:
    """Replace an overlay file by the one that a merge of tasks of these names writes; `names`: new ones by old ones.

    The order of the names must stay, since the tasks' values lie in it.
    """
    file = SafetensorsFile(path)
    index = parse(file.metadata["merganser"])
    named = {task: names.get(task, task) for task in index.tasks}
    renamed = replace(
        index,
        tasks=tuple(named.values()),
        rows={
            parameter: ParameterParts(row.form, {named[task]: count for task, count in row.counts.items()})
            for parameter, row in index.rows.items()
        },
        mixtures={
            named[task]: {named[other]: weight for other, weight in weights.items()}
            for task, weights in index.mixtures.items()
        },
    )
    with open(path, "rb") as source, replacing(path) as out:
        out.write(header_of(renamed, stored_tensors(renamed)))
        source.seek(8 + int.from_bytes(source.read(8), "little"))
        shutil.copyfileobj(source, out)
