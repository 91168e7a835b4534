"""Pull from the DVC remote what `dvc repro --pull` would: the run cache, and the data that a stage lacks."""

from collections.abc import Callable

from dvcfleet.dvc_adapter.listings import outputs_near
from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage


def pull_run_cache(repo: Repo, say: Callable[[str], object]) -> None:
    """Copy the remote's run cache into the local one; say so if there is none."""
    from dvc.stage.cache import RunCacheNotSupported

    try:
        repo.stage_cache.pull(None)
    except RunCacheNotSupported as error:
        say(f"the run cache was not pulled: {error}")


def pull_outputs(stage: Stage) -> bool:
    """Put a stage's recorded outputs into the workspace, pulled if the cache lacks them; tell whether all are there."""
    from dvc.exceptions import CheckoutError, CollectCacheError

    for out in stage.outs:
        try:
            _pull(out)
            out.checkout(force=True)
        except (CheckoutError, CollectCacheError):
            return False
    return True


def pull_missing_inputs(stage: Stage) -> None:
    """Pull a stage's missing inputs that other stages write; raises DvcException if the remote lacks them."""
    for dep in stage.deps:
        if dep.protocol == "local" and not dep.exists:
            for out in outputs_near(dep.repo.index.outs_trie, dep):
                inside = dep.fs_path if dep.fs.isin(dep.fs_path, out.fs_path) else None
                _pull(out, inside)
                out.checkout(force=True, filter_info=inside)


def _pull(out: Output, inside: str | None = None) -> None:
    """Pull what the cache lacks of an output, or of a path inside it."""
    if not out.changed_cache(filter_info=inside):
        return
    for remote, objects in out.get_used_objs(filter_info=inside).items():
        out.repo.cloud.pull(objects, odb=remote)
