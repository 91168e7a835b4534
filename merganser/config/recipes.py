"""Recipes: `merge.yaml` next to a merged model has everything needed to repeat the merge."""

import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from merganser.checkpoints.kinds import MatrixRule, ParameterRules
from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.checkpoints.writing import Dtype, OutputFormat
from merganser.config.sections import NAME
from merganser.config.text import as_yaml
from merganser.errors import InputError, did_you_mean
from merganser.hashes import sha256_of
from merganser.limits import read_yaml
from merganser.sources.named import fetch_named, hashes, hub_name, read_files
from merganser.sources.pointers import HubPointer

RECIPE = "merge.yaml"
ABOUT = "# `merganser merge {name} --out DIR` repeats this merge, made by merganser {merganser} with torch {torch}.\n"

_version = cache(metadata.version)  # which reads all that a package says of itself
Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Source(_Strict):
    """A model: its folder or file, relative to the recipe's folder, or its name and commit on a hub.

    `sha256`: the hash of each file that is read; a model with other hashes is refused.
    """

    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    sha256: Mapping[str, str] = {}

    @model_validator(mode="after")
    def _says_where(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("needs either a path or a hub")
        return self


class Recipe(_Strict):
    """A merge; the keys are the options of `merganser merge`."""

    method: str
    parameters: Mapping[str, Any] = {}
    base: Source | None = None
    models: Annotated[Mapping[Name, Source], Field(min_length=1)]
    classes: Mapping[str, list[str]] = {}
    only: list[str] = ["*"]
    excepted: Annotated[list[str], Field(alias="except")] = []
    matrices: MatrixRule = "linear"
    dtype: Dtype | None = None
    max_shard_size: Annotated[int, Field(gt=0)] | None = None
    tokenizer: str | None = None
    rows: Mapping[str, str] = {}
    chat_template: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    notes: list[str] = []  # what the merge said at its end

    @property
    def choice(self) -> TokenizerChoice | None:
        """Return the model with the merge's tokenizer and chat template; None for the base's, unchanged."""
        choice = TokenizerChoice(self.tokenizer, self.rows, self.chat_template)
        return choice if choice != TokenizerChoice() else None

    @property
    def rules(self) -> ParameterRules:
        """Return which parameters are merged, and which as matrices."""
        return ParameterRules(tuple(self.only), self.matrices, tuple(self.excepted), flags=True)

    @property
    def output(self) -> OutputFormat:
        """Return the format of the merged model."""
        return OutputFormat(self.dtype, self.max_shard_size)

    def text(self) -> str:
        """Return the recipe as YAML, without values that equal the defaults."""
        about = ABOUT.format(name=RECIPE, merganser=_version("merganser"), torch=_version("torch"))
        return about + as_yaml(self.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def source_named(text: str) -> Source:
    """Parse a model on the command line: a path, or `org/name@revision` on a hub."""
    named = hub_name(text)
    return Source(hub=named[0], revision=named[1]) if named else Source(path=text)


def source_of(
    path: Path,
    folder: Path,
    pointer: HubPointer | None,
    copied: bool = False,
    digest: Callable[[Path], str] = sha256_of,
) -> Source:
    """Describe a model on disk, or on a hub, for a recipe in a folder, with the hashes of the files that are read."""
    digests = hashes(path, read_files(path, copied), digest)
    if pointer is not None:
        return Source(hub=pointer.hub, revision=pointer.revision, sha256=digests)
    return Source(path=Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix(), sha256=digests)


def path_of(source: Source, folder: Path) -> Path:
    """Return the path of a recipe's model, for a recipe in this folder; a model on a hub is downloaded."""
    return fetch_named(source.hub, source.revision)[0] if source.hub else folder / (source.path or "")


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; raise InputError naming what is wrong."""
    return checked_recipe(read_yaml(path), str(path))


def checked_recipe(content: Any, place: str) -> Recipe:
    """Check a recipe's content; raise InputError naming the place and what is wrong there."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        mistake = error.errors()[0]
        key = ".".join(str(part) for part in mistake["loc"])
        keys = [field.alias or name for name, field in Recipe.model_fields.items()]
        unknown = mistake["type"] == "extra_forbidden"
        said = f"unknown key{did_you_mean(key, keys)}" if unknown else mistake["msg"]
        raise InputError(f"{place}: {key or 'the file'}: {said}") from error


def check_unchanged(recipe: Path, key: str, source: Source, path: Path, copied: bool = False) -> None:
    """Refuse a model whose files differ from the recipe's: other hashes, or other files."""
    if not source.sha256:
        return
    names = read_files(path, copied)
    changed = sorted(source.sha256.keys() ^ set(names))
    digests = {} if changed else hashes(path, names)
    changed += [name for name, digest in digests.items() if source.sha256[name] != digest]
    if changed:
        kind = "has changed" if changed[0] in digests else "is new there" if changed[0] in names else "is gone"
        raise InputError(
            f"{recipe}: {key}: {changed[0]} of {source.hub or path} {kind} since the recipe was written; put the file "
            f"back as it was, or take sha256 of {key} out of the recipe to merge the current file"
        )
