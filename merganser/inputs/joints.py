"""The cache of joint decompositions: for each matrix parameter one file with the joint basis of all tasks' matrices.

Like the factor cache, each file holds a fingerprint of the deltas, the settings and the code it was computed from. The
folder also holds the deltas, so that a merge reads one folder only.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import torch

from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.code_digest import code_digest
from merganser.inputs.deltas import Deltas, open_deltas
from merganser.inputs.embeddings import link_file
from merganser.inputs.factors import fingerprint_from, fingerprint_of, parameter_file_name
from merganser.inputs.layers import MERGE_WORK, Layer, LayerDeltas, LayerSource, MappedLayers, Side
from merganser.linalg import joint
from merganser.linalg.decompositions import Basis
from merganser.outputs import remove_others
from merganser.workers import map_in_order, one_blas_thread

CODE = "merganser.linalg.joint"  # the module that computes the bases
BASES, DELTAS = "bases", "deltas"  # folder names


def join(deltas: Deltas, side: Side, folder: Path, threads: int = 1) -> tuple[int, int]:
    """Fill a folder with the bases of the tasks' matrices; return how many were computed, and how many were up to date.

    `side`: join the matrices side by side (rows), or their transposes (columns). `threads`: layers in parallel.
    Adapters get no basis: decomposing their factors takes no longer than reading one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    matrices = [name for name, kind in deltas.kinds.items() if kind == "matrix" and not deltas.is_low_rank(name)]
    remove_others(folder, {parameter_file_name(name) for name in matrices})

    def join_one(name: str) -> bool:
        return _join_one(deltas.layer(name), side, folder / parameter_file_name(name))

    with one_blas_thread(), torch.inference_mode():
        bytes_each = MERGE_WORK * 4 * len(deltas.tasks)
        done = sum(map_in_order(join_one, matrices, threads, lambda name: bytes_each * prod(deltas.shapes[name])))
    return done, len(matrices) - done


def _join_one(layer: Layer, side: Side, path: Path) -> bool:
    """Decompose one matrix of all tasks; return False if its file was up to date."""
    assert isinstance(layer, LayerDeltas)
    fingerprint = fingerprint_from(f"{code_digest(CODE)} {side} {tuple(layer.deltas.shape)}", layer.deltas)
    if fingerprint_of(path) == fingerprint:
        return False
    factors = joint.joint(layer.deltas if side == "rows" else layer.deltas.mT)
    save_tensors(path, {"ut": factors.u.mT, "s": factors.s}, json.dumps({"fingerprint": fingerprint}))
    return True


def link_deltas(files: Mapping[str, Path], folder: Path) -> None:
    """Hard-link the tasks' files of deltas into a folder; copy them if that fails."""
    for task, path in files.items():
        link_file(path, folder / f"{task}.safetensors")


def open_joint(folder: Path, tasks: list[str], seed: int = 0) -> LayerSource:
    """Open `<folder>/deltas/<task>.safetensors` of each task as layers with their basis."""
    return MappedLayers(open_deltas(folder / DELTAS, tasks, seed), partial(_with_basis, folder=folder / BASES))


def _with_basis(layer: Layer, folder: Path) -> Layer:
    if not isinstance(layer, LayerDeltas) or layer.kind == "vector":
        return layer
    file = SafetensorsFile(folder / parameter_file_name(layer.name))
    return replace(layer, basis=Basis(file.read("ut").mT, file.read("s")))
