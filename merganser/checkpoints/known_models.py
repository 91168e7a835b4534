"""What the transformers that is installed knows of a model by its `config.json`; no code that came with one is run."""

from collections.abc import Collection, Mapping
from typing import Any


def configured(config: Mapping[str, Any]) -> Any | None:
    """Make a configuration of transformers' own class; None where it is not installed, or does not know the model."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    try:
        return CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    except Exception:  # unknown to this transformers, or refused by it
        return None


def todays_names(config: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return the name that each tensor of a file gets when the installed transformers loads it; {} where it does not.

    By its tables of what earlier versions called a model's parts. The model is built without values.
    """
    model = _without_values(config)
    if model is None:
        return {}
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [change for change in get_model_conversion_mapping(model) if isinstance(change, WeightRenaming)]
    loaded = model.state_dict()
    by_file = {
        name: rename_source_key(name, renamings, [], model.base_model_prefix, loaded)[0] for name in sorted(names)
    }
    return by_file if len(set(by_file.values())) == len(by_file) else {}


def modules_of(config: Mapping[str, Any]) -> set[str] | None:
    """Name the modules of the model that the installed transformers builds; None where it builds none."""
    model = _without_values(config)
    return None if model is None else {name for name, _ in model.named_modules()}


def _without_values(config: Mapping[str, Any]) -> Any | None:
    """Build a model of the class that a configuration names on the meta device; None where that is none."""
    made, classes = configured(config), config.get("architectures")
    if made is None or not isinstance(classes, list) or not classes:
        return None
    import torch
    import transformers

    kind = getattr(transformers, str(classes[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        return None
    try:
        with torch.device("meta"):
            return kind(made)
    except Exception:  # settings that make no model
        return None
