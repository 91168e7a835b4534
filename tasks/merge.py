"""Merge the tasks' models by one entry of `methods`."""

from functools import partial
from typing import Any

from merganser import registry
from merganser.checkpoints.agreement import Agreement
from merganser.checkpoints.companions import ModelOrigin, model_origin
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_for_merging
from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.linalg import loops  # noqa: F401  # are compiled once, which is no time of the first merge
from merganser.merging.cards import CARD, model_card, usage
from merganser.merging.entry import merge_entry
from merganser.merging.licences import LICENCES, licence_warnings
from merganser.merging.method import Method
from merganser.models import usable_device
from merganser.outputs import fresh_folder, read_json
from merganser.tasks.opening import SEARCH, input_profile, open_source, opening_of, start_of
from merganser.tasks.stage import check_card, check_found, run_main, stage
from merganser.tasks.stages import BASE, COMPANIONS, DATA, MERGE_PROFILES, MERGED, SOURCES, seed_folders
from merganser.workers import threads_wanted


def model_origins(params: Params) -> dict[str, ModelOrigin]:
    """Return where the base and the tasks' models came from."""
    tasks = {name: ModelOrigin(**read_json(SOURCES / f"{name}.json")) for name in sorted(params.tasks)}
    return {"(base)": model_origin(BASE), **tasks}


def card_of(key: str, params: Params, method: Method, values: dict[str, Any], seed: int) -> dict[str, str]:
    """Return the text of the card of an entry's merge with one seed."""
    shown = usage(method, params.base.family, next(iter(params.tasks)))
    reads, family = params.methods[key].reads, params.base.family
    return {CARD: model_card(key, method, values, reads, seed, BASE, model_origins(params), shown, family=family)}


@stage("methods")
def main(params: Params, key: str) -> None:
    """Merge by the entry named on the command line."""
    rules = ParameterRules(params.parameters.merged, params.parameters.matrices, params.base.heads)
    companions = {task: COMPANIONS / task for task in params.tasks}
    for note in Agreement(BASE, rules).compare_among(companions, open_for_merging(BASE)):
        print(note)
    entry = params.methods[key]
    check_found("methods", entry.method)
    check_card(params.base.family)
    method = registry.get(entry.method)
    tasks, inner, opening = sorted(params.tasks), params.inner(entry), opening_of(entry)
    noted, warned = input_profile(entry, tasks), licence_warnings(model_origins(params))
    written = noted[SEARCH]["chosen"] if SEARCH in noted else entry.values
    values = method.validate(f"methods.{key}", written)
    chosen = Entry(method=entry.method, reads=entry.reads, **written)
    base = start_of(entry, inner.reads) / "base" if inner.difference else BASE
    profile, device = MERGE_PROFILES / f"{key}.json", usable_device(params.merge.device, "merge.device")
    seeds = params.seeds if opening.drawn or method.is_random(values) else [params.first_seed]
    for seed, out in seed_folders(MERGED / key, seeds).items():
        first = seed == params.first_seed
        part = str(out.relative_to(MERGED / key)) if opening.drawn else ""
        source = open_source(chosen, inner.reads, tasks, seed, part)
        with fresh_folder(out) as folder:
            merge_entry(
                method,
                values,
                source,
                base,
                folder,
                profile if first else None,
                partial(card_of, key, params, method, values, seed),
                device,
                threads_wanted(),
                read=DATA / entry.reads / part,
                noted=noted | ({LICENCES: warned} if warned else {}),
            )


if __name__ == "__main__":
    run_main(main)
