"""The outputs of stages that the repository's project can predict without running them.

The plan can then tell whether the stages that read them must run.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dvcfleet.dvc_adapter.listings import folder_hash
from dvcfleet.dvc_adapter.protocols import Dependency
from dvcfleet.paths import is_in

PredictOutputs = Callable[[str], Mapping[str, str] | None]


@dataclass
class PredictedOutputs:
    """The texts that stages will write, by their paths from `root`; `predict_outputs` is called once per stage."""

    root: str
    predict_outputs: PredictOutputs
    _known: dict[str, Mapping[str, str] | None] = field(default_factory=dict)

    def hash_of(self, dep: Dependency, writers: Iterable[str]) -> str | None:
        """Return DVC's hash that a dependency will have after these stages have run; None if it cannot be predicted."""
        texts: dict[str, str] = {}
        for writer in writers:
            if writer not in self._known:
                self._known[writer] = self.predict_outputs(writer)
            found = self._known[writer]
            if found is None:
                return None
            texts |= found
        path = os.path.relpath(dep.fs_path, self.root)
        if path in texts:
            return _md5(texts[path])
        listing = {os.path.relpath(name, path): _md5(text) for name, text in texts.items() if is_in(name, path)}
        return folder_hash(listing) if listing else None


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()
