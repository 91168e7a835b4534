"""Plain-text tables, one line per row at any terminal width: the plan, the methods."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from dvcfleet.planning.orphans import orphan_lines
from dvcfleet.planning.plan import Plan
from flows.suites import Suite
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
    description = inspect.getdoc(method.function) or ""
    return {
        "name": method.name,
        "summary": description.split("\n")[0],
        "description": description,
        "family": method.family,
        "needs": method.needs,
        "reads": method.reads,
        "joint": method.joint,
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
    """Print one line per method."""
    headings = ("method", "family", "needs", "class", "cost", "parts per task", "parameters", "paper")
    _print(headings, (_method_row(method) for method in described))


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
    settings = ", ".join(f"{each['name']}={default_of(each)}" for each in method["parameters"])
    parts = "yes" if method["parts_per_task"] else "no"
    needs = ", ".join(method["needs"]) + _or_joints(method)
    described = method["name"], method["family"], needs, method["class"], method["cost"]
    return *described, parts, settings, method["paper"]


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


def _print(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print columns as wide as their longest cell."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
