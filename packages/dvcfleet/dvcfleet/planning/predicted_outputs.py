"""The outputs of stages that the repository's project can predict without running them.

The plan can then tell whether the stages that read them must run.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from dvcfleet.dvc_adapter.listings import folder_hash
from dvcfleet.dvc_adapter.protocols import Dependency
from dvcfleet.paths import is_in


def hash_predictor(
    root: str, predict_outputs: Callable[[str], Mapping[str, str] | None]
) -> Callable[[Dependency, Iterable[str]], str | None]:
    """Return what tells DVC's hash that a dependency will have after stages have run; None if it cannot be predicted.

    `predict_outputs` is called once per stage; it returns the texts that it will write, by their paths from `root`.
    """
    texts_of = cache(predict_outputs)

    def hash_of(dep: Dependency, writers: Iterable[str]) -> str | None:
        found = [texts_of(writer) for writer in writers]
        texts = {name: text for each in found for name, text in (each or {}).items()}
        if None in found:
            return None
        path = os.path.relpath(dep.fs_path, root)
        if path in texts:
            return _md5(texts[path])
        listing = {os.path.relpath(name, path): _md5(text) for name, text in texts.items() if is_in(name, path)}
        return folder_hash(listing) if listing else None

    return hash_of


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()
