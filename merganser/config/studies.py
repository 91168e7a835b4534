"""The entries that studies merge all tasks by: a sweep one a value, an ablation one a step and searched value."""

from collections.abc import Iterator, Mapping
from typing import Any

from merganser.config.inputs.base import known_method
from merganser.config.params import Ablation, Entry, Params, Sweep
from merganser.merging.method import Method
from merganser.studies.candidates import default_grid, value_combinations

WHOLE = "whole"  # the ablated entry itself, among its steps
FIXED = "fixed"  # in place of a budget: the bytes that an entry's parts have by themselves


def sweep_entries(sweep: Sweep) -> list[Entry]:
    """List the entries of a sweep, in the order of its values."""
    return [sweep.at(values) for values in value_combinations(sweep.over)]


def steps_of(ablation: Ablation) -> dict[str, Entry]:
    """Return an ablation's entries by their step, the whole one first, without what is searched for each."""
    return {step: ablation.at(values) for step, values in {WHOLE: {}, **ablation.steps}.items()}


def ablation_candidates(ablation: Ablation, entry: Entry) -> list[dict[str, Any]]:
    """Return the values of parameters that are tried for one entry of an ablation; one empty map for none."""
    return value_combinations(
        {name: values for name, values in ablated_values(ablation).items() if name not in entry.values}
    )


def ablated_values(ablation: Ablation) -> Mapping[str, list[Any]]:
    """Return what an ablation searches: its own, or the scaling of a method that has one."""
    method = known_method(ablation.method)
    if ablation.over is not None or method is None:
        return ablation.over or {}
    return default_grid({"scaling"} & set(method.parameters.model_fields))


def budgets_of(params: Params, method: Method) -> dict[str, float | None]:
    """Return the budgets of a method's entry by their names: those of the study, or its own size if that is fixed."""
    return {FIXED: None} if method.within is None else {f"{budget:g}": budget for budget in params.studies.budgets.at}


def studied_entries(params: Params) -> Iterator[tuple[str, Entry]]:
    """List the entries of all studies, each with its place in the file."""
    for name, entry in params.studies.tasks.methods.items():
        yield f"studies.tasks.methods.{name}", entry
    for name, sweep in params.studies.sweeps.items():
        for one in sweep_entries(sweep):
            yield f"studies.sweeps.{name}", one
    for name, budgeted in params.studies.budgets.methods.items():
        yield f"studies.budgets.methods.{name}", budgeted
    for name, ablation in params.studies.ablations.items():
        for step, one in steps_of(ablation).items():
            for values in ablation_candidates(ablation, one):
                yield f"studies.ablations.{name}" + ("" if step == WHOLE else f".steps.{step}"), one.at(values)
