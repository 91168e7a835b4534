"""Describe methods as plain data, and filter them by it."""

from collections.abc import Callable, Sequence
from typing import Any

from merganser.config.inputs import FROM_VALIDATION
from merganser.errors import InputError, did_you_mean
from merganser.registry import Described

BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def describe_method(method: Described) -> dict[str, Any]:
    """Return a method's description as plain data; the keys are stable."""
    schema = method.parameters.model_json_schema()
    return {
        "name": method.name,
        "summary": method.summary,
        "description": method.doc,
        "family": method.family,
        "needs": method.needs,
        "reads": method.reads,
        "joint": method.joint,
        "beside": method.trained,
        "class": method.involvement,
        "efficiency": method.efficiency,
        "cost": method.cost,
        "parts_per_task": not method.one_model,
        "formula": method.formula,
        "law": method.law,
        "paper": method.paper,
        "parameters": [
            _describe_parameter(name, field, name in schema.get("required", ())) | {"ours": name in method.ours}
            for name, field in schema.get("properties", {}).items()
        ],
    }


def matching(described: list[dict[str, Any]], wanted: str | None) -> list[dict[str, Any]]:
    """Choose methods by KEY=VALUE,...; raise InputError for a key or a value that no method has."""
    for pair in wanted.split(",") if wanted else ():
        key, _, value = pair.partition("=")
        if key not in FILTERS:
            raise InputError(f"--for {pair}: expected KEY=VALUE with a key of {', '.join(FILTERS)}")
        values = sorted({each for method in described for each in FILTERS[key](method)})
        if value not in values:
            raise InputError(
                f"--for {pair}: no method has it; there are {', '.join(values)}{did_you_mean(value, values)}"
            )
        described = [method for method in described if value in FILTERS[key](method)]
    return described


def data_of(method: dict[str, Any]) -> str:
    """Return which data a method's inputs are computed from; values of its parameters may be searched besides."""
    reads_data = any(need in FROM_VALIDATION for need in (method["reads"], *method["needs"]))
    return {"NDI": "none", "VDI": "validation", "TTA": "test"}[method["class"]] if reads_data else "none"


def parts_of(method: dict[str, Any]) -> str:
    return "yes" if method["parts_per_task"] else "no"


def or_joints(method: dict[str, Any]) -> str:
    return f" (or joints of side {method['joint']})" if method["joint"] else ""


def _describe_parameter(name: str, field: dict[str, Any], required: bool) -> dict[str, Any]:
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    bounds = [f"{sign} {kind[key]}" for kind in kinds for key, sign in BOUNDS.items() if key in kind]
    return {
        "name": name,
        "type": " or ".join(_type_name(kind) for kind in field.get("anyOf", [field])),
        "required": required,
        "default": field.get("default"),
        "bounds": ", ".join(bounds),
    }


def _type_name(kind: dict[str, Any]) -> str:
    if kind.get("type") == "object":
        return f"map of tasks to {_type_name(kind['additionalProperties'])}"
    if "enum" in kind or "const" in kind:
        return " or ".join(kind.get("enum", [kind.get("const")]))
    if kind.get("type") == "array":
        return f"list of {_type_name(kind['items'])}"
    return {"null": "none"}.get(kind.get("type", "any"), kind.get("type", "any"))


def default_of(parameter: dict[str, Any]) -> str:
    """Format a parameter's default."""
    if parameter["required"]:
        return "required"
    if parameter["default"] is None:
        return "none"
    return str(parameter["default"]).lower() if parameter["type"] == "boolean" else str(parameter["default"])


FILTERS: dict[str, Callable[[dict[str, Any]], Sequence[str]]] = {
    "data": lambda method: [data_of(method)],
    "parts": lambda method: [parts_of(method)],
    "family": lambda method: [method["family"]],
    "cost": lambda method: [method["cost"]],
    "needs": lambda method: method["needs"],
}
