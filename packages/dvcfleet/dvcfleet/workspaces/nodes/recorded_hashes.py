"""The hashes of inputs and outputs, computed from dvc.lock for a run whose data is on the DVC remote and on nodes.

A folder that several stages write into has no entry of its own: its hash is computed from the stages' joined listings.
DVC's `--allow-missing` treats such a folder, and a file in an output folder, as unchanged whenever it is missing.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.listings import file_hash, folder_hash, load_listing, outputs_near, outputs_trie
from dvcfleet.dvc_adapter.objects import in_cache
from dvcfleet.dvc_adapter.protocols import Dependency, Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import tracked_paths
from dvcfleet.dvc_adapter.stages import is_params
from dvcfleet.planning.plan import StageChecks
from dvcfleet.planning.reasons import dependency_reasons, output_reasons
from dvcfleet.workspaces.nodes.object_store import ObjectStore

if TYPE_CHECKING:
    from dvc_data.hashfile.tree import Tree


class RecordedHashes:
    """The hashes of inputs and outputs, without their data; `held` are those that the DVC remote holds."""

    def __init__(self, repo: Repo, store: ObjectStore) -> None:
        self._repo, self.store = repo, store
        self._trees: dict[str, Tree] = {}
        self._sources: dict[str, str] = {}
        self._gitignores: dict[str, str] = {}

    def checks_for(self, steps: Sequence[Stage]) -> StageChecks:
        """Return the checks for a plan's stages, given all of them in its order."""
        self._outs = outputs_trie(steps)
        self._steps = steps
        outs = [out for stage in steps for out in stage.outs if out.use_cache and out.hash_info]
        self.held = self.store.held({out.hash_info.value for out in outs})
        return self.checks

    @property
    def checks(self) -> StageChecks:
        """The checks of a stage without its data; the node that would run it finds out whether it has run before."""
        return StageChecks(self._dependency, self._output, ran_before=lambda stage: False, cached=lambda stage: False)

    def outputs_at(self, dep: Dependency) -> list[Output]:
        """Return the outputs at, above or below a dependency; empty for a source."""
        if is_params(dep) or dep.protocol != "local":
            return []
        return outputs_near(self._outs, dep)

    def inputs(self, stage: Stage) -> list[Output]:
        """Return the outputs that a stage reads."""
        outputs = {out.fs_path: out for dep in stage.deps for out in self.outputs_at(dep)}
        return list(outputs.values())

    def hash_of(self, dep: Dependency) -> str | None:
        """Return the hash of a dependency; None for a path that is missing from the output folder around it."""
        outs = self.outputs_at(dep)
        if not outs:
            return self._source(dep)
        if outs[0].fs_path == dep.fs_path:
            return str(outs[0].hash_info.value)
        if len(outs) == 1 and outs[0].fs.isin(dep.fs_path, outs[0].fs_path):
            return self._part(dep, outs[0])
        return self._whole(dep, outs)

    def gitignores(self, dep: Dependency) -> dict[str, str]:
        """Return the .gitignore files in a folder that stages write into: they are part of the folder's hash."""
        outs = [out for out in self.outputs_at(dep) if out.fs.isin(out.fs_path, dep.fs_path)]
        folders = dict.fromkeys(os.path.dirname(out.fs_path) for out in outs)
        texts = {os.path.join(folder, ".gitignore"): self._ignored(folder) for folder in folders}
        return {path: text for path, text in texts.items() if text}

    def _dependency(self, dep: Dependency) -> list[str]:
        if not self.outputs_at(dep):
            return dependency_reasons(dep)
        return [] if self.hash_of(dep) == dep.hash_info.value else [f"dep {dep} changed"]

    def _output(self, out: Output) -> list[str]:
        # Uncached outputs are files of this machine; data added by `dvc add` may have been edited here.
        if not out.use_cache or (not out.stage.cmd and out.exists):
            return output_reasons(out)
        if out.hash_info.value in self.held or in_cache(out):
            return []
        return [f"output {out} is neither in the cache nor on the DVC remote"]

    def _source(self, dep: Dependency) -> str:
        if dep.fs_path not in self._sources:
            self._sources[dep.fs_path] = str(dep.get_hash().value)
        return self._sources[dep.fs_path]

    def _part(self, dep: Dependency, out: Output) -> str | None:
        """Return the hash of a file or folder in an output folder."""
        key = dep.fs.relparts(dep.fs_path, out.fs_path)
        tree = self._tree(out)
        entry = tree.get(key)
        if entry and entry[1]:
            return str(entry[1].value)
        part = tree.get_obj(out.cache, key)
        return str(part.hash_info.value) if part and part.hash_info else None

    def _whole(self, dep: Dependency, outs: Iterable[Output]) -> str:
        """Return the hash that DVC would find for a folder that several stages write into."""
        files: dict[str, str] = {}
        for out in outs:
            place = out.fs.relparts(out.fs_path, dep.fs_path)
            if out.hash_info.isdir:
                files |= {"/".join((*place, *key)): info.value for key, _, info in self._tree(out)}
            else:
                files["/".join(place)] = out.hash_info.value
        gitignores = self.gitignores(dep)
        texts = {path: hashlib.md5(text.encode()).hexdigest() for path, text in gitignores.items()}
        for path, digest in (self._tracked_in(dep) | texts).items():
            files[from_root(dep.fs_path, path)] = digest
        return folder_hash(files)

    def _tree(self, out: Output) -> "Tree":
        value = out.hash_info.value
        if value not in self._trees:
            self.store.fetch_listing(out.hash_info)
            self._trees[value] = load_listing(out)
        return self._trees[value]

    def _tracked_in(self, dep: Dependency) -> dict[str, str]:
        """Return the hashes of a folder's files that git tracks."""
        paths = [
            path for path in tracked_paths(self._repo) if path.startswith(dep.fs_path + os.sep) and os.path.isfile(path)
        ]
        ignored = self._repo.dvcignore.is_ignored_file
        return {path: file_hash(self._repo, path) for path in paths if not ignored(path)}

    def _ignored(self, folder: str) -> str:
        """Return the text of a folder's .gitignore at the end of a run: its outputs in the plan's order."""
        if folder not in self._gitignores:
            path = Path(folder, ".gitignore")
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            for line in self._lines(folder):
                if line not in text.splitlines():
                    text += f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n"
            self._gitignores[folder] = text
        return self._gitignores[folder]

    def _lines(self, folder: str) -> Iterator[str]:
        from pathspec.patterns import GitWildMatchPattern

        if not under_git(self._repo):
            return
        for out in (out for stage in self._steps for out in stage.outs if out.use_scm_ignore):
            if os.path.dirname(out.fs_path) == folder and not self._repo.scm.is_ignored(out.fs_path):
                yield GitWildMatchPattern.escape(f"/{os.path.basename(out.fs_path)}")
