from pathlib import Path

from dvcfleet.console import overview
from dvcfleet.messages import Ending, Outcome, Result
from dvcfleet.planning.plan import PlannedStage, State
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
