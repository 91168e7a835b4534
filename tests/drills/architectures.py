"""Merge tiny models that transformers saved, of eighteen architectures and of every class, and some of timm."""

import os
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.checkpoints.merge_table import DTYPES, LAYOUTS, METHODS, rows, table
from tests.every_class import KINDS, LEFT_OUT, classes, tried
from tests.timm_models import MODELS as TIMM
from tests.transformers_models import MODELS


def drill(folder: Path, sample: bool) -> None:
    """Merge all models by ten methods in each dtype and layout, print the table, and do so with every class."""
    if sample:
        print(table(list(rows(folder, ["gpt2"], METHODS[:1], ["float32"], ["whole"]))), flush=True)
        passed, said = said_of("timm/resnet", METHODS[:1], ["float32"], ["whole"])
        assert passed, said
        return
    print(table(list(rows(folder, list(MODELS), METHODS, list(DTYPES), list(LAYOUTS)))), flush=True)
    failed = every_class(METHODS, list(DTYPES), list(LAYOUTS))
    assert not failed, f"{len(failed)} classes: {', '.join(failed)}"


def every_class(methods: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]) -> list[str]:
    """Merge a model of every class, one a core at a time; print a line for each, return who failed."""
    print(summary(), flush=True)
    names = [*tried(), *TIMM]
    merge_class = partial(said_of, methods=methods, dtypes=dtypes, layouts=layouts)
    failed = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for name, (passed, said) in zip(names, pool.map(merge_class, names), strict=True):
            print(said, flush=True)
            failed += [] if passed else [name]
    return failed


def said_of(name: str, methods: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]) -> tuple[bool, str]:
    """Merge models of a class; return whether all is as it should, and a line that says so, or the traceback."""
    kind = tried().get(name, "timm")  # which writes no shards
    with TemporaryDirectory() as place:
        try:
            found = list(rows(Path(place), [name], methods, dtypes, ["whole"] if kind == "timm" else layouts))
        except Exception:  # the other classes are tried all the same
            return False, f"{kind}: {name} FAILED\n{traceback.format_exc()}"
    worst = max(error for row in found for error in row.errors.values())
    return True, f"{kind}: {name}: at most {worst:.2g} roundings"


def summary() -> str:
    """Say how many classes of each kind are tried, and which are left out."""
    of, all_of = Counter(tried().values()), Counter(kind for kind, _ in classes().values())
    lines = [f"{kind}: {of[kind]} of {all_of[kind]} classes" for kind in KINDS]
    lines += [f"timm: {len(TIMM)} architectures"]
    lines += [f"left out, for it {reason}: {', '.join(names)}" for reason, names in LEFT_OUT.items()]
    return "\n".join([f"{of.total()} of {all_of.total()} classes", *lines])
