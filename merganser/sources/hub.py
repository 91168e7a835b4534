"""Download a model from a Hugging Face hub, or explain why that fails."""

import errno
import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from merganser.checkpoints.adapters.files import adapter_names
from merganser.checkpoints.companions import companion_names, left_out
from merganser.checkpoints.vocabulary.tokenizers import tokenizer_names
from merganser.checkpoints.weight_files import PIPELINE, foreign, lacking, weight_names
from merganser.errors import InputError
from merganser.hashes import git_id_of, sha256_of
from merganser.limits import SMALL
from merganser.sources.guarded import guard, hub_cache
from merganser.sources.licences import CARD, licence_files
from merganser.sources.pointers import HubPointer, RepoType, pinned

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_FILES = 1_000_000  # of a repository
LARGEST = 2**46  # bytes of a file


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the hub's client for things that the hub lacks or hides."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    return RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError


def missing(source: Path, hub: str, revision: str, error: Exception | None = None) -> str:
    """Return the message that the hub lacks or hides a repository at a revision."""
    from huggingface_hub.errors import GatedRepoError

    # `datasets` raises an error of its own without the hub's as its cause
    if isinstance(error, GatedRepoError) or "is a gated dataset" in str(error):
        advice = f", with the account of {token}" if (token := _token()) else "; then set HF_TOKEN"
        return f"{source}: {hub} is gated: accept its terms on its page of the hub{advice}"
    advice = (
        f"that {token} is valid and may read it" if (token := _token()) else "set HF_TOKEN if it is private or gated"
    )
    return (
        f"{source}: the hub has no {hub} at revision {revision}, or does not show it to you; "
        f"check the spelling, and {advice}"
    )


def _token() -> str:
    """Return a phrase for the origin of the hub client's token; empty without a token."""
    from huggingface_hub import constants, get_token

    named = (name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name))
    return f"the token in {next(named, constants.HF_TOKEN_PATH)}" if get_token() else ""


def hub_api() -> "HfApi":
    """Return the client of the hub at HF_ENDPOINT, with limits on the hub's answers."""
    from huggingface_hub import HfApi

    guard()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


def head_of(api: "HfApi", hub: str, branch: str, repo_type: RepoType) -> str:
    """Return the commit of a branch; raise InputError if the hub answers with anything else."""
    head = api.repo_info(hub, revision=branch, repo_type=repo_type).sha
    if not isinstance(head, str) or not COMMIT.fullmatch(head):
        raise InputError(f"{hub}: the hub says that {branch} is at {str(head)[:80]!r}, which is not a commit")
    return head


def list_repository_files(api: "HfApi", hub: str, revision: str, repo_type: RepoType) -> "dict[str, RepoFile]":
    """Return each file of a repository at a commit, by name; raise InputError if there are too many."""
    from huggingface_hub import RepoFile

    files: dict[str, RepoFile] = {}
    try:
        for entry in api.list_repo_tree(hub, revision=revision, repo_type=repo_type, recursive=True):
            if isinstance(entry, RepoFile):
                if not isinstance(entry.path, str):
                    raise TypeError(f"a file has the name {entry.path!r}")
                files[entry.path] = entry
            if len(files) > MOST_FILES:
                raise InputError(f"{hub}: the hub lists more than {MOST_FILES:,} files of it; it is not read")
    except InputError:
        raise
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{hub}: the hub's listing cannot be read ({type(error).__name__}: {error})") from error
    return files


def check_entries(files: "Iterable[RepoFile]", source: Path) -> None:
    """Refuse a listing with names that lead out of a folder, or invalid sizes or hashes."""
    for file in files:
        parts = file.path.split("/")
        if not file.path.isprintable() or "\\" in file.path or any(not _is_plain(part) for part in parts):
            raise InputError(f"{source}: the hub names the file {file.path[:200]!r}, which is not a plain name")
        sizes = [file.size] if file.lfs is None else [file.size, file.lfs.size]
        if any(type(size) is not int or not 0 <= size <= LARGEST for size in sizes):
            raise InputError(f"{source}: the hub gives {file.path} the size {sizes[-1]!r}, which no file has")
        if file.lfs is not None and not SHA256.fullmatch(str(file.lfs.sha256)):
            raise InputError(
                f"{source}: the hub gives {file.path} as its hash {str(file.lfs.sha256)[:80]!r}, which is not a hash"
            )


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and len(part.encode()) <= 255


def names_at(pointer: HubPointer, files: Mapping[str, object], source: Path) -> tuple[str, list[str], list[str]]:
    """Return a pointer's folder in a repository, and the names to download and to leave out.

    The names are relative to the folder.
    """
    place, single = pointer.path or "", pointer.path in files
    if single:
        place = PurePosixPath(place).parent.as_posix().removeprefix(".")
    inside = [name.removeprefix(f"{place}/") for name in files if not place or name.startswith(f"{place}/")]
    if not inside:
        raise InputError(f"{source}: path: {pointer.hub} has no file or folder {pointer.path}")
    weights = [PurePosixPath(pointer.path or "").name] if single else weight_names(inside)
    adapter = adapter_names(inside)
    taken = [*adapter, *tokenizer_names(inside)] if adapter else [*weights, *companion_names(inside)]
    if not weights and not adapter:
        known = foreign([name for name in inside if "/" not in name])
        what = f", but {known}" if known else ""
        what = ", but is a pipeline of diffusers: name one component's folder by path" if PIPELINE in inside else what
        raise InputError(f"{source}: {pointer.hub} has no weights in a format we read at {place or 'its top'}{what}")
    return place, taken, left_out((name for name in inside if "/" not in name), taken)


def download(pointer: HubPointer, source: Path) -> tuple[Path, list[str]]:
    """Download a model into the hub's own cache; return its folder or file there, and the left-out names."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    api, revision = hub_api(), pinned(pointer, source)
    try:
        files = list_repository_files(api, pointer.hub, revision, "model")
        place, names, left = names_at(pointer, files, source)
        wanted = [f"{place}/{name}" if place else name for name in names]
        wanted += [name for name in _cards_in(files, place) if files[name].size <= SMALL and name not in wanted]
        snapshot = _snapshot(api, pointer, [files[name] for name in wanted], source)
        while pointer.path not in files and (more := _further(snapshot / place, place, files)):
            _snapshot(api, pointer, [files[name] for name in more], source)
            wanted += more
    except hub_errors() as error:
        raise InputError(missing(source, pointer.hub, revision, error)) from error
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        if refused := hub_refusal(source, pointer.hub, error):
            raise InputError(refused) from error
        raise
    except InputError:
        raise
    except ValueError as error:  # such as for files beyond what plain requests may download
        raise InputError(f"{source}: {pointer.hub} cannot be downloaded: {str(error).partition(chr(10))[0]}") from error
    left = [name for name in left if (f"{place}/{name}" if place else name) not in wanted]
    return snapshot / (pointer.path if pointer.path in files else place), left


def _snapshot(api: "HfApi", pointer: HubPointer, files: "Collection[RepoFile]", source: Path) -> Path:
    """Download and check files of a repository in the hub's own cache; return the commit's folder there."""
    from huggingface_hub import snapshot_download

    check_entries(files, source)
    patterns, revision = [glob.escape(file.path) for file in files], pinned(pointer, source)
    folder = snapshot_download(
        pointer.hub, revision=revision, allow_patterns=patterns, endpoint=api.endpoint, cache_dir=hub_cache()
    )
    _check_download(Path(folder), {file.path: file for file in files})
    return Path(folder)


def _further(folder: Path, place: str, files: Collection[str]) -> list[str]:
    """List weights that a downloaded model refers to and that are missing here, by their names on the hub."""
    names = lacking(folder, [path.name for path in folder.iterdir()])
    return [name for name in (f"{place}/{name}" if place else name for name in names) if name in files]


def _cards_in(files: Iterable[str], place: str) -> list[str]:
    """Return the cards and licence files of a repository, and of a model's folder in it."""
    named = [(name.rpartition("/"), name) for name in files]
    return [name for (folder, _, own), name in named if folder in ("", place) and (own == CARD or licence_files([own]))]


def hub_refusal(source: Path, hub: str, error: BaseException | None) -> str | None:
    """Return the message for a refused request, which may be an error's cause; None for other errors."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            advice = f"check {token}" if (token := _token()) else "set HF_TOKEN"
            return f"{source}: the hub refuses {hub} ({status}): {advice}"
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def answering(source: Path) -> Iterator[None]:
    """Raise ConnectionError, which names the source and the hub's last answer, if a hub fails in the block."""
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    try:
        yield
    except (HTTPError, LocalEntryNotFoundError, ConnectionError) as error:
        cause: BaseException = error  # the client hides an answer behind advice to check the connection
        while isinstance(cause, LocalEntryNotFoundError) and cause.__cause__:
            cause = cause.__cause__
        said = f"the hub does not send it: {next(iter(str(cause).splitlines()), type(cause).__name__)}"
        raise ConnectionError(errno.ECONNABORTED, said, str(source)) from error


def _check_download(snapshot: Path, expected: "Mapping[str, RepoFile]") -> None:
    """Compare downloaded files with the hub's listing; remove a bad file from the cache."""
    for name, entry in expected.items():
        path = (snapshot / name).resolve()
        path_size = path.stat().st_size
        if path_size != entry.size or not _has_hash(path, entry):
            path.unlink()
            size = f"{path_size} bytes of {entry.size}" if path_size != entry.size else f"{path_size} bytes"
            raise OSError(
                f"{name}: the download, {size}, does not match the hub's checksum and was removed; run it again"
            )


def _has_hash(path: Path, entry: "RepoFile") -> bool:
    """Tell whether a file has the listing's hash; a mirror may list a small one without git's id."""
    if entry.lfs is not None:
        return sha256_of(path) == entry.lfs.sha256
    return not COMMIT.fullmatch(str(entry.blob_id)) or git_id_of(path) == entry.blob_id
