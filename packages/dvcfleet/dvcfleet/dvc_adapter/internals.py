"""The DVC internals that the engine uses.

Those that DVC's public API can replace, only slower, are fast paths (`otherwise`), such as shortcuts for what DVC
repeats for each path, edge and stage of its index. A DVC without one of the others (NEEDED) is refused: what the
protocols say of its classes, and names that are imported. A test collects what the code imports.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, get_origin

from dvcfleet.dvc_adapter import protocols
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError, in_one_line
from dvcfleet.fast_paths import FastPaths, no_shortcut, replaced

if TYPE_CHECKING:
    from networkx import DiGraph


RANGE = "dvc>=3.66,<4"


def _defined(protocol: type, owner: str) -> list[str]:
    """Return a DVC class's name, and the methods and properties that its protocol lists."""
    names = [name for name, value in vars(protocol).items() if isinstance(value, FunctionType)]
    names += [name for name, value in protocol.__annotations__.items() if get_origin(value) is Annotated]
    return [owner, *(f"{owner}.{name}" for name in names if not name.startswith("_"))]


# The class of DVC's that each protocol is of.
PROTOCOLS: Mapping[type, str] = {
    protocols.Repo: "dvc.repo:Repo",
    protocols.Index: "dvc.repo.index:Index",
    protocols.Stage: "dvc.stage:Stage",
    protocols.PipelineStage: "dvc.stage:PipelineStage",
    protocols.Item: "dvc.output:Output",
    protocols.Output: "dvc.output:Output",
    protocols.Dependency: "dvc.dependency:Dependency",
    protocols.ParamsDependency: "dvc.dependency:ParamsDependency",
    protocols.HashInfo: "dvc_data.hashfile.hash_info:HashInfo",
    protocols.Meta: "dvc_data.hashfile.meta:Meta",
}
# What nothing can replace, by module.
_NEEDED = {
    "dvc.dependency.base": "DependencyDoesNotExistError",
    "dvc.data_cloud": "DataCloud.pull",
    "dvc.exceptions": "CheckoutError CollectCacheError DvcException NotDvcRepoError RevCollectionError",
    "dvc.fs.git": "GitFileSystem",
    "dvc.fs": "localfs",
    "dvc.ignore": "DvcIgnoreFilter.walk DvcIgnorePatterns.from_file",
    "dvc.lock": "LockError",
    "dvc.output": "OutputAlreadyTrackedError",
    "dvc.repo.index": "Index.from_file",
    "dvc.repo.reproduce": "collect_stages get_active_graph plan_repro",
    "dvc.repo.trie": "build_outs_trie",
    "dvc.rwlock": "RWLOCK_FILE RWLockFileCorruptedError RWLockFileFormatError rwlock",
    "dvc.schema": "COMPILED_LOCKFILE_SCHEMA COMPILED_LOCK_FILE_STAGE_SCHEMA",
    "dvc.scm": "NoSCM SCM SCMError",
    "dvc.stage.cache": "RunCacheNotFoundError RunCacheNotSupported StageCache.pull StageCache.restore StageCache.save",
    "dvc.stage.exceptions": "StageFileDoesNotExistError StageNotFound",
    "dvc.stage.loader": "StageLoader.fill_from_lock",
    "dvc.stage.serialize": "to_single_stage_lockfile",
    "dvc.stage": "create_stage",
    "dvc.utils.serialize": "LOADERS YAMLError YAMLFileCorruptedError dumps_yaml load_yaml parse_yaml "
    "parse_yaml_for_update",
    "dvc_data.hashfile.db": "get_index",
    "dvc_data.hashfile.hash": "file_md5 fobj_md5",
    "dvc_data.hashfile.state": "State",
    "dvc_data.hashfile.tree": "Tree",
    "dvc_objects.errors": "ObjectFormatError",
    "dvc_objects.fs.system": "reflink",
}
NEEDED = (
    *(name for protocol, owner in PROTOCOLS.items() for name in _defined(protocol, owner)),
    *(f"{module}:{name}" for module, names in _NEEDED.items() for name in names.split()),
)
DVC = FastPaths("DVC")
otherwise = DVC.otherwise


@cache
def check_needed() -> None:
    """Raise UserError if the installed DVC lacks an internal that nothing can replace."""
    names = [name.replace(":", ".") for name in NEEDED if not _is_there(name)]
    if names:
        raise UserError(
            f"{DVC.version} has no {', '.join(names)}, and every run needs it: install a release of {RANGE}"
        )


def _is_there(internal: str) -> bool:
    module, _, path = internal.partition(":")
    try:
        attrgetter(path)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def under_git(repo: Repo) -> bool:
    """Tell whether DVC uses git in the repository."""
    from dvc.scm import NoSCM

    return not isinstance(repo.scm, NoSCM)


@contextmanager
def fast_index() -> Iterator[None]:
    """In the block, have DVC read dvc.yaml and parameters, and build its graph, by shortcuts."""
    with _local_paths(), _acyclic(), _params_once(), _named_errors(), _plain_files():
        yield


@otherwise("reading dvc.yaml", no_shortcut)
def _local_paths() -> AbstractContextManager[None]:
    """Resolve plain paths quickly: DVC validates each as a remote's configuration."""
    from dvc import output

    resolve = output.get_cloud_fs
    known: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def resolve_once(config: Any, **options: Any) -> tuple[Any, dict[str, Any], str]:
        url = options.get("url")
        # A path with a colon may be an address.
        if len(options) != 1 or not isinstance(url, str) or ":" in url:
            resolved: tuple[Any, dict[str, Any], str] = resolve(config, **options)
            return resolved
        jobs = (config or {}).get("core", {}).get("checksum_jobs")  # all that depends on the configuration
        if jobs not in known:
            known[jobs] = resolve(config, url=url)[:2]
        kind, settings = known[jobs]
        return kind, dict(settings), kind._strip_protocol(url)

    return replaced(output, "get_cloud_fs", resolve_once)


@otherwise("checking the graph of stages", no_shortcut)
def _acyclic() -> AbstractContextManager[None]:
    """Check by sorting that the graph has no cycle; DVC checks edge by edge, and names the cycle if there is one."""
    from dvc.repo import graph

    check = graph.check_acyclic

    def check_by_sorting(stages: "DiGraph") -> None:
        from networkx import is_directed_acyclic_graph

        if not is_directed_acyclic_graph(stages):
            check(stages)

    return replaced(graph, "check_acyclic", check_by_sorting)


@otherwise("reading parameters", no_shortcut)
def _params_once() -> AbstractContextManager[None]:
    """Parse a parameters file once, not twice per stage as DVC does."""
    from dvc.dependency import param

    load = param.load_path
    known: dict[str, tuple[tuple[int, ...], Any]] = {}

    def load_once(path: str, fs: Any, **options: Any) -> Any:
        if fs.protocol != "local" or options:
            return load(path, fs, **options)
        stat = os.stat(path)
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if path not in known or known[path][0] != version:
            known[path] = version, load(path, fs)
        content = known[path][1]
        return dict(content) if isinstance(content, dict) else content

    return replaced(param, "load_path", load_once)


@contextmanager
def _named_errors() -> Iterator[None]:
    """Add the file's name to any error, such as one about a date in params.yaml; DVC does so for its own only."""
    from dvc.exceptions import DvcException
    from dvc.ignore import DvcIgnorePatterns
    from dvc.repo.index import Index

    def naming(read: Callable[..., Any], place: int) -> Any:
        def read_or_name(*args: Any) -> Any:
            try:
                return read(*args)
            except DvcException:
                raise
            except Exception as error:
                raise DvcException(f"{os.path.relpath(args[place])}: {in_one_line(error)}") from error

        return staticmethod(read_or_name)

    with (
        replaced(Index, "from_file", naming(Index.from_file, 1)),
        replaced(DvcIgnorePatterns, "from_file", naming(DvcIgnorePatterns.from_file, 0)),
    ):
        yield


def _plain_files() -> AbstractContextManager[None]:
    """Refuse to hash a pipe, or a link to a device, which DVC would wait for or read without end."""
    from dvc_data.hashfile import hash as hashing

    file_md5: Any = hashing.file_md5

    def of_plain(path: str, fs: Any, *args: Any, **options: Any) -> str:
        if fs.protocol == "local" and not os.path.isfile(path):
            raise UserError(f"{os.path.relpath(path)}: not a plain file; replace it by a copy of its content")
        return str(file_md5(path, fs, *args, **options))

    return replaced(hashing, "file_md5", of_plain)
