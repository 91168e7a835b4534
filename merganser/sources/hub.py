"""Download a model from a Hugging Face hub, and say what is wrong where it cannot be."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from merganser.checkpoints.adapters.files import adapter_names
from merganser.checkpoints.companions import companion_names, left_out
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.sources.hub_caches import hub_cache
from merganser.sources.pointers import HubPointer, pinned
from merganser.sources.weights import weight_names

if TYPE_CHECKING:
    from huggingface_hub import RepoFile


def hub_errors() -> tuple[type[Exception], ...]:
    """Return what the hub's client raises for what the hub does not have, or does not show."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    return RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError


def missing(source: Path, hub: str, revision: str, error: Exception | None = None) -> str:
    """Say that the hub does not have, or does not show, a repository at a revision."""
    from huggingface_hub.errors import GatedRepoError

    # `datasets` raises an error of its own without the hub's as its cause
    if isinstance(error, GatedRepoError) or "is a gated dataset" in str(error):
        token = "the token in HF_TOKEN is not of one who has" if os.environ.get("HF_TOKEN") else "then set HF_TOKEN"
        return f"{source}: {hub} is gated: accept its terms on its page of the hub; {token}"
    return (
        f"{source}: the hub has no {hub} at revision {revision}, or does not show it to you; "
        "check the spelling, and set HF_TOKEN if it is private or gated"
    )


def names_at(pointer: HubPointer, files: Mapping[str, object], source: Path) -> tuple[str, list[str], list[str]]:
    """Pick a pointer's folder in a repository, the names of what is fetched from there, and of what is left out.

    The names begin at the folder.
    """
    place, single = pointer.path or "", pointer.path in files
    if single:
        place = PurePosixPath(place).parent.as_posix().removeprefix(".")
    inside = [name.removeprefix(f"{place}/") for name in files if not place or name.startswith(f"{place}/")]
    if not inside:
        raise InputError(f"{source}: path: {pointer.hub} has no file or folder {pointer.path}")
    weights = [PurePosixPath(pointer.path or "").name] if single else weight_names(inside)
    taken = adapter_names(inside) or [*weights, *companion_names(inside)]
    if not weights and not adapter_names(inside):
        raise InputError(f"{source}: {pointer.hub} has no weights in a format we read at {place or 'its top'}")
    return place, taken, left_out((name for name in inside if "/" not in name), taken)


def download(pointer: HubPointer, source: Path) -> tuple[Path, list[str]]:
    """Download a model into the hub's own cache; return its folder or file there, and the names of what is left out."""
    from huggingface_hub import HfApi, RepoFile, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    endpoint, revision = os.environ.get("HF_ENDPOINT"), pinned(pointer, source)
    try:
        tree = HfApi(endpoint=endpoint).list_repo_tree(pointer.hub, revision=revision, recursive=True)
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        place, names, left = names_at(pointer, files, source)
        wanted = [f"{place}/{name}" if place else name for name in names]
        snapshot = Path(
            snapshot_download(
                pointer.hub, revision=revision, allow_patterns=wanted, endpoint=endpoint, cache_dir=hub_cache()
            )
        )
    except hub_errors() as error:
        raise InputError(missing(source, pointer.hub, revision, error)) from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        said = refusal(source, pointer.hub, error)
        if said is None:
            raise
        raise InputError(said) from error
    _check_download(snapshot, {name: files[name] for name in wanted})
    return snapshot / (pointer.path if pointer.path in files else place), left


def refusal(source: Path, hub: str, error: BaseException | None) -> str | None:
    """Say that a hub refused a request, which may lie behind an error; None for other troubles."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return f"{source}: the hub refuses {hub} ({status}): check the token in HF_TOKEN"
        error = error.__cause__ or error.__context__
    return None


def _check_download(snapshot: Path, expected: "Mapping[str, RepoFile]") -> None:
    """Compare what was downloaded with what the hub announced; take a bad file out of the download cache."""
    for name, entry in expected.items():
        path = (snapshot / name).resolve()
        whole = path.stat().st_size == entry.size and (entry.lfs is None or sha256_of(path) == entry.lfs.sha256)
        if not whole:
            path.unlink()
            raise OSError(f"{name}: the download does not match the hub's checksum and was removed; run it again")
