"""Facts about sources by headers alone, before a download: numbers of examples, picture sizes, dtypes."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.companions import described_elsewhere
from merganser.evaluation.data_sets import load_saved
from merganser.sources.following import files_at
from merganser.sources.guarded import hub_cache
from merganser.sources.hub import hub_api
from merganser.sources.pointers import HubPointer, OpenClipPointer, local_path, read_pointer, repositories

_WORDS = re.compile(r"[/.-]+")  # between them, of a file's path
FOOTER = 2**20  # bytes: more than the footers of data sets have
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def count_examples(source: Path, split: str) -> int:
    """Return the number of examples in a data set's split; on a hub by the footers of its files.

    Raises LookupError if there are none, and whatever the hub, `datasets` and Arrow raise.
    """
    path = local_path(source)
    if path is not None:
        return len(load_saved(path)[split])
    named = repositories(read_pointer(source))
    own = [(each, each.splits.get(split) if each.splits else split) for each in named.values()]
    return sum(_examples(source, each, name) for each, name in own if name is not None)


def _examples(source: Path, pointer: HubPointer, split: str) -> int:
    revision = pointer.revision or str(pointer.follow)
    files = files_at(hub_api(), pointer, revision, "dataset", source)
    sizes = {name: file.size for name, file in files.items() if name.endswith(".parquet")}
    named = [name for name in sizes if split in _WORDS.split(name)]
    if not named:
        raise LookupError(f"{source}: no Parquet file of {pointer.hub} is named after the split {split}")
    return sum(_rows(pointer.hub, name, revision, sizes[name]) for name in named)


def _rows(hub: str, name: str, revision: str, size: int) -> int:
    """Return the number of rows of a Parquet file on a hub, by its footer."""
    import pyarrow
    import pyarrow.parquet
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    endpoint = os.environ.get("HF_ENDPOINT")
    address = hf_hub_url(hub, name, repo_type="dataset", revision=revision, endpoint=endpoint)
    end = {"Range": f"bytes={max(0, size - FOOTER)}-"}
    answer = get_session().get(address, headers=build_hf_headers() | end, follow_redirects=True)
    answer.raise_for_status()
    return int(pyarrow.parquet.read_metadata(pyarrow.BufferReader(answer.content)).num_rows)


def picture_of(source: Path) -> tuple[int, int] | None:
    """Return the side in pixels of a model's pictures and of their patches; None if its configuration has none.

    Raises what its hub raises.
    """
    for section in _sections(_configurations(source)):
        size, patch = section.get("image_size"), section.get("patch_size")
        if isinstance(size, int) and isinstance(patch, int):
            return size, patch
    return None


def bytes_a_value(source: Path) -> int:
    """Return the bytes per value in a model's files, by the dtype in its configuration; 4 by default.

    Raises what its hub raises.
    """
    for section in _sections(_configurations(source)):
        named = section.get("dtype", section.get("torch_dtype"))
        if named in _BYTES:
            return _BYTES[named]
    return _BYTES["float32"]


def _configurations(source: Path) -> Iterator[Any]:
    pointer, names = read_pointer(source), (CONFIG, *described_elsewhere().values())
    if isinstance(pointer, OpenClipPointer):
        import open_clip

        yield open_clip.get_model_config(pointer.open_clip)
    elif isinstance(pointer, HubPointer):
        from huggingface_hub.errors import EntryNotFoundError

        api, revision = hub_api(), pointer.revision or pointer.follow
        for name in names:
            try:
                file = api.hf_hub_download(pointer.hub, name, revision=revision, cache_dir=hub_cache())
                yield read_config(Path(file))
            except EntryNotFoundError:
                continue
    elif path := local_path(source):
        yield from (read_config(path / name) for name in names)


def _sections(contents: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield each mapping and all mappings inside it."""
    for content in contents:
        if isinstance(content, dict):
            yield content
            yield from _sections(content.values())
