import io
from pathlib import Path

from rich.console import Console

from dvcfleet.console import overview, show_packages
from dvcfleet.messages import Ending, Outcome, Result, Start
from dvcfleet.planning.plan import PlannedStage, State
from dvcfleet.record.environments import environment
from dvcfleet.record.ledger import Ledger
from dvcfleet.scheduling.durations import last_durations

WORK = [
    PlannedStage("code", State.STALE, ("dep tasks changed",), ()),
    PlannedStage("merge@ties", State.STALE, ("dep a changed",), ()),
    PlannedStage("merge@dare", State.STALE, ("dep a changed",), ()),
    PlannedStage("merge@star", State.RESTORABLE, ("params seed changed",), ()),
    PlannedStage("score@ties-dark", State.WAITING, ("reads from merge@ties",), ("merge@ties",)),
    PlannedStage("score@dare-dark", State.WAITING, ("reads from merge@dare",), ("merge@dare",)),
]


def test_stages_of_a_kind_share_a_line_for_each_reason() -> None:
    assert list(overview(WORK, {"merge@ties": 61.0, "merge@dare": 60.0})) == [
        "code: stale (dep tasks changed)",
        "merge: 2 stale, 1 restorable; took 2 min before",
        "    stale (dep a changed): ties, dare",
        "    restorable (params seed changed): star",
        "score: 2 waiting",
        "    waiting: ties-dark, dare-dark",
    ]


def test_what_a_stage_took_is_what_it_took_last(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "a run", lambda: None)
    for seconds, result in ((1.0, Result.DONE), (2.0, Result.DONE), (9.0, Result.FAILED)):
        ledger.note(Ending("merge@ties", result, outcome=Outcome("merge@ties", 0, seconds)), None, {})
    assert last_durations(tmp_path) == {"merge@ties": 2.0}


def test_packages_that_differ_between_nodes_are_named_with_the_nodes() -> None:
    here = environment()
    older = here | {
        "packages": {name: each for name, each in here["packages"].items() if name != "rich"} | {"dvc": "3"}
    }

    def said(*starts: Start | None) -> str:
        shown = io.StringIO()
        outcomes = [Outcome(f"s{number}", 0, start=start) for number, start in enumerate(starts)]
        show_packages(
            [Ending(each.name, Result.DONE, outcome=each) for each in outcomes], Console(file=shown, width=400)
        )
        return shown.getvalue()

    one, same, other = (Start(0.0, host, about) for host, about in (("one", here), ("same", here), ("other", older)))
    assert said(one, one, same, None, Start(0.0, "run")) == ""
    dvc, rich = here["packages"]["dvc"], here["packages"]["rich"]
    assert said(one, other, same) == (
        f"stages ran with different packages: dvc ({dvc} on one, same, 3 on other), "
        f"rich ({rich} on one, same, no version on other); give all nodes the same environment\n"
    )
