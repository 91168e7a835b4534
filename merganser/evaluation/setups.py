"""One task's evaluation, opened: its network, head and prepared data."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.evaluator import Evaluator, evaluator_for
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.inputs.heads import Head
from merganser.models import DeviceName, NamesInputs, Network, Precision, TakesImages, TakesTexts, open_network


@dataclass(frozen=True)
class TaskSetup:
    """The network, head and data of one task; batches of `prepared` are on the network's device."""

    network: Network
    head: Head
    evaluator: Evaluator
    prepared: Prepared

    def load(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Load a model's parameters, with the task's head instead of its own."""
        self.network.load(self.head.put_on(parameters))

    def results(self, batch_size: int) -> Results:
        """Run the loaded network on the prepared data."""
        return self.evaluator.results(self.network, self.prepared, batch_size)

    def features(self, batch_size: int) -> Tensor:
        """Return the head's inputs for N examples from the loaded network: (N, D) in float32 on the CPU."""
        if not len(self.prepared):
            raise InputError(f"{self.prepared.folder}: no examples; name another split under validation")
        batches = self.prepared.batches(inputs_of(self.network, self.prepared), batch_size)
        return torch.cat([self.network.features(batch).float().cpu() for batch in batches])


def inputs_of(network: Network, prepared: Prepared) -> list[str]:
    """Name the arrays that a network reads; raise InputError if they were not prepared."""
    names = ["pixels"] if isinstance(network, TakesImages) else []
    if isinstance(network, TakesTexts):
        names = list(network.tokenizer.model_input_names)
    if isinstance(network, NamesInputs):
        names = network.inputs()
    if not names or not set(names) <= set(prepared.about["arrays"]):
        reason = f"this needs a network's inputs, which are not prepared of {prepared.about['kind']}"
        raise InputError(f"{prepared.folder}: {reason}; choose another kind for the task, or methods without data")
    return names


def open_setup(
    family: str,
    folder: Path,
    task: str,
    prepared: Prepared,
    head: Head,
    networks: dict[int | None, Network],
    device: DeviceName,
    precision: Precision = "float32",
) -> TaskSetup:
    """Build the architecture of a folder with the task's outputs and without weights.

    `networks`: built networks by number of outputs; a matching one is reused, a new one is added. Raises InputError
    for a head that does not fit the data.
    """
    evaluator = evaluator_for(prepared)
    evaluator.check_head(head.classes, prepared.classes, f"tasks.{task}")
    outputs = evaluator.outputs(prepared.classes)
    if outputs not in networks:
        networks[outputs] = open_network(family, folder, outputs=outputs, device=device, precision=precision)
    return TaskSetup(networks[outputs], head, evaluator, prepared.on(networks[outputs].device))
