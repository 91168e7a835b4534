"""Merge a network's blocks one after another, each from its inputs after the merged blocks before it.

Each merged block is written as a file, so a kill loses one block. Memory holds three models and one block of all tasks.
Legend: T tasks, K inputs of a linear map.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from merganser.checkpoints.kinds import added
from merganser.checkpoints.tensors import Checkpoint, SafetensorsFile
from merganser.checkpoints.views import in_file
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.evaluation.setups import TaskSetup
from merganser.inputs.factors import fingerprint_of, parameter_file_name
from merganser.inputs.layers import LayerDeltas, LayerSource, Side, Statistics
from merganser.learning import BlockLearner, Values
from merganser.learning.settings import BlockSettings
from merganser.models import Network
from merganser.operators.depth import block_of
from merganser.operators.vectors import scaled_mean
from merganser.outputs import remove_others
from merganser.statistics.kinds.gram import BATCH, applied_one_by_one, distinct_inputs, refuse_parts
from merganser.statistics.sampling import Sample
from merganser.workers import map_in_order, threads_wanted

OTHER: Mapping[Side, Side] = {"columns": "rows", "rows": "columns"}  # the side of a map that is shown transposed


@dataclass(frozen=True)
class Block:
    """The linear maps of one block, grouped by their inputs, and all its merged parameters."""

    name: str
    inputs: Mapping[str, int]  # K of each distinct input, by the first map that takes it
    first: Mapping[str, str]  # that map, by all maps
    parameters: Sequence[str]
    later: frozenset[str]  # maps that only later blocks apply: what passes there is done with this one


@dataclass(frozen=True)
class Merged:
    """The merged deltas of linear maps, the order of the blocks, and the number of examples in the forward passes."""

    values: Values
    blocks: Sequence[Block]
    forwards: int


class _PassedError(Exception):
    """End a forward pass after the block that is measured."""


@dataclass(frozen=True)
class BlockMerging:
    """A merge block by block: learner, layers, base, and each task's network and examples, in the tasks' order.

    `layers` include batch-normalisation statistics, which are averaged.
    """

    learner: BlockLearner
    settings: BlockSettings
    layers: LayerSource
    base: Checkpoint
    setups: Sequence[TaskSetup]
    samples: Sequence[Sample]

    def run(self, folder: Path, origin: str, say: Callable[[int, int], None]) -> Merged:
        """Merge all blocks; reuse those in `folder` that were merged from the same `origin`.

        `say` takes the number of finished blocks and of all blocks.
        """
        blocks, values = self.blocks(), Values()
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir() if path.is_dir()}  # of other seeds
        remove_others(folder, others | {parameter_file_name(block.name) for block in blocks})
        measured = {name for block in blocks for name in block.first}
        averages = {name: scaled_mean(self._layer(name)) for name in self.layers.names if name not in measured}
        for number, block in enumerate(blocks):
            say(number, len(blocks))
            file = folder / parameter_file_name(block.name)
            if fingerprint_of(file) != origin:
                merged = self._merged(block, averages | values)
                save_tensors(file, merged, json.dumps({"fingerprint": origin}))
            stored = SafetensorsFile(file)
            values |= {name: stored.read(name) for name in stored.names}
        return Merged(values, blocks, len(blocks) * sum(map(len, self.samples)))

    def blocks(self) -> list[Block]:
        """Find the blocks in the order of a forward pass; raise InputError if a block applies none of its maps."""
        setup = self.setups[0]
        setup.load(in_file(self.base, ((name, self.base.read(name)) for name in self.base.names)))
        maps = {name for name, kind in self.layers.kinds.items() if kind == "matrix"}
        refuse_parts(setup.network, maps)
        in_order = blocks_in_order(setup.network, self.samples, maps, self.layers.names)
        if not in_order:
            raise InputError("no matrix that is merged is a linear map of this network; see parameters.merged")
        return in_order

    def _merged(self, block: Block, before: Values) -> Values:
        """Merge a block's maps, given the merged deltas of all blocks before it."""
        own = {name: self._layer(name) for name in block.parameters}
        grams: dict[str, list[Tensor]] = {first: [] for first in block.inputs}
        for number, (setup, sample) in enumerate(zip(self.setups, self.samples, strict=True)):
            setup.load(self._model({**before, **{name: layer.deltas[number] for name, layer in own.items()}}))
            for first, gram in block_grams(setup.network, sample, block).items():
                if not gram.isfinite().all():
                    raise InputError(
                        f"{sample.task}: the input of {first} is NaN or infinite behind the merged blocks before it"
                    )
                grams[first].append(gram)
        sides = self.setups[0].network.linear_maps()

        def merge(name: str) -> Tensor:
            side = OTHER[sides[name]] if name in self.base.transposed else sides[name]
            statistics = Statistics({"gram": torch.stack(grams[block.first[name]])}, side)
            return self.learner.merge(replace(own[name], statistics=statistics), self.settings).contiguous()

        return dict(zip(block.first, map_in_order(merge, block.first, threads_wanted()), strict=True))

    def _model(self, deltas: Values) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters of the base plus these deltas, in the layout of the base's file."""
        read = ((name, self.base.read(name)) for name in self.base.names)
        return in_file(self.base, ((n, added(value, deltas[n]) if n in deltas else value) for n, value in read))

    def _layer(self, name: str) -> LayerDeltas:
        layer = self.layers.layer(name)
        assert isinstance(layer, LayerDeltas)
        return layer


def block_name(name: str) -> str:
    """Return the block of a parameter: its name up to the first number, or all of it outside blocks.

    >>> block_name("encoder.layer.3.output.dense.weight"), block_name("visual.proj")
    ('encoder.layer.3', 'visual.proj')
    """
    block = block_of(name)
    return f"{block[0]}.{block[1]}" if block else name


def blocks_in_order(
    network: Network, samples: Sequence[Sample], maps: Collection[str], parameters: Collection[str]
) -> list[Block]:
    """Group the maps that a loaded network applies by block, in the order of a forward pass.

    It runs as many examples as that takes. `parameters`: those of all blocks.
    """
    groups, applied = distinct_inputs(network, samples, maps), applied_maps(network, samples, maps)
    in_order = []
    for name in dict.fromkeys(map(block_name, applied)):
        inside = [([each for each in members if block_name(each) == name], size) for members, size in groups]
        last = max(place for place, each in enumerate(applied) if block_name(each) == name)
        in_order.append(
            Block(
                name,
                inputs={members[0]: size for members, size in inside if members},
                first={each: members[0] for members, _ in inside for each in members},
                parameters=[each for each in parameters if block_name(each) == name],
                later=frozenset(applied[last + 1 :]) - frozenset(applied[: last + 1]),
            )
        )
    return in_order


@torch.inference_mode()
def applied_maps(network: Network, samples: Sequence[Sample], maps: Collection[str]) -> list[str]:
    """Name these maps in the order in which a forward pass applies them, once for each call.

    Maps that only later examples reach follow the map that precedes them in such a pass.
    """
    passes = ([name for name, _ in rows_of] for rows_of in applied_one_by_one(network, samples, maps))
    applied = next(passes, [])
    for names in passes:
        place = 0
        for name in names:
            if name not in applied:
                applied.insert(place, name)
            place = applied.index(name) + 1
    return applied


@torch.inference_mode()
def block_grams(network: Network, sample: Sample, block: Block) -> dict[str, Tensor]:
    """Return the mean of x x^T (K, K) over all rows of all examples for each input of a block; 0 without rows.

    Passes end after the block. Texts that are scored one by one run one by one here too: a batch would end at its
    first.
    """
    sums = {name: torch.zeros(size, size, device=network.device) for name, size in block.inputs.items()}
    counts = Counter[str]()

    def take(name: str, rows: Tensor) -> None:
        if name in block.later:
            raise _PassedError
        if name in sums:
            values = rows.float()
            sums[name].addmm_(values.T, values)
            counts[name] += len(rows)

    alone = getattr(network, "batching", None) == "single"
    for inputs in sample.batches(network, 1 if alone else BATCH):
        with suppress(_PassedError), network.watch(take):
            network.features(inputs)
    return {name: total.div(max(counts[name], 1)).cpu() for name, total in sums.items()}
