from pathlib import Path

import pytest

from benchmarks.harness import Measured, measure
from benchmarks.merges import FEW, MORE, Job, Row, planned, tables
from benchmarks.models import write_models
from benchmarks.sides import Setting, cached

TINY = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 8, "layers": 1, "width": 8, "head_width": 4, "patch_size": 4},
    "text_cfg": {"context_length": 4, "vocab_size": 16, "width": 8, "heads": 2, "layers": 1},
}


def measured(*walls: float, megabytes: int = 100) -> list[Measured]:
    """Make measurements of so many seconds."""
    return [Measured(wall, 2 * wall, 2 * megabytes * 10**6, megabytes * 10**6) for wall in walls]


def row(method: str, blocks: int, errors: dict[str, float] | None = None, **runs: list[Measured]) -> Row:
    """Make a row of a table."""
    return Row(method, blocks, runs, 1e-6 if "plain" in runs else None, errors or {}, 0.025)


def test_in_short_each_method_is_compared_once_and_measured_on_two_sizes() -> None:
    jobs = planned(["ties", "drm_h", "knots"], 12, short=True)
    assert jobs == [
        Job("ties", FEW, alone=True, times=1),
        Job("ties", 12, times=2),
        Job("drm_h", FEW, times=1),
        Job("drm_h", 12, alone=True, times=1, start=True),
        Job("knots", FEW, times=1),
        Job("knots", MORE, alone=True, times=1),
    ]


def test_otherwise_all_is_compared_on_one_size() -> None:
    assert planned(["ties", "drm_h"], 12, short=False) == [Job("ties", 12), Job("drm_h", 12)]


def test_a_comparison_gives_medians_with_their_range_and_ratios_of_times_and_memory() -> None:
    errors = {"cold": 2e-7, "plain": 3e-2}
    runs = {"cold": measured(2.0, 1.0, 3.0), "plain": measured(8.0, megabytes=500), "cached": measured(0.5)}
    (table,) = tables([row("tsv_m", 12, errors, **runs)])
    cells = [cell.strip() for cell in table.splitlines()[2].strip("|").split("|")]
    times = ["`tsv_m`", "2.0 (1.0–3.0)", "0.5", "8.0", "4.0", "16.0"]
    assert cells == [*times, "100 (100–100)", "500", "5.0", "1e-06", "2e-07", "3e-02"]


def test_copying_and_growth_have_a_line_of_their_own() -> None:
    runs = {"cold": measured(3.0), "plain": measured(6.0), "copy": measured(2.0), "load": measured(2.5)}
    small = row("task_arithmetic", 2, cold=measured(1.0, megabytes=90))
    _, copy, growth = tables([small, row("task_arithmetic", 12, **runs)])
    assert "takes 1.50 and 1.20 times as long" in copy
    cells = [cell.strip() for cell in growth.splitlines()[2].split("|")[2:9]]
    assert cells == ["2", "90", "12", "100", "1.11", "100", "1.0"]


def test_what_a_plain_program_held_at_its_start_is_the_least_it_holds() -> None:
    small, large = (
        row("drm_h", 1, cold=measured(1.0)),
        row("drm_h", 12, cold=measured(1.0), start=measured(1.0, megabytes=500)),
    )
    (growth,) = tables([small, large])
    assert [cell.strip() for cell in growth.splitlines()[2].split("|")[7:9]] == ["≥ 500", "≥ 5.0"]


def test_ours_alone_is_a_table_of_costs() -> None:
    (table,) = tables([row("dts_t", 12, cold=measured(3.0))])
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[2:7]] == ["3.0", "6.0", "200", "100", "2.50"]


def test_the_models_of_a_folder_are_made_once(tmp_path: Path) -> None:
    base, models = write_models(tmp_path, TINY, 2)
    written = {path: (path / "model.safetensors").stat().st_mtime_ns for path in (base, *models.values())}
    assert write_models(tmp_path, TINY, 2) == (base, models)
    assert written == {path: (path / "model.safetensors").stat().st_mtime_ns for path in written}


@pytest.mark.drill
def test_the_cached_side_is_the_pipelines_own_stage(tmp_path: Path) -> None:
    base, models = write_models(tmp_path / "models", TINY, 2)
    setting = Setting(base, models, tmp_path / "out", threads=1)
    measure(cached("tsv_m", setting))
    assert (tmp_path / "out/project/data/merged/tsv_m/model.safetensors").is_file()
