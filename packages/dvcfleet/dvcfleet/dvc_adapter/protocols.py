"""The part of DVC's repositories, stages, outputs and dependencies that the engine uses; DVC ships no types.

Methods and properties are those of DVC's classes: a run is refused if the installed DVC lacks one (`internals`). The
other names are set on each object. Their values, such as caches and file systems, have no types here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

if TYPE_CHECKING:
    from networkx import DiGraph

T = TypeVar("T")
Property = Annotated[T, property]  # of a class of DVC's


class HashInfo(Protocol):
    """A hash; its `value` is that of a file or folder, or parameters' values. False if there is none."""

    name: str | None
    value: Any
    isdir: Property[bool]  # whether it is a folder's


class Meta(Protocol):
    """A file's or folder's properties besides its hash."""

    size: int | None
    nfiles: int | None
    isexec: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the properties that dvc.lock has."""


class Item(Protocol):
    """An input or output of a stage."""

    IS_DEPENDENCY: ClassVar[bool]
    repo: "Repo"
    stage: "Stage"
    fs: Any
    fs_path: str
    def_path: str
    hash_name: str
    hash_info: HashInfo
    meta: Meta
    files: Any
    obj: Any
    use_cache: bool
    protocol: Property[str]  # the kind of file system; `local` for this machine's
    exists: Property[bool]  # whether it is in the workspace
    is_in_repo: Property[bool]  # whether it is in the repository's folder
    cache: Property[Any]  # the cache that holds it
    dvcignore: Property[Any]  # what .dvcignore excludes

    def save(self) -> None:
        """Set the hash to that of the file or folder in the workspace."""

    def get_hash(self) -> HashInfo:
        """Return the hash of the file or folder in the workspace."""

    def status(self) -> Mapping[str, Any]:
        """Return by name how it differs from DVC's record; empty if it does not."""


class Dependency(Item, Protocol):
    """An input of a stage: a file, a folder, or parameters."""


class ParamsDependency(Dependency, Protocol):
    """The parameters of a file that a stage reads."""

    DEFAULT_PARAMS_FILE: ClassVar[str]
    params: Sequence[str]

    def read_params(self) -> dict[str, Any]:
        """Return the current values by dotted name."""


class Output(Item, Protocol):
    """An output of a stage."""

    annot: Any
    metric: Any
    persist: bool
    is_metric: Property[bool]  # whether it is declared as a metric
    is_plot: Property[bool]  # whether it is declared as a plot
    local_cache: Property[Any]  # the cache of this machine
    use_scm_ignore: Property[bool]  # whether git is to ignore it

    def changed(self) -> bool:
        """Tell whether the workspace or the cache lacks the recorded content."""

    def changed_cache(self, filter_info: str | None = None) -> bool:
        """Tell whether the cache lacks it, or the path inside it."""

    def changed_checksum(self) -> bool:
        """Tell whether the hash in the workspace differs."""

    def checkout(self, force: bool = False, filter_info: str | None = None) -> object:
        """Restore it, or the path inside it, from the cache."""

    def commit(self, relink: bool = True) -> None:
        """Store it in the cache."""

    def get_used_objs(self, force: bool = ..., filter_info: str | None = ...) -> Mapping[Any, set[Any]]:
        """Return its files' hashes by the cache with them."""

    def remove(self, ignore_remove: bool = False) -> None:
        """Remove it from the workspace."""

    def unprotect(self) -> None:
        """Make it writable."""

    def verify_metric(self) -> None:
        """Raise DVC's error for a metric in an unsupported format."""

    def workspace_status(self) -> Mapping[str, str]:
        """Return how the workspace differs from DVC's record; empty if it does not."""


class Stage(Protocol):
    """A stage of a dvc.yaml, which has a name (`PipelineStage`), or of a .dvc file."""

    repo: "Repo"
    cmd: Any
    wdir: str
    deps: list[Dependency]
    outs: list[Output]
    md5: str | None
    frozen: bool
    always_changed: bool
    desc: str | None
    meta: Any
    raw_data: Any
    addressing: Property[str]  # its name for users, relative to the current folder
    path: Property[str]  # the file that declares it
    params: Property[Sequence[ParamsDependency]]  # those of its dependencies that are parameters
    is_callback: Property[bool]  # whether it has a command and no dependency
    is_import: Property[bool]  # whether it imports data

    def changed_stage(self) -> bool:
        """Tell whether its declaration has changed since it ran."""

    def checkout(self, force: bool = ...) -> object:
        """Restore its outputs from the cache."""

    def compute_md5(self) -> str | None:
        """Return the hash of a .dvc file's content."""

    def dump(self, update_pipeline: bool = ...) -> None:
        """Write it to its file."""

    def outs_cached(self) -> bool:
        """Tell whether the cache has all its cached outputs."""

    def reproduce(self, *, force: bool, no_commit: bool, allow_missing: bool) -> object:
        """Bring it up to date."""


class PipelineStage(Stage, Protocol):
    """A stage of a dvc.yaml."""

    name: str
    cmd_changed: bool
    tracked_vars: Any


class Index(Protocol):
    """The stages of a repository."""

    stages: Sequence[Stage]
    deps: Property[Sequence[Dependency]]  # all that stages read
    outs: Property[Sequence[Output]]  # all that stages write
    outs_trie: Property[Any]  # the outputs by the components of their paths
    graph: Property["DiGraph"]  # the stages, with edges to those that each reads from


class Repo(Protocol):
    """An opened repository."""

    root_dir: str
    tmp_dir: str
    fs: Any
    state: Any
    cache: Any
    cloud: Any
    lock: Any
    stage: Any
    stage_cache: Any
    config: Property[Any]  # its settings by section
    dvcignore: Property[Any]  # what .dvcignore excludes
    index: Property[Index]  # its stages
    scm: Property[Any]  # its git
    scm_context: Property[Any]  # what DVC writes for git: .gitignore files, and names of files to add

    def __hash__(self) -> int:
        """Return the hash of the object."""

    def get_rev(self) -> str:
        """Return the current commit."""

    def used_objs(
        self, *, all_branches: bool = ..., all_tags: bool = ..., revs: list[str] | None = ...
    ) -> Mapping[Any, set[HashInfo]]:
        """Return the hashes of the outputs in the workspace and in commits, by the cache with them."""
