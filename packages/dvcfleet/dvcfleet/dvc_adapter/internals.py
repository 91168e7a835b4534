"""The DVC internals that the engine uses.

Those that DVC's public API can replace, only slower, are fast paths (`otherwise`); a DVC without one of the others
(NEEDED) is refused: what the protocols say of its classes, and names that are imported. A test collects what the code
imports: nothing else is needed.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import FunctionType
from typing import Annotated, get_origin

from dvcfleet.dvc_adapter import protocols
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError
from dvcfleet.fast_paths import FastPaths

RANGE = "dvc>=3.66,<4"


def _defined(protocol: type, owner: str) -> list[str]:
    """Name a class of DVC's, and of it what is a method or a property in its protocol."""
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
NEEDED = (
    *(name for protocol, owner in PROTOCOLS.items() for name in _defined(protocol, owner)),
    "dvc.dependency.base:DependencyDoesNotExistError",
    "dvc.data_cloud:DataCloud.pull",
    "dvc.exceptions:CheckoutError",
    "dvc.exceptions:CollectCacheError",
    "dvc.exceptions:DvcException",
    "dvc.exceptions:NotDvcRepoError",
    "dvc.fs.git:GitFileSystem",
    "dvc.fs:localfs",
    "dvc.ignore:DvcIgnoreFilter.walk",
    "dvc.lock:LockError",
    "dvc.output:OutputAlreadyTrackedError",
    "dvc.repo.index:Index.from_file",
    "dvc.repo.reproduce:collect_stages",
    "dvc.repo.reproduce:get_active_graph",
    "dvc.repo.reproduce:plan_repro",
    "dvc.repo.trie:build_outs_trie",
    "dvc.rwlock:RWLOCK_FILE",
    "dvc.rwlock:RWLockFileCorruptedError",
    "dvc.rwlock:RWLockFileFormatError",
    "dvc.rwlock:rwlock",
    "dvc.schema:COMPILED_LOCK_FILE_STAGE_SCHEMA",
    "dvc.scm:NoSCM",
    "dvc.scm:SCM",
    "dvc.scm:SCMError",
    "dvc.stage.cache:RunCacheNotFoundError",
    "dvc.stage.cache:RunCacheNotSupported",
    "dvc.stage.cache:StageCache.pull",
    "dvc.stage.cache:StageCache.restore",
    "dvc.stage.cache:StageCache.save",
    "dvc.stage.exceptions:StageFileDoesNotExistError",
    "dvc.stage.exceptions:StageNotFound",
    "dvc.stage.loader:StageLoader.fill_from_lock",
    "dvc.stage.serialize:to_single_stage_lockfile",
    "dvc.stage:create_stage",
    "dvc.utils.serialize:LOADERS",
    "dvc.utils.serialize:YAMLError",
    "dvc.utils.serialize:YAMLFileCorruptedError",
    "dvc.utils.serialize:dumps_yaml",
    "dvc.utils.serialize:load_yaml",
    "dvc.utils.serialize:parse_yaml",
    "dvc.utils.serialize:parse_yaml_for_update",
    "dvc_data.hashfile.hash:fobj_md5",
    "dvc_data.hashfile.state:State",
    "dvc_data.hashfile.tree:Tree",
)
DVC = FastPaths("DVC")
otherwise = DVC.otherwise


@cache
def check_needed() -> None:
    """Raise UserError if the installed DVC lacks an internal that nothing can replace."""
    names = [name.replace(":", ".") for name in NEEDED if not _is_there(name)]
    if names:
        raise UserError(f"{DVC.version} has no {', '.join(names)}, which every run needs: install a release of {RANGE}")


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
