"""What a params.yaml need not say, for the models and the data that it names say it.

Both read files that lie here alone: of what a pointer names at a hub, the file itself says it. Imports torch and, for
configurations of transformers, that.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from merganser.checkpoints.architecture import CONFIG, read_config
from merganser.checkpoints.reading import open_checkpoint
from merganser.config.params import UNMEASURED, Data
from merganser.config.tasks import fits
from merganser.errors import InputError
from merganser.evaluation import get_kind, kind_names
from merganser.evaluation.evaluator import open_evaluator
from merganser.evaluation.saved import read_headers
from merganser.models import family_names, get_family
from merganser.plugins import own_configurations
from merganser.sources.columns import rename_columns
from merganser.sources.packages import lying
from merganser.sources.pointers import OpenClipPointer, read_pointer


def family_of(source: Path) -> str | None:
    """Return the family whose configuration lies beside a model's weights; None where that is none, or several."""
    with suppress(InputError, OSError):
        path = lying(source)
        if path is None:
            return "open_clip" if isinstance(read_pointer(source), OpenClipPointer) else None
        folder = path if path.is_dir() else path.parent
        config = (read_config(folder / CONFIG) or {}).get("model_type")
        found = [name for name, file in own_configurations().items() if (folder / file).is_file()]
        if config is not None:
            found += [name for name in family_names() if config in get_family(name).MODEL_TYPES]
        if len(found) > 1:  # as of a repository with both a model of open_clip and of transformers: by their names
            found = [name for name in found if _holds(name, path)]
        return found[0] if len(found) == 1 else None
    return None


def _holds(family: str, source: Path) -> bool:
    try:
        get_family(family).check(source, open_checkpoint(source))
    except InputError:
        return False
    return True


def infer_task_kind(data: Mapping[str, Any], family: str, source: Path) -> str | None:
    """Return the one kind of task that a family does and that a task's keys and the columns of its data fit.

    `data`: what the file says of the data, which lie at `source`. None where no kind fits, or several do.
    """
    own = {key: value for key, value in data.items() if key not in Data.model_fields}
    kinds = [name for name in kind_names() if name != UNMEASURED and family in family_names()]
    fitting = [name for name in kinds if fits(get_kind(name), family) and _takes(name, own, data, source)]
    return fitting[0] if len(fitting) == 1 else None


def _takes(kind: str, own: Mapping[str, Any], data: Mapping[str, Any], source: Path) -> bool:
    """Tell whether a kind has these keys of its own, and can read the columns of the data, if they are here."""
    try:
        evaluator = open_evaluator(kind, own, None)
        path = lying(source)
        if path is not None:
            evaluator.check_data(rename_columns(read_headers(path), data.get("columns") or {}, source), source)
    except (InputError, ValidationError, OSError):
        return False
    return True
