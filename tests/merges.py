"""Merges of models on disk, as `merganser merge` does them, by what a test varies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.vocabulary.plan import TokenizerChoice
from merganser.checkpoints.writing import AS_THE_BASE, OutputFormat
from merganser.config.recipes import Recipe, Source
from merganser.standalone.merge import merge_by

ALL = ParameterRules()
AS_IT_IS = TokenizerChoice()


def merge_checkpoints(
    method: str,
    values: Mapping[str, Any],
    base: Path | None,
    models: Mapping[str, Path],
    out: Path,
    *,
    classes: Mapping[str, Sequence[str]] | None = None,
    rules: ParameterRules = ALL,
    device: str = "auto",
    output: OutputFormat = AS_THE_BASE,
    choice: TokenizerChoice = AS_IT_IS,
    **how: Any,
) -> list[str]:
    """Merge models onto their base, or onto their mean where there is none; return what a user should know."""
    recipe = Recipe.model_validate(
        {
            "method": method,
            "parameters": values,
            "base": base and Source(path=str(base.absolute())),
            "models": {name: Source(path=str(path.absolute())) for name, path in models.items()},
            "classes": {name: list(names) for name, names in (classes or {}).items()},
            "only": list(rules.merged),
            "excepted": list(rules.heads),
            "matrices": rules.matrices,
            "dtype": output.dtype,
            "max_shard_size": output.max_shard_size,
            "tokenizer": choice.tokenizer,
            "rows": choice.rows,
            "chat_template": choice.chat_template,
            "device": device,
        }
    )
    return merge_by(recipe, Path("merge.yaml"), out, **how)
