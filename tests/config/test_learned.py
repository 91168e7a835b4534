"""What is learned, and the entries that read it, are checked before any work."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from merganser.config.loading import load_params
from tests.config.test_params import GOOD, Content, complaint, write

LEARNED: Content = copy.deepcopy(GOOD) | {
    "validation": {"split": "validation"},
    "learned": {"ada": {"learner": "adamerging", "of": "deltas", "steps": 10}},
}
LEARNED["methods"]["ada"] = {"method": "adamerging", "reads": "learned/ada"}
REGRESSION = {"source": "hub/stsb", "kind": "regression", "data": {"source": "datasets/stsb"}}


def changed(change: Callable[[Content], object]) -> Content:
    content = copy.deepcopy(LEARNED)
    change(content)
    return content


def test_an_entry_reads_what_was_learned_of_deltas_or_differences(tmp_path: Path) -> None:
    params = load_params(write(tmp_path, LEARNED))
    entry = params.methods["ada"]
    assert (entry.named("learned"), params.inner(entry).reads) == ("ada", "deltas")
    other = changed(lambda c: c["learned"]["ada"].update(of="differences/from_average"))
    params = load_params(write(tmp_path, other))
    assert params.inner(params.methods["ada"]).difference == "from_average"


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (
            lambda c: c["learned"]["ada"].update(learner="adamergin"),
            "learned.ada.learner: ",
            "'adamergin' is not a learner; known: ",
        ),
        (lambda c: c["learned"]["ada"].update(learner="adamergin"), "learned.ada.learner: ", '"adamerging"?'),
        (lambda c: c["learned"]["ada"].update(stps=3), "learned.ada.stps: ", 'unknown key; did you mean "steps"?'),
        (lambda c: c["learned"]["ada"].update(lr=0), "learned.ada.lr: ", "greater than 0, got 0"),
        (lambda c: c["learned"]["ada"].update(steps="10"), "learned.ada.steps: ", "got '10'"),
        (
            lambda c: c["learned"]["ada"].update(granularity="layers"),
            "learned.ada.granularity: ",
            'did you mean "layer"?',
        ),
        (
            lambda c: c["learned"]["ada"].update(of="svd"),
            "learned.ada.of: ",
            "adamerging reads deltas, or differences/NAME, got 'svd'",
        ),
        (
            lambda c: c["learned"]["ada"].update(of="differences/from_avrage"),
            "learned.ada.of: ",
            'did you mean "from_average"?',
        ),
        (
            lambda c: c["learned"].update(
                regions={"learner": "localize_stitch_learned", "of": "deltas", "examples": 0}
            ),
            "learned.regions.examples: ",
            "greater than or equal to 1, got 0",
        ),
        (lambda c: c["learned"]["ada"].update(examples=8), "learned.ada.examples: ", "unknown key"),
        (
            lambda c: (c["tasks"].update(stsb=REGRESSION), c["base"].update(family="encoder")),
            "tasks.stsb.kind: ",
            "regression has no classes, but learned.* need class probabilities",
        ),
        (
            lambda c: (c["learned"]["ada"].update(learner="wemoe"), c["base"].update(family="seq2seq")),
            "learned.ada.learner: ",
            "wemoe mixes the MLPs of blocks, which seq2seq does not name; the families that do are clip, encoder, ",
        ),
        (
            lambda c: c["learned"]["ada"].update(learner="regmean_plus_plus"),
            "learned.ada.steps: ",
            "unknown key",
        ),
        (
            lambda c: (
                c["learned"]["ada"].pop("steps"),
                c["learned"]["ada"].update(learner="adarank", of="svd"),
                c["methods"]["ada"].update(method="adarank"),
            ),
            "methods.ada: ",
            "needs the first 1 of each spectrum for 4 tasks, decompose.rank_fraction is 0.3; raise it",
        ),
        (
            lambda c: c["methods"]["ada"].update(reads="learned/aad"),
            "methods.ada.reads: ",
            "no 'aad' under learned, there are ada, got 'learned/aad'; did you mean \"ada\"?",
        ),
        (
            lambda c: c["methods"]["ada"].update(reads="deltas"),
            "methods.ada.reads: ",
            "adamerging applies learned values, got 'deltas'; read learned/ada",
        ),
        (
            lambda c: (c.pop("learned"), c["methods"]["ada"].update(reads="deltas")),
            "methods.ada.reads: ",
            "declare learned: {NAME: {learner: adamerging, of: deltas}}, and read learned/NAME",
        ),
        (
            lambda c: c["methods"]["ties_20"].update(reads="learned/ada"),
            "methods.ties_20.reads: ",
            "ties applies no learned values, got 'learned/ada'; read deltas",
        ),
        (
            lambda c: c["studies"]["tasks"]["methods"].update(ada={"method": "adamerging", "reads": "learned/ada"}),
            "studies.tasks.methods.ada.reads: ",
            "learned/ada was learned of all tasks, not a subset's; take the entry out",
        ),
    ],
)
def test_a_mistake_is_refused_by_its_place(
    change: Callable[[Content], object], place: str, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path, changed(change))
    (line,) = [line for line in complaint(path).splitlines() if line.startswith(f"{path}: {place}")]
    assert words in line


def test_a_merge_block_by_block_takes_tasks_without_classes(tmp_path: Path) -> None:
    def by_blocks(content: Content) -> None:
        content["learned"] = {"ada": {"learner": "regmean_plus_plus", "of": "deltas"}}
        content["methods"]["ada"]["method"] = "regmean_plus_plus"
        content["tasks"]["stsb"] = REGRESSION
        content["base"]["family"] = "encoder"

    path = write(tmp_path, changed(by_blocks))
    assert "learned" not in complaint(path)
