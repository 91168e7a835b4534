"""The audit of the project's own pipeline on two tiny tasks: whence each number comes, and ten kinds of tampering."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from hashlib import md5
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.errors import FailedError
from dvcfleet.lineage.audit import audit, look_up
from dvcfleet.lineage.hooks import find_target
from dvcfleet.lineage.show import SHORT
from dvcfleet.lineage.steps import Finding, FindingKind
from dvcfleet.repository import opened
from merganser.errors import InputError
from merganser.flows.commands.cli import main
from merganser.flows.comparison import Merganser
from merganser.tasks.code import recorded_code
from merganser.tasks.stage import code_tree
from merganser.tasks.stages import CODE
from tests.dvcfleet.test_lineage import overwrite
from tests.flows.conftest import Done, Refused
from tests.tiny import delete_run, dvc, is_clean, merganser, move_artifacts


@pytest.fixture(scope="module")
def ran(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the tiny comparison's repository for these tests."""
    copy = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("lineage") / "project", symlinks=True))
    move_artifacts(copy)
    dvc(copy, "status", "-q")  # so that DVC knows the copied files by their times, as it does after a run
    return copy


@pytest.fixture
def project(ran: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give that repository, and take back what a test did to its files."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(ran)
    folders = ("data", "hub", "mlartifacts", "report", ".dvcfleet/environments", ".dvc/cache/runs")
    named = ("tasks/merge.py", "params.yaml", "dvc.yaml", "dvc.lock", ".dvcfleet/ledger.jsonl", "metrics.json")
    files = [*(path for folder in folders for path in ran.glob(f"{folder}/**/*")), *(ran / name for name in named)]
    before = {path: (path.read_bytes(), path.stat()) for path in files if path.is_file()}
    with closing(sqlite3.connect(":memory:")) as saved, closing(sqlite3.connect(ran / "mlflow.db")) as store:
        store.backup(saved)
        yield ran
        saved.backup(store)
    for path in {path for folder in folders for path in ran.glob(f"{folder}/**/*") if path.is_file()} - {*before}:
        path.unlink()
    for path, (content, info) in before.items():
        if not path.exists() or path.read_bytes() != content:
            if path.exists():
                path.chmod(0o644)  # in place: DVC knows a file by its inode too
            path.write_bytes(content)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
            path.chmod(info.st_mode)


def findings(folder: Path, target: str | None = None) -> tuple[Finding, ...]:
    return audit(folder, target).findings


def test_of_an_untouched_project_it_is_said_what_was_compared_and_the_exit_code_is_0(
    project: Path, done: Done, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["merganser", "lineage", "verify"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("nothing has changed: ")
    for what in (
        "63 stages",
        "63 lines of the ledger",
        "MLflow's runs of 7 entries",
        "1 environment",
        "of the run cache",
        "the report",
    ):
        assert what in said.out
    counts = json.loads(done(project, "lineage", "verify", "ties/dark", "--json"))
    assert counts["findings"] == []
    assert 5 < counts["stages"] < 30
    assert counts["size"] > 1e5


def test_the_commands_that_the_report_prints_check_it(project: Path, done: Done) -> None:
    origin = json.loads((project / "report/origin.json").read_text())
    assert origin["anchor"] == f"Ledger-Anchor: {origin['lines']} {origin['head']}"
    assert origin["anchor"] in (project / "report/index.html").read_text()
    assert origin["lines"] == 62  # all stages but the report's own
    assert done(project, "lineage", "verify", "--anchored", origin["anchor"]).startswith("nothing has changed: ")


def test_records_of_versions_that_wrote_neither_user_nor_means_do_not_differ(project: Path) -> None:
    with closing(sqlite3.connect(project / "mlflow.db")) as store, store:
        for table in ("metrics", "latest_metrics"):
            store.execute(f"DELETE FROM {table} WHERE key LIKE 'score_mean/%'")
        store.execute("DELETE FROM tags WHERE key LIKE 'mlflow.source.%' AND key NOT LIKE '%commit'")
        store.execute("DELETE FROM tags WHERE key = 'mlflow.user'")
    assert findings(project) == ()


@pytest.mark.parametrize("key", ["mlflow.user", "mlflow.source.name", "score_mean/ties"])
def test_another_user_source_or_mean_in_mlflow_is_found(project: Path, key: str) -> None:
    with closing(sqlite3.connect(project / "mlflow.db")) as store, store:
        if "/" in key:
            store.execute("UPDATE latest_metrics SET value = 0.5 WHERE key = ?", (key,))
        else:
            store.execute("UPDATE tags SET value = 'mallory' WHERE key = ?", (key,))
    found = findings(project)
    assert found
    assert all(key in each.message for each in found)


def test_a_changed_study_in_mlflow_is_found(project: Path) -> None:
    studies = "run_uuid IN (SELECT run_uuid FROM tags WHERE key = 'merganser.study')"
    with closing(sqlite3.connect(project / "mlflow.db")) as store, store:
        for table in ("metrics", "latest_metrics"):
            store.execute(f"UPDATE {table} SET value = 0.5 WHERE key = 'score_mean' AND {studies}")
    for file in sorted(project.glob("mlartifacts/**/points.json"))[:1]:
        overwrite(file)
    assert {each.message for each in findings(project)} == {
        "score_mean is not the study's curve",
        "points.json is not its points",
    }


def test_lineage_is_shown_from_any_folder_of_the_project_by_paths_from_there(project: Path, done: Done) -> None:
    cell = done(project, "lineage", "show", "data/metrics/ties/dark.json").replace("data/metrics", "metrics")
    shown = done(project / "data", "lineage", "show", "metrics/ties/dark.json").replace("data/metrics", "metrics")
    assert shown == cell
    assert "merge@ties" in cell
    assert done(project / "data/merged", "lineage", "verify", "ties").startswith("nothing has changed: ")


def _flip(name: str) -> Callable[[Path], None]:
    return lambda folder: overwrite(folder / name)


def _score(folder: Path) -> None:
    _metric("accuracy/dark")(folder)


def _change_metric(folder: Path, run: str, key: str, *tables: str, by: float = 0.125) -> None:
    for table in tables:
        _in_store(folder, f"UPDATE {table} SET value = value + {by} WHERE run_uuid = ? AND key = ?", run, key)


def _in_store(folder: Path, statement: str, *values: str) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


def _receipt(folder: Path, entry: str = "ties") -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / f"data/records/{entry}.json").read_text())
    return found


def _metric(key: str, entry: str = "ties") -> Callable[[Path], None]:
    return lambda folder: _change_metric(folder, _receipt(folder, entry)["run_id"], key, "metrics", "latest_metrics")


def _shown_metric(folder: Path) -> None:
    _change_metric(folder, _receipt(folder, "dts_d")["run_id"], "error_mean", "latest_metrics")


def _text(table: str, key: str, entry: str = "ties", run: str = "run_id") -> Callable[[Path], None]:
    statement = f"UPDATE {table} SET value = value || '5' WHERE run_uuid = ? AND key = ?"
    return lambda folder: _in_store(folder, statement, _receipt(folder, entry)[run], key)


def _name(run: str) -> Callable[[Path], None]:
    def rename(folder: Path) -> None:
        of_run = "= 'other' WHERE run_uuid = ?"
        _in_store(folder, f"UPDATE runs SET name {of_run}", _receipt(folder)[run])
        _in_store(folder, f"UPDATE tags SET value {of_run} AND key = 'mlflow.runName'", _receipt(folder)[run])

    return rename


def _description(folder: Path) -> None:
    change = "UPDATE tags SET value = replace(value, '| average | ', '| average | 1') WHERE key = 'mlflow.note.content'"
    _in_store(folder, change)


def _table(column: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (file,) = folder.glob("mlartifacts/**/comparison.json")
        table = json.loads(file.read_text())
        table["data"][0][table["columns"].index(column)] = 0.999
        file.write_text(json.dumps(table))

    return change


def _append(pattern: str, text: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[0]
        path.chmod(0o644)
        path.write_text(f"{path.read_text()}{text}")

    return append


def _add_to_logged_report(folder: Path) -> None:
    (index,) = folder.glob("mlartifacts/**/index.html")
    (index.parent / "more.html").write_text("<p>")


def _run_cache(key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = next(
            file for file in sorted(folder.glob(".dvc/cache/runs/*/*/*")) if "merganser.tasks.merge" in file.read_text()
        )
        head, _, rest = file.read_text().rpartition(f"{key}: ")
        file.write_text(f"{head}{key}: {'2' if rest[0] == '1' else '1'}{rest[1:]}")

    return change


def _lock_size(folder: Path) -> None:
    lines = (folder / "dvc.lock").read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if "path: data/metrics/ties/dark.json" in line)
    assert lines[place + 3].strip().startswith("size:")
    lines[place + 3] += "0"
    (folder / "dvc.lock").write_text("\n".join(lines) + "\n")


def _varies(folder: Path) -> None:
    text = (folder / "dvc.yaml").read_text()
    old = "data/metrics/${item.method}/${item.task}.json: {meta: {dvcfleet: {metric: true}}}"
    new = "data/metrics/${item.method}/${item.task}.json: {meta: {dvcfleet: {varies: true}}}"
    assert old in text
    (folder / "dvc.yaml").write_text(text.replace(old, new))


def _commit(change: Callable[[Path], None], stage: str) -> Callable[[Path], None]:
    """Change a file, and DVC's cache and dvc.lock with it."""

    def both(folder: Path) -> None:
        change(folder)
        with Repo() as repo:
            repo.commit(stage, force=True)

    return both


def _results(folder: Path) -> None:
    path = folder / "report/results.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.unlink()
    path.write_text("".join([lines[0], lines[1].replace("0.", "0.9", 1), *lines[2:]]))


def _page(folder: Path) -> None:
    path = folder / "report/index.html"
    text = path.read_text()
    path.unlink()
    path.write_text(text.replace("</table>", "<tr><td>99.9</td></tr></table>", 1))


def _param(folder: Path) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["methods"]["ties"]["density"] = 0.4
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def _code(folder: Path) -> None:
    with (folder / "tasks/merge.py").open("a") as file:
        file.write("EDITED = 1\n")


TAMPERINGS = {
    "a source": (_flip("hub/dark/open_clip_model.safetensors"), FindingKind.SOURCE, "hub/dark"),
    "a checkpoint": (
        _flip("data/checkpoints/dark/model.safetensors"),
        FindingKind.CHANGED,
        "data/checkpoints/dark/model.safetensors",
    ),
    "a delta": (_flip("data/deltas/light.safetensors"), FindingKind.CHANGED, "data/deltas/light.safetensors"),
    "a factor": (lambda folder: overwrite(_factor(folder)), FindingKind.CHANGED, "data/svd/dark/"),
    "a merged model": (
        _flip("data/merged/average/model.safetensors"),
        FindingKind.CHANGED,
        "data/merged/average/model.safetensors",
    ),
    "an overlay": (
        _flip("data/merged/dts_d/overlays.safetensors"),
        FindingKind.CHANGED,
        "data/merged/dts_d/overlays.safetensors",
    ),
    "a metric": (_flip("data/metrics/ties/dark.json"), FindingKind.CHANGED, "data/metrics/ties/dark.json"),
    "an example's result": (
        _flip("data/examples/ties/dark.safetensors"),
        FindingKind.CHANGED,
        "data/examples/ties/dark.safetensors",
    ),
    "a receipt": (_flip("data/records/ties.json"), FindingKind.CHANGED, "data/records/ties.json"),
    "the digest of the report in MLflow": (
        _text("tags", "merganser.report", run="parent_run_id"),
        "no MLflow run",
        "report",
    ),
    "an environment": (_append(".dvcfleet/environments/*.json", " "), FindingKind.CHANGED, ".dvcfleet/environments/"),
    "the run cache": (_run_cache("md5"), FindingKind.CACHE, ".dvc/cache/runs/"),
    "a size in the run cache": (_run_cache("size"), FindingKind.CACHE, ".dvc/cache/runs/"),
    "a size in dvc.lock": (_lock_size, FindingKind.RECORD, "dvc.lock"),
    "what may vary": (_varies, FindingKind.STAGE, "evaluate@ties-dark"),
    "the report with dvc.lock": (_results, "report differs", "report/results.csv"),
    "the page with dvc.lock": (_commit(_page, "report"), "report differs", "report/index.html"),  # both
    "a parameter": (_param, FindingKind.PARAMS, "params.yaml"),
    "code": (_code, FindingKind.CODE, "tasks"),
}


OF_BYTES = ("a source", "a checkpoint", "a delta", "a factor", "a merged model", "an overlay", "a metric")
# Those that leave one another's findings alone are tried at once.
TOGETHER = (
    OF_BYTES,
    ("an example's result", "a receipt", "an environment", "the run cache", "what may vary", "a parameter", "code"),
    ("the digest of the report in MLflow", "a size in the run cache", "a size in dvc.lock"),
    ("the report with dvc.lock", "the page with dvc.lock"),
)


# What record wrote, changed or deleted, and a part of the one line that names it.
IN_MLFLOW: dict[str, Callable[[Path], None]] = {
    "accuracy/dark is ": _score,
    "amr is ": _metric("amr"),
    "wall_s is ": _metric("wall_s"),
    "sar_mean is ": _metric("sar_mean"),
    "error_mean is ": _shown_metric,
    "the curve loss is not that of the profile of ada": _metric("loss", "ada"),
    "parameter learned.lr is ": _text("params", "learned.lr", "ada"),
    "tag mlflow.source.git.commit is ": _text("tags", "mlflow.source.git.commit"),
    "its name is 'other', not 'ties'": _name("run_id"),
    "its name is 'other', not ": _name("parent_run_id"),
    "parameter merged is ": _text("params", "merged", run="parent_run_id"),
    "tag merganser.entry.average is ": _text("tags", "merganser.entry.average", run="parent_run_id"),
    "its description is not the table of these scores": _description,
    "score_mean of ties in comparison.json is 0.999": _table("score_mean"),
    "amr of ties in comparison.json is 0.999": _table("amr"),
    "dark of ties in comparison.json is 0.999": _table("dark"),
    "results.csv: not the report's file": _append("mlartifacts/**/results.csv", "more,0.9\n"),
    "more.html: not the report's file": _add_to_logged_report,
    "params.yaml: not the comparison's parameters": _append("mlartifacts/**/params.yaml", "more: 1\n"),
    "no MLflow run: data/records/regmean.json: ": lambda folder: delete_run(
        folder, _receipt(folder, "regmean")["run_id"]
    ),
}


def test_each_run_number_name_and_file_that_mlflow_holds_is_compared_and_a_score_is_named_with_both_numbers(
    project: Path,
) -> None:
    for tamper in IN_MLFLOW.values():
        tamper(project)
    value = json.loads((project / "data/metrics/ties/dark.json").read_text())["value"]
    lines = sorted(map(str, findings(project)))
    assert len(lines) == len(IN_MLFLOW), "\n".join(lines)
    assert {line.partition(":")[0] for line in lines} == {"MLflow differs", "no MLflow run"}
    for words in IN_MLFLOW:
        assert any(words in line for line in lines), words
    (lost,) = (line for line in lines if line.startswith("no MLflow run"))
    assert _receipt(project, "regmean")["run_id"] in lost
    (score,) = (line for line in lines if "accuracy/dark is " in line)
    assert repr(value) in score
    assert repr(value + 0.125) in score


@pytest.mark.drill  # the tiny comparison has no individual models: stages run to add them
def test_scores_relative_to_the_individual_models_are_compared_too(
    tiny_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tiny_copy)
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    params["methods"]["individual"] = {"method": "individual", "reads": "deltas"}
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    merganser(tiny_copy, "run")
    assert findings(tiny_copy) == ()
    for key in ("normalised_score", "score_drop_rate"):
        _metric(key)(tiny_copy)
        found = [str(finding) for finding in findings(tiny_copy)]
        assert [f"{key} is " in line for line in found] == [True] * len(found) != []
        _change_metric(tiny_copy, _receipt(tiny_copy)["run_id"], key, "metrics", "latest_metrics", by=-0.125)


def _factor(folder: Path) -> Path:
    return sorted((folder / "data/svd/dark").glob("*.safetensors"))[0]


@pytest.mark.parametrize("several", TOGETHER)
def test_tampering_is_found_and_named_and_nothing_else_is(project: Path, several: tuple[str, ...]) -> None:
    for what in several:
        TAMPERINGS[what][0](project)
    assert several != OF_BYTES or is_clean(project)  # DVC sees nothing
    found = findings(project)
    for what in several:
        _, kind, name = TAMPERINGS[what]
        assert any(one.kind == kind and one.name.startswith(name) for one in found), what
    kinds = Counter(TAMPERINGS[what][1] for what in several)
    assert {one.kind for one in found} == kinds.keys(), found
    for kind, count in kinds.items():
        # A file and a link to it, as a joint has of its deltas, are two names of one change.
        changes = {one.message.partition(" wrote ")[2].partition(";")[0] for one in found if one.kind == kind}
        assert len(changes) <= count, found


def test_each_kind_of_tampering_is_tried() -> None:
    assert sorted(what for several in TOGETHER for what in several) == sorted(TAMPERINGS)


def test_a_store_that_is_gone_is_found(project: Path) -> None:
    (project / "mlflow.db").rename(project / "elsewhere.db")
    try:
        assert [one.kind for one in findings(project)] == ["no MLflow run"]
    finally:
        (project / "elsewhere.db").rename(project / "mlflow.db")


@pytest.mark.parametrize(
    ("change", "restore", "words"),
    [
        (
            "UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = 'merganser'",
            "UPDATE experiments SET lifecycle_stage = 'active'",
            "all runs: MLflow's experiment merganser is deleted",
        ),
        (
            "UPDATE runs SET experiment_id = 0 WHERE name = 'ties'",
            "UPDATE runs SET experiment_id = 1",
            "which is in another experiment; delete it there",
        ),
    ],
)
def test_runs_that_the_comparisons_experiment_does_not_show_are_found(
    project: Path, change: str, restore: str, words: str
) -> None:
    with closing(sqlite3.connect(project / "mlflow.db")) as store:
        store.execute(change)
        store.commit()
        lines = list(map(str, findings(project)))
        store.execute(restore)
        store.commit()
    (line,) = (line for line in lines if line.startswith("no MLflow run"))
    assert words in line


def test_a_store_without_a_table_is_damaged_and_none_is_made_in_it(project: Path) -> None:
    with closing(sqlite3.connect(project / "mlflow.db")) as store, store:
        store.execute("DROP TABLE metrics")
        with pytest.raises(FailedError, match=r"MLflow's store mlflow\.db is damaged \(no such table: metrics\)"):
            findings(project)
        assert not store.execute("SELECT name FROM sqlite_master WHERE name = 'metrics'").fetchall()


def test_a_report_cell_a_run_and_a_metric_lead_to_the_same_checkpoints(project: Path) -> None:
    receipt = json.loads((project / "data/records/ties.json").read_text())
    value = json.loads((project / "data/metrics/ties/dark.json").read_text())["value"]
    _, lineage = look_up(project, "ties/dark")
    with opened(project) as repo:
        find = partial(find_target, repo, folder=project)
        cell = find("ties/dark")
        assert cell.files == ("data/metrics/ties/dark.json",)
        assert float(cell.value) == value
        assert cell.stages == ("evaluate@ties-dark",)
        assert find("data/metrics/ties/dark.json").stages == cell.stages
        assert find(receipt["run_id"]).stages == ("record@ties",)
        assert find(receipt["parent_run_id"]).stages == ("report",)
        assert find("ties").stages == ("record@ties",)
        assert find("ties/amr").files == ("data/profiles/merge/ties.json",)
        for column in ("mean", "stderr"):
            assert set(find(f"ties/{column}").stages) == {"evaluate@ties-dark", "evaluate@ties-light"}
        before = find("regmean/before_s").stages
        assert set(before) == {"statistics@gram-dark", "statistics@gram-light"}
        with pytest.raises(InputError, match='no such column of ties; did you mean "dark"'):
            find("ties/drak")
        with pytest.raises(InputError, match='tise/dark: no entry is called tise; did you mean "ties"'):
            find("tise/dark")
    origins = {origin.path: origin for step in lineage.steps.values() for origin in step.origins}
    assert origins["data/checkpoints/dark"].source == "hub/dark"
    assert len(origins["data/checkpoints/dark"].files["model.safetensors"]["sha256"]) == 64
    assert lineage.steps["merge@ties"].params["params.yaml"]["methods.ties"]["density"] == 0.5
    assert all(step.execution for step in lineage.steps.values())


def test_the_text_names_source_checksum_command_commit_and_run(project: Path, done: Done, refused: Refused) -> None:
    text = done(project, "lineage", "show", "ties/dark")
    assert done(project / "hub", "lineage", "show", "ties/dark") == text
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    digest = json.loads((project / "data/base/source.json").read_text())["files"]["model.safetensors"]["sha256"]
    for word in (
        "merge@ties",
        "python -m merganser.tasks.merge @",
        "hub/base",
        digest,
        head.stdout.strip(),
        "flow run",
        "torch",
    ):
        assert word in text
    assert 'did you mean "ties"?' in refused(project, "lineage", "show", "tise")


@pytest.mark.drill
def test_a_chain_run_again_has_the_same_bytes(project: Path) -> None:
    said = merganser(project, "lineage", "verify", "ties/dark", "--rerun")
    assert said.stdout.startswith("nothing has changed: ")
    assert "all of which ran again" in said.stdout


def test_of_a_group_of_data_sets_each_commit_is_named(tmp_path: Path) -> None:
    group = {name: {"hub": f"org/{name}", "revision": digit * 40} for name, digit in {"arc": "a", "mmlu": "b"}.items()}
    about = {"source": "sources/data.yaml", "kind": "hub", "group": group, "files": {}}
    (tmp_path / "source.json").write_text(json.dumps(about))
    found = Merganser().origin(tmp_path)
    assert found is not None
    assert found.revision == f"org/arc@{'a' * 40}, org/mmlu@{'b' * 40}"


def test_a_stages_code_is_shown_with_its_class_and_the_text_of_a_card_with_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    known = recorded_code(Path(), code_tree())

    def shown(file: str) -> str | None:
        content = (CODE / file).read_bytes()
        return Merganser().about(f"{CODE}/{file}", md5(content, usedforsecurity=False).hexdigest())

    code, card = known["merge.txt"], known["cards/clip.txt"]
    assert shown("merge.txt") == f"(class {code.of[:SHORT]}, digest {code.digest[:SHORT]})"
    assert shown("cards/clip.txt") == f"(digest {card.digest[:SHORT]})"
