"""Plain-text tables, one line per row at any terminal width: the plan, the methods."""

import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dvcfleet.planning.orphans import orphan_lines
from dvcfleet.planning.plan import Plan
from flows.suites import Suite
from merganser.config.data_class import READ_DATA
from merganser.errors import InputError, did_you_mean
from merganser.merging.method import Method

BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def print_plan(plan: Plan) -> None:
    """Print each stage's state and reasons, the outputs without a stage, and the counts."""
    rows = ((node.name, node.state.value, "; ".join(node.reasons)) for node in plan.nodes.values())
    _print(("stage", "state", "why"), rows)
    for line in orphan_lines(plan.orphans):
        print(line)
    print(", ".join(f"{count} {state}" for state, count in plan.as_json()["counts"].items() if count))


def describe_method(method: Method) -> dict[str, Any]:
    """Return a method's description as plain data; the keys are stable."""
    schema = method.parameters.model_json_schema()
    return {
        "name": method.name,
        "summary": method.summary,
        "description": inspect.getdoc(method.function) or "",
        "family": method.family,
        "needs": method.needs,
        "reads": method.reads,
        "joint": method.joint,
        "beside": method.beside,
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


def print_methods(described: list[dict[str, Any]]) -> None:
    """Print one line per method, as wide as the terminal if there is one."""
    rows = [_method_row(method) for method in described]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    _print(("method", "family", "data", "parts per task", "needs", "what it does"), rows, width)


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


def print_suites(suites: Sequence[Suite]) -> None:
    """Print one line a suite; of one whose params.yaml is refused, why."""
    rows = [
        (
            "*" if suite.in_use else "",
            suite.name,
            suite.family,
            " ".join(suite.tasks),
            suite.mistake.splitlines()[0] if suite.mistake else str(len(suite.entries)),
        )
        for suite in suites
    ]
    _print(("", "suite", "family", "tasks", "entries"), rows)


def print_method(method: dict[str, Any]) -> None:
    """Print one method and its parameters."""
    print(f"{method['name']}: {method['summary']}")
    parts = "with" if method["parts_per_task"] else "without"
    needs = " and ".join(method["needs"]) + _or_joints(method)
    print(f"needs {needs}, {method['class']}, cost {method['cost']}, {parts} parts per task; {method['paper']}")
    print(f"formula: {method['formula']}")
    print(f"law: {method['law']}")
    if method["parameters"]:
        _print(("parameter", "type", "default", "bounds"), (_parameter_row(each) for each in method["parameters"]))
    else:
        print("no parameters")


def _method_row(method: dict[str, Any]) -> tuple[str, ...]:
    needs = ", ".join(method["needs"]) + _or_joints(method)
    return method["name"], method["family"], _data(method), _parts(method), needs, method["summary"]


def _data(method: dict[str, Any]) -> str:
    """Return which data a method's inputs are computed from; values of its parameters may be searched besides."""
    reads_data = method["beside"] or any(need in READ_DATA for need in (method["reads"], *method["needs"]))
    return {"NDI": "none", "VDI": "validation", "TTA": "test"}[method["class"]] if reads_data else "none"


def _parts(method: dict[str, Any]) -> str:
    return "yes" if method["parts_per_task"] else "no"


def _or_joints(method: dict[str, Any]) -> str:
    return f" (or joints of side {method['joint']})" if method["joint"] else ""


def _parameter_row(parameter: dict[str, Any]) -> tuple[str, ...]:
    return parameter["name"], parameter["type"], default_of(parameter), parameter["bounds"]


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
    "data": lambda method: [_data(method)],
    "parts": lambda method: [_parts(method)],
    "family": lambda method: [method["family"]],
    "cost": lambda method: [method["cost"]],
    "needs": lambda method: method["needs"],
}


def _print(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], most: int | None = None) -> None:
    """Print columns as wide as their longest cell, lines cut to `most` characters."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if most is None or len(text) <= most else f"{text[: most - 1]}…")
