"""What studies of all tasks share: one entry, whose merges by other values are measured on the comparison's split."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from merganser import registry
from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.evaluation.examples import Results
from merganser.evaluation.setups import TaskSetup
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.inputs.layers import LayerSource
from merganser.merging.entry import additional_memory_rate
from merganser.merging.method import Method
from merganser.studies.merges import ScoringSetup, merge_results
from merganser.tasks.kept import digest_of_code
from merganser.tasks.opening import open_source, start_of
from merganser.tasks.scoring import open_tasks
from merganser.tasks.stages import BASE, DATA, HEADS, PREPARED

Result = tuple[str, TaskSetup, Results]


@dataclass(frozen=True)
class Studied:
    """What an entry's merges are made and measured with, opened once; `where` is its place in params.yaml."""

    where: str
    method: Method
    source: LayerSource
    setup: ScoringSetup

    def results(self, values: Mapping[str, Any], out: Path) -> Iterator[tuple[str, TaskSetup, Results]]:
        """Merge by these values; yield each task with data, what it ran on, and the results of its examples.

        What a kill leaves lies in `out`, and is for the next start to remove.
        """
        with self.merging(values, out) as (found, _):
            yield from found

    @contextmanager
    def merging(self, values: Mapping[str, Any], out: Path) -> Iterator[tuple[Iterator[Result], Callable[[], float]]]:
        """Give these results, which merge when they are asked for, and what tells the bytes a task of that merge.

        They are a share of the merged parameters', and there once the first result is.
        """
        filled = self.method.validate(self.where, dict(values))
        with TemporaryDirectory(dir=out) as made:
            folder = Path(made)
            rate = partial(additional_memory_rate, self.method, folder, self.setup.base, self.source)
            yield merge_results(self.method, filled, self.source, self.setup, folder), rate


def open_studied(params: Params, where: str, entry: Entry) -> Studied:
    """Open what an entry reads, as a merge by it does, and the prepared examples of all tasks."""
    inner = params.inner(entry)
    source = open_source(entry, inner.reads, list(params.tasks), params.first_seed)
    base = start_of(entry, inner.reads) / "base" if inner.difference else BASE
    return Studied(where, registry.get(entry.method), source, open_tasks(params, PREPARED, base))


def study_fingerprint(params: Params, entry: Entry, *modules: str) -> str:
    """Return a digest of all that the scores of an entry's merges follow from, but its values.

    `modules`: those that compute them.
    """
    chosen = [entry.method, params.first_seed, params.base.family, params.evaluation.model_dump(), sorted(params.tasks)]
    files = [BASE, DATA / entry.reads, *(HEADS / f"{task}.safetensors" for task in params.tasks)]
    files += [PREPARED / task for task in params.measured]
    code = digest_of_code(params, *modules, f"merganser.methods.{entry.method}")
    return sha256_of_json([chosen, code, *map(sha256_of_tree, files)])
