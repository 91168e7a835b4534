"""The command line: what it says, what it exits with, and that a mistake shows no traceback."""

import json
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.core import TyperGroup

from merganser import registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.flows.commands import cli
from tests.flows.conftest import Done, Refused
from tests.small_models import random_state, write_models
from tests.tiny import environment, make_models, make_repository, merganser

LIMIT_S = 40.0
NAME = "blocks.0.mlp.c_fc.weight"


@pytest.mark.parametrize("module", ["merganser", "merganser.flows"])
def test_help_names_the_command_whatever_started_it(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, env=environment()
    )
    assert "Usage: merganser " in done.stdout


def imported(code: str) -> set[str]:
    """Return the names of the modules a piece of code brings in."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("cli") / "project")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def merge_arguments(method: str = "ties", out: str = "merged", *more: str) -> list[str]:
    tasks = [word for t in range(3) for word in ("--model", f"task{t}=task{t}/model.safetensors")]
    return ["merge", method, "--base", "base", *tasks, "--out", out, "--device", "cpu", *more]


def test_help_names_every_command(tmp_path: Path, done: Done) -> None:
    said = done(tmp_path, "--help")
    assert all(command in said for command in ("run", "status", "methods", "merge", "reconstruct", "ui"))


def commands(group: TyperGroup, above: str = "merganser") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def test_the_help_of_every_command_has_an_example_that_it_takes() -> None:
    for name, command in commands(typer.main.get_group(cli.app)):
        (example,) = re.findall(r"^Example: (.+)$", command.epilog or "", re.M)
        assert example.startswith(f"{name}"), name
        command.make_context(name, shlex.split(example.removeprefix(name)))


def test_logs_prints_what_a_stage_printed_and_names_the_nearest(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvcfleet/logs").mkdir(parents=True)
    (tmp_path / ".dvcfleet/logs/merge@ties.log").write_text("layer 1\nlayer 2\n")
    done = subprocess.run(
        [sys.executable, "-m", "merganser.flows", "logs", "merge@ties", "--repo", str(tmp_path)],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"layer 1\nlayer 2\n"
    assert 'did you mean "merge@ties"?' in refused(tmp_path, "logs", "merge@tie")


def test_help_and_the_start_page_need_no_heavy_library() -> None:
    modules = imported("import merganser.flows.commands.cli, merganser.flows.pages.start_page")
    assert modules.isdisjoint({"torch", "prefect", "dvc", "mlflow", "datasets", "open_clip"})


def test_reading_the_shape_of_params_needs_no_torch() -> None:
    assert "torch" not in imported("import merganser.config.params")


@pytest.mark.parametrize(
    "args",
    [
        ["rum"],
        ["run", "--workers", "0"],
        ["run", "--workers", "two"],
        ["run", "--runner", "kubernetes"],
        ["run", "--no-such-option"],
        ["merge", "ties"],
        ["status", "--repo"],
    ],
)
def test_a_wrong_command_line_exits_2(args: list[str], tmp_path: Path, refused: Refused) -> None:
    refused(tmp_path, *args)


def test_methods_lists_every_registered_method(tmp_path: Path, done: Done) -> None:
    lines = done(tmp_path, "methods").splitlines()
    assert [line.split()[0] for line in lines[1:]] == registry.names()


def test_methods_are_chosen_by_what_they_need(tmp_path: Path, done: Done, refused: Refused) -> None:
    found = json.loads(done(tmp_path, "methods", "--json", "--for", "data=none,parts=no"))
    names = {method["name"] for method in found}
    assert {"ties", "tsv_m", "average"} <= names
    assert not names & {"regmean", "adamerging", "twin", "emr", "individual"}
    assert all(not method["parts_per_task"] for method in found)
    assert "expected KEY=VALUE with a key of data" in refused(tmp_path, "methods", "--for", "date=none")
    assert 'did you mean "validation"?' in refused(tmp_path, "methods", "--for", "data=validatoin")


def test_the_version_is_that_of_the_package(tmp_path: Path, done: Done) -> None:
    assert done(tmp_path, "--version") == f"merganser {version('merganser')}\n"


def test_methods_as_json_tells_types_defaults_and_bounds(tmp_path: Path, done: Done) -> None:
    described = json.loads(done(tmp_path, "methods", "ties", "--json"))
    assert described["reads"] == "deltas"
    assert described["parameters"][0] == {
        "name": "density",
        "type": "number or map of tasks to number",
        "required": False,
        "default": 0.2,
        "bounds": "> 0, <= 1",
        "ours": False,
    }
    every = json.loads(done(tmp_path, "methods", "--json"))
    assert [method["name"] for method in every] == registry.names()
    assert all(method["summary"] and method["paper"] for method in every)


def test_methods_suggests_the_nearest_name(tmp_path: Path, refused: Refused) -> None:
    assert 'did you mean "ties"?' in refused(tmp_path, "methods", "tise")


def without(section: str, text: str) -> str:
    """Leave a section's key, and take out what is under it."""
    return re.sub(rf"^{section}:\n(  .*\n)+", f"{section}:\n", text, flags=re.MULTILINE)


MISTAKES: dict[str, tuple[Callable[[str], str], str]] = {
    "unknown method": (lambda text: text.replace("method: ties", "method: tise"), 'unknown method "tise"'),
    "misspelt parameter": (lambda text: text.replace("density", "densty"), "methods.ties.densty: "),
    "out of range": (lambda text: text.replace("density: 0.5", "density: 1.4"), "methods.ties.density: "),
    "wrong type": (lambda text: text.replace("batch_size: 64", "batch_size: eight"), "evaluation.batch_size: "),
    "wrong reads": (lambda text: text.replace("dts_d, reads: diff", "dts_d, reads: dif"), "dts_d reads differences"),
    "no methods": (lambda text: without("methods", text), "methods: there are none"),
    "no tasks": (lambda text: without("tasks", text), "tasks: there are none"),
    "a name with ..": (lambda text: text.replace("  dark:", "  ../dark:"), "tasks.../dark: not a name"),
    "a source that is nowhere": (lambda text: text.replace("source: hub/dark", "source: hub/drak"), "hub/drak"),
}

RUN_TOO = ("unknown method", "a source that is nowhere")


@pytest.mark.parametrize("args", [["methods", "tise"], ["merge", "tise", *merge_arguments()[2:]]])
def test_a_mistake_ends_the_process_soon_with_2_and_no_traceback(args: list[str], models: Path) -> None:
    before = cpu_s_of_children()
    ended = merganser(models, *args, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.stdout == ""
    assert cpu_s_of_children() - before < LIMIT_S


def cpu_s_of_children() -> float:
    """Return the CPU time of all child processes that have ended, which other work does not lengthen."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_params_is_refused_before_any_work(mistake: str, project: Path, refused: Refused) -> None:
    change, said = MISTAKES[mistake]
    path = project / "params.yaml"
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    try:
        # `run` checks the same before it starts anything.
        assert said in refused(project, "run" if mistake in RUN_TOO else "status")
    finally:
        path.write_text(text)
    assert not (project / "data").exists()
    assert not (project / "dvc.lock").exists()


def test_mistakes_in_sources_come_with_all_others(project: Path, refused: Refused) -> None:
    path = project / "params.yaml"
    text = path.read_text()
    path.write_text(text.replace("hub/dark,", "hub/drak,").replace("density: 0.5", "densty: 0.5").replace("64", "0"))
    try:
        said = refused(project, "run")
    finally:
        path.write_text(text)
    assert [line.partition(": ")[0] for line in said.splitlines()] == [f"params.yaml, line {n}" for n in (6, 20, 28)]
    assert all(words in said for words in ('did you mean "dark"?', 'did you mean "density"?', "got 0"))


def test_run_refuses_a_wrong_shape_before_any_work(project: Path, refused: Refused) -> None:
    path = project / "hub/light/open_clip_model.safetensors"
    whole = path.read_bytes()
    checkpoint = open_checkpoint(path)
    state = {name: checkpoint.read(name) for name in checkpoint.names}
    name = next(name for name, tensor in state.items() if tensor.ndim == 2)
    path.unlink()
    save_tensors(path, state | {name: torch.zeros(3, 2)})
    try:
        said = refused(project, "run")
    finally:
        path.write_bytes(whole)
    assert "tasks.light.source: " in said
    assert name in said
    assert "[3, 2]" in said


def test_status_refuses_a_mistake_too(project: Path, refused: Refused) -> None:
    path = project / "params.yaml"
    text = path.read_text()
    path.write_text("")
    try:
        assert "params.yaml: expected a mapping" in refused(project, "status", "--json")
    finally:
        path.write_text(text)


def test_status_tells_each_stage_of_a_fresh_project(project: Path, done: Done) -> None:
    found = json.loads(done(project, "status", "--json"))
    states = {stage["name"]: stage["state"] for stage in found["stages"]}
    assert {"fetch_base", "merge@dts_d", "evaluate@ties-dark", "record@average", "report"} <= states.keys()
    assert set(states.values()).isdisjoint({"up to date", "blocked"})
    assert f"{found['counts']['stale']} stale" in done(project, "status")


def test_commands_work_from_any_folder_of_the_project(project: Path, done: Done, refused: Refused) -> None:
    found = json.loads(done(project, "status", "--json"))
    for folder in (project / "hub/dark", project / "tasks"):
        assert json.loads(done(folder, "status", "--json")) == found
        assert "has not run yet" in refused(folder, "lineage", "show", "merge@ties")
    path = project / "params.yaml"
    text = path.read_text()
    path.write_text(text.replace("density: 0.5", "density: 1.4"))
    try:
        assert "methods.ties.density: " in refused(project / "hub", "run", "merge@ties")
    finally:
        path.write_text(text)


def test_report_says_what_to_do_where_there_is_none_and_what_its_options_belong_to(
    project: Path, refused: Refused
) -> None:
    assert "report/choices.csv: missing; `merganser run report` writes it" in refused(project, "report")
    assert "report/results.csv: missing; `merganser run report` writes it" in refused(project, "report", "--tex")
    assert "say `merganser report --tex --errors`" in refused(project, "report", "--errors")


def test_a_folder_that_is_no_dvc_repository_is_refused(tmp_path: Path, refused: Refused) -> None:
    assert "not in a DVC repository" in refused(tmp_path, "status")


def test_merge_writes_a_whole_checkpoint_and_a_profile(models: Path, done: Done) -> None:
    done(models, *merge_arguments("ties", "merged", "--set", "density=5e-1", "--profile", "profile.json"))
    merged, base = open_checkpoint(models / "merged"), open_checkpoint(models / "base")
    assert merged.names == base.names
    assert not torch.equal(merged.read(NAME), base.read(NAME))
    profile = json.loads((models / "profile.json").read_text())
    assert profile["peak_rss_bytes"] > 0
    assert 0.49 < profile["kept_share"] < 0.51  # floor(density * n) of n, and what equals the last of them
    assert sorted(path.name for path in models.glob(".*")) == []


def test_merge_without_a_base_starts_from_the_models_mean(models: Path, done: Done) -> None:
    arguments = merge_arguments("average")
    done(models, *[word for word in arguments if word not in ("--base", "base")])
    merged = open_checkpoint(models / "merged")
    tuned = torch.stack([open_checkpoint(models / f"task{t}").read(NAME).double() for t in range(3)])
    torch.testing.assert_close(merged.read(NAME).double(), tuned.mean(0), rtol=0, atol=1e-6)


def test_merge_takes_differences_from_another_merge(models: Path, done: Done) -> None:
    done(models, *merge_arguments("task_arithmetic", "merged", "--set", "merged=average", "--set", "scaling=1.0"))
    done(models, *merge_arguments("average", "average"))
    merged, average = open_checkpoint(models / "merged"), open_checkpoint(models / "average")
    torch.testing.assert_close(merged.read(NAME), average.read(NAME), rtol=0, atol=1e-6)
    assert sorted(path.name for path in models.glob(".*")) == []


def clip_arguments(folder: Path, out: str) -> list[str]:
    """Write a tiny dual encoder and two tasks, each with a file of its class names."""
    make_models(folder / "hub")
    given = []
    for task, names in (("dark", "night\ncellar\n"), ("light", "day\n\nlamp\n")):
        (folder / f"{task}.txt").write_text(names)
        given += ["--model", f"{task}=hub/{task}", "--classes", f"{task}={task}.txt"]
    return ["merge", "dts_unseen", "--base", "hub/base", *given, "--only", "visual.*", "--out", out, "--device", "cpu"]


def test_merge_compares_tasks_by_their_class_names(tmp_path: Path, done: Done) -> None:
    done(tmp_path, *clip_arguments(tmp_path, "merged"))
    done(tmp_path, "reconstruct", "merged", "--task", "dark", "--out", "own.safetensors")
    own, base = open_checkpoint(tmp_path / "own.safetensors"), open_checkpoint(tmp_path / "hub/base")
    changed = [name for name in base.names if not torch.equal(own.read(name), base.read(name))]
    assert changed
    assert all(name.startswith("visual.") for name in changed)


def test_merge_refuses_mistakes_about_class_names(tmp_path: Path, models: Path, refused: Refused) -> None:
    args = clip_arguments(tmp_path, "merged")
    (tmp_path / "empty.txt").write_text("\n")
    light = args.index("light=light.txt")
    for name, said in (
        (None, "dts_unseen: needs the class names of light; give --classes light=FILE"),
        ("lihgt=light.txt", "needs the class names of light"),
        ("light=nowhere.txt", "--classes nowhere.txt: cannot be read"),
        ("light=empty.txt", "--classes empty.txt: holds no class names"),
    ):
        given = [] if name is None else ["--classes", name]
        assert said in refused(tmp_path, *args[: light - 1], *given, *args[light + 1 :])
    assert "--classes x: there is no --model x" in refused(tmp_path, *args, "--classes", "x=light.txt")
    args = [*merge_arguments(), "--classes", "task0=light.txt"]
    assert "ties does not use class names" in refused(models, *args)
    named = [word for t in range(3) for word in ("--classes", f"task{t}=light.txt")]
    assert "this model's family does not have one" in refused(models, *merge_arguments("dts_unseen"), *named)


def test_reconstruct_gives_back_a_task_of_a_method_with_parts_per_task(
    models: Path, refused: Refused, done: Done
) -> None:
    done(models, *merge_arguments("individual"))
    done(models, "reconstruct", "merged", "--task", "task1", "--out", "own/task1.safetensors")
    own, tuned = open_checkpoint(models / "own/task1.safetensors"), open_checkpoint(models / "task1")
    for name in tuned.names:
        torch.testing.assert_close(own.read(name), tuned.read(name), rtol=0, atol=1e-6)
    assert "task9" in refused(models, "reconstruct", "merged", "--task", "task9", "--out", "x.safetensors")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (merge_arguments("tise"), 'did you mean "ties"?'),
        (merge_arguments("ties", "merged", "--set", "densty=0.2"), "densty"),
        (merge_arguments("ties", "merged", "--set", "density=1.4"), "got 1.4"),
        (merge_arguments("ties", "merged", "--set", "merged=svd"), "merged: svd keeps a part per task"),
        (merge_arguments("ties", "merged", "--set", "merged=avrage"), 'did you mean "average"?'),
        (merge_arguments("ties", "merged", "--set", "merged=3"), 'unknown method "3"'),
        (
            merge_arguments("tall_mask", "merged", "--set", "tall_lambda={task9: 0.3}"),
            "tall_mask.tall_lambda: no such task: task9; the tasks are task0",
        ),
        (merge_arguments("ties", "merged", "--set", "density"), "expected NAME=VALUE"),
        (merge_arguments("ties", "merged", "--set", "density=[1"), "--set density"),
        (merge_arguments("ties", "merged", "--model", "task0=task1"), "task0 is given twice"),
        (merge_arguments("ties", "merged", "--model", "../x=task1"), "not a name"),
        (merge_arguments("ties", "merged", "--model", "x=nowhere"), "nowhere: no such checkpoint"),
        (merge_arguments("ties", "base"), "exists already"),
        (merge_arguments("ties", "."), "exists already"),
    ],
)  # fmt: skip
def test_merge_refuses_a_mistake_by_name(args: list[str], said: str, models: Path, refused: Refused) -> None:
    before = sorted(models.rglob("*"))
    assert said in refused(models, *args)
    assert sorted(models.rglob("*")) == before


@pytest.mark.parametrize("how", ["missing", "shape", "nan", "truncated"])
def test_merge_refuses_a_broken_checkpoint_by_name(how: str, models: Path, refused: Refused) -> None:
    path = models / "task1/model.safetensors"
    state = random_state(5)
    if how == "missing":
        del state[NAME]
    elif how == "shape":
        state[NAME] = torch.zeros(16, 9)
    elif how == "nan":
        state[NAME][0, 0] = float("nan")
    path.unlink()
    save_tensors(path, state)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    said = refused(models, *merge_arguments())
    assert "task1" in said
    assert (NAME if how != "truncated" else "truncated") in said
    assert not (models / "merged").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_merge_refuses_a_gpu_that_is_not_there(models: Path, refused: Refused) -> None:
    assert "--device cuda: this machine has no usable GPU" in refused(models, *merge_arguments(), "--device", "cuda")
