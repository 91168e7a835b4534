"""Load DVC's index of thousands of stages in seconds: shortcuts for what DVC repeats for each path, edge and stage."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.internals import otherwise
from dvcfleet.errors import in_one_line
from dvcfleet.fast_paths import no_shortcut, replaced

if TYPE_CHECKING:
    from networkx import DiGraph


@contextmanager
def fast_index() -> Iterator[None]:
    """Make DVC read dvc.yaml and parameters, and build its graph, by the shortcuts within the block."""
    with _local_paths(), _acyclic(), _params_once(), _named_errors():
        yield


@otherwise("reading dvc.yaml", no_shortcut)
def _local_paths() -> AbstractContextManager[None]:
    """Resolve plain paths alike: DVC validates each as the configuration of a remote."""
    from dvc import output

    resolve = output.get_cloud_fs
    known: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def resolve_once(config: Any, **options: Any) -> tuple[Any, dict[str, Any], str]:
        url = options.get("url")
        # A path with a colon may be an address.
        if len(options) != 1 or not isinstance(url, str) or ":" in url:
            found: tuple[Any, dict[str, Any], str] = resolve(config, **options)
            return found
        jobs = (config or {}).get("core", {}).get("checksum_jobs")  # all that depends on the configuration
        if jobs not in known:
            known[jobs] = resolve(config, url=url)[:2]
        kind, settings = known[jobs]
        return kind, dict(settings), kind._strip_protocol(url)

    return replaced(output, "get_cloud_fs", resolve_once)


@otherwise("checking the graph of stages", no_shortcut)
def _acyclic() -> AbstractContextManager[None]:
    """Sort the graph to see that it has no cycle; DVC looks for one edge by edge, and only that names it."""
    from dvc.repo import graph

    check = graph.check_acyclic

    def check_by_sorting(stages: "DiGraph") -> None:
        from networkx import is_directed_acyclic_graph

        if not is_directed_acyclic_graph(stages):
            check(stages)

    return replaced(graph, "check_acyclic", check_by_sorting)


@otherwise("reading parameters", no_shortcut)
def _params_once() -> AbstractContextManager[None]:
    """Parse a parameters file once; DVC does it twice for each stage, and the file has a line for all of them."""
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


def _named_errors() -> AbstractContextManager[None]:
    """Name the file of any error, such as one of a date in params.yaml: DVC names that of its own errors only."""
    from dvc.exceptions import DvcException
    from dvc.repo.index import Index

    load: Any = Index.from_file

    def load_or_name(repo: Any, path: str) -> Any:
        try:
            return load(repo, path)
        except DvcException:
            raise
        except Exception as error:
            raise DvcException(f"{os.path.relpath(path)}: {in_one_line(error)}") from error

    return replaced(Index, "from_file", staticmethod(load_or_name))
