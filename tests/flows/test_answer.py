from flows.answer import Row, best_lines, changed_lines


def row(entry: str, group: str, mean: float, stderr: str = "0.004", data: str = "no data") -> Row:
    return {"entry": entry, "group": group, "mean": str(mean), "stderr": stderr, "data": data}


def test_the_three_best_of_each_group_are_named_with_their_errors() -> None:
    rows = [
        row("individual", "reference", 0.96),
        row("average", "single", 0.648),
        row("ties", "single", 0.7),
        row("tsv_m", "single", 0.72, stderr=""),
        row("regmean", "single", 0.71, data="validation data"),
        row("emr", "parts", 0.9),
    ]
    assert list(best_lines(rows)) == [
        "best of 4 entries with one model for all tasks:",
        "  tsv_m    72.0  no data",
        "  regmean  71.0 ± 0.4  validation data",
        "  ties     70.0 ± 0.4  no data",
        "best of 1 entry with a part per task:",
        "  emr  90.0 ± 0.4  no data",
        "beside them: individual 96.0 ± 0.4",
    ]


def test_what_changed_is_counted_and_the_largest_changes_are_named() -> None:
    before = {name: {"mean": 0.5} for name in ("ties", "dare", "emr", "pcb", "old")}
    now = {name: {"mean": 0.5 + change / 100} for name, change in {"ties": 1, "dare": -3, "emr": 2, "pcb": 0.5}.items()}
    said = "since the last run: 1 new (nan); 1 gone (old); 4 changed (dare -3.0, emr +2.0, ties +1.0, ...)"
    assert list(changed_lines(before, now | {"nan": {"mean": 0.1}})) == [said]
    assert list(changed_lines(before, before)) == ["since the last run: no score changed"]
    assert list(changed_lines({}, now)) == []
