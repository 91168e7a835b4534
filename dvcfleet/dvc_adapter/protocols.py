"""What the engine uses of DVC's repositories, stages, outputs and dependencies; DVC ships no types.

Methods and properties are those of DVC's classes: a run is refused if the installed DVC lacks one (`internals`).
Annotated names are set on each object. What stands behind them, such as caches and file systems, has no types here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from networkx import DiGraph


class HashInfo(Protocol):
    """A hash; its `value` is that of a file or folder, or the values of parameters. False if there is none."""

    name: str | None
    value: Any

    @property
    def isdir(self) -> bool:
        """Whether it is a folder's."""


class Meta(Protocol):
    """A file's or folder's properties beside its hash."""

    size: int | None
    isexec: bool

    def to_dict(self) -> dict[str, Any]:
        """Return those that an entry of dvc.lock has."""


class Item(Protocol):
    """What a stage reads or writes."""

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

    @property
    def protocol(self) -> str:
        """The kind of file system; `local` for this machine's."""

    @property
    def exists(self) -> bool:
        """Whether it is in the workspace."""

    @property
    def is_in_repo(self) -> bool:
        """Whether it is in the repository's folder."""

    @property
    def cache(self) -> Any:
        """The cache that holds it."""

    @property
    def dvcignore(self) -> Any:
        """What .dvcignore excludes."""

    def save(self) -> None:
        """Set the hash to that of the file or folder in the workspace."""

    def get_hash(self) -> HashInfo:
        """Return the hash of the file or folder in the workspace."""

    def status(self) -> Mapping[str, Any]:
        """Return how it differs from what DVC recorded, by its name; empty if it does not."""


class Dependency(Item, Protocol):
    """What a stage reads: a file, a folder, or parameters."""


class ParamsDependency(Dependency, Protocol):
    """The parameters of a file that a stage reads."""

    DEFAULT_PARAMS_FILE: ClassVar[str]
    params: Sequence[str]

    def read_params(self) -> dict[str, Any]:
        """Return their present values by dotted name."""


class Output(Item, Protocol):
    """What a stage writes."""

    annot: Any
    metric: Any
    persist: bool

    @property
    def is_metric(self) -> bool:
        """Whether it is declared as a metric."""

    @property
    def is_plot(self) -> bool:
        """Whether it is declared as a plot."""

    @property
    def local_cache(self) -> Any:
        """The cache of this machine."""

    @property
    def use_scm_ignore(self) -> bool:
        """Whether git is to ignore it."""

    def changed(self) -> bool:
        """Tell whether the workspace or the cache lacks what DVC recorded."""

    def changed_cache(self, filter_info: str | None = None) -> bool:
        """Tell whether the cache lacks it, or the path inside it."""

    def changed_checksum(self) -> bool:
        """Tell whether the hash in the workspace differs."""

    def checkout(self, force: bool = False, filter_info: str | None = None) -> object:
        """Put it, or the path inside it, from the cache into the workspace."""

    def commit(self, relink: bool = True) -> None:
        """Store it in the cache."""

    def get_used_objs(self, force: bool = ..., filter_info: str | None = ...) -> Mapping[Any, set[Any]]:
        """Return the hashes of its files by the cache that they are in."""

    def remove(self, ignore_remove: bool = False) -> None:
        """Remove it from the workspace."""

    def unprotect(self) -> None:
        """Make it writable."""

    def verify_metric(self) -> None:
        """Raise DVC's error for a metric in a form that DVC does not take."""

    def workspace_status(self) -> Mapping[str, str]:
        """Return how the workspace differs from what DVC recorded; empty if it does not."""


class Stage(Protocol):
    """A stage of a dvc.yaml, which then has a name (`PipelineStage`), or of a .dvc file."""

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

    @property
    def addressing(self) -> str:
        """Its name for users, relative to the current folder."""

    @property
    def path(self) -> str:
        """The file that declares it."""

    @property
    def params(self) -> Sequence[ParamsDependency]:
        """Those of its dependencies that are parameters."""

    @property
    def is_callback(self) -> bool:
        """Whether it has a command and no dependency."""

    @property
    def is_import(self) -> bool:
        """Whether it imports data."""

    def changed_stage(self) -> bool:
        """Tell whether its declaration differs from the one that ran."""

    def checkout(self, force: bool = ...) -> object:
        """Put its outputs from the cache into the workspace."""

    def compute_md5(self) -> str | None:
        """Return the hash of a .dvc file's content."""

    def dump(self, update_pipeline: bool = ...) -> None:
        """Write it to its file."""

    def outs_cached(self) -> bool:
        """Tell whether the cache has all outputs that it keeps."""

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

    @property
    def deps(self) -> Sequence[Dependency]:
        """All that stages read."""

    @property
    def outs(self) -> Sequence[Output]:
        """All that stages write."""

    @property
    def outs_trie(self) -> Any:
        """The outputs by the components of their paths."""

    @property
    def graph(self) -> "DiGraph":
        """The stages, with edges to those that each reads from."""


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
    _reset: Callable[[], None]

    @property
    def config(self) -> Any:
        """Its settings by section."""

    @property
    def dvcignore(self) -> Any:
        """What .dvcignore excludes."""

    @property
    def index(self) -> Index:
        """Its stages."""

    @property
    def scm(self) -> Any:
        """Its git."""

    @property
    def scm_context(self) -> Any:
        """What DVC writes for git: .gitignore files, and names of files to add."""

    def get_rev(self) -> str:
        """Return the current commit."""
