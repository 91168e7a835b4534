"""What `--dry-run` expects of a run."""

from pathlib import Path

from dvcfleet.estimate import estimate
from dvcfleet.planning.resources import Resources
from dvcfleet.project import Expected
from tests.dvcfleet.toy import Make

STAGES = """
stages:
  fetch:
    foreach: [a, b]
    do: {cmd: "truncate -s 3000 model_${item}", deps: ["${item}.yaml"], outs: ["model_${item}"]}
  use:
    foreach: [a, b]
    do: {cmd: "head -c 500 model_${item} > used_${item}", deps: ["model_${item}", source], outs: ["used_${item}"]}
"""
FILES = {"a.yaml": "1", "b.yaml": "1", "source": "1"}


def says(
    toy_path: Path,
    plan: object,
    seconds: dict[str, float],
    workers: int = 2,
    expected: Expected | None = None,
    cpu_s: dict[str, float] | None = None,
) -> list[str]:
    return list(
        estimate(
            plan,  # type: ignore[arg-type]
            seconds,
            cpu_s or {},
            lambda stage: Resources(threads=2, gpus=1) if stage.addressing.startswith("use") else Resources(),
            workers,
            lambda path: path.suffix == ".yaml",
            lambda needs: expected or Expected(),
        )
    )


def test_of_a_repository_in_which_nothing_ran_nothing_is_claimed(toy: Make) -> None:
    new = toy(STAGES, FILES)
    assert says(new.path, new.plan(), {}) == [
        "not known, and not counted: the time of 4 stages (fetch, use)",
        "not known, and not counted: the disk of 4 stages (fetch, use)",
        "not known, and not counted: the size of the download of 2 stages (fetch)",
    ]


def test_what_stages_took_is_summed_by_resource_and_others_take_the_median_of_their_kind(toy: Make) -> None:
    one = toy(STAGES, FILES)
    assert one.run("use@a")[0] == 0
    one.write("a.yaml", "2")
    one.write("source", "2")
    assert says(one.path, one.plan(), {"fetch@a": 60.0, "use@a": 600.0}) == [
        # 2 x 60 s of one thread and 2 x 600 s of two; 3000 and 500 bytes each; of b nothing was downloaded yet
        "expected: 42 min of CPU time, 20 min of GPU time, 7.0 kB of disk, 3.0 kB downloaded",
        "no less than 21 min with 2 workers",
        "time: what 2 stages took before, and for 2 more the median of their kind; stages found up to date are not run",
        "not known, and not counted: the size of the download of 1 stage (fetch)",
    ]
    # Where the ledger has the CPU time, it counts: 2 x 30 s, and 1200 s for each `use`, whose two threads took 600 s.
    used = {"fetch@a": 30.0}
    assert says(one.path, one.plan(), {"fetch@a": 60.0, "use@a": 600.0}, cpu_s=used)[0].startswith(
        "expected: 41 min of CPU time, 20 min of GPU time,"
    )
    # With more workers the longest path is what counts.
    assert says(one.path, one.plan(), {"fetch@a": 60.0, "use@a": 600.0}, 64)[1] == "no less than 11 min with 64 workers"
    assert one.run()[0] == 0
    assert says(one.path, one.plan(), {"fetch@a": 60.0}) == []


def test_what_the_project_expects_stands_for_stages_that_never_ran(toy: Make) -> None:
    new = toy(STAGES, FILES)
    expected = Expected({new.path / "a.yaml": 3000}, {"fetch@a": 4000.0, "fetch@b": 6000.0})
    assert says(new.path, new.plan(), {}, expected=expected) == [
        "expected: 10.0 kB of disk, 3.0 kB downloaded",
        "not known, and not counted: the time of 4 stages (fetch, use)",
        "not known, and not counted: the disk of 2 stages (use)",
        "not known, and not counted: the size of the download of 1 stage (fetch)",
    ]
    # What a stage wrote before is worth more than what was expected of it.
    assert new.run("fetch@a")[0] == 0
    new.write("a.yaml", "2")
    assert says(new.path, new.plan(), {}, expected=expected)[0] == "expected: 9.0 kB of disk, 3.0 kB downloaded"
    # But not where that was another source.
    new.write("c.yaml", "1")
    other = STAGES.replace('"${item}.yaml"', "c.yaml")
    new.write("dvc.yaml", other)
    there = Expected({new.path / "c.yaml": 5000}, {"fetch@a": 5000.0, "fetch@b": 5000.0})
    assert says(new.path, new.plan(), {}, expected=there)[0] == "expected: 10.0 kB of disk, 5.0 kB downloaded"


def test_of_time_a_rule_stands_for_stages_that_never_ran(toy: Make) -> None:
    new = toy(STAGES, FILES)
    expected = Expected(seconds={"fetch@a": 60.0, "fetch@b": 60.0, "use@a": 600.0})
    assert says(new.path, new.plan(), {}, expected=expected)[:3] == [
        "expected: 22 min of CPU time, 10 min of GPU time",
        "no less than 11 min with 2 workers",
        "time: for 3 that never ran, a rule of thumb, up to a factor of three off; stages found up to date are not run",
    ]
    # Of new sources it says more than what others of their kind took, else less.
    other = {"fetch@z": 5.0, "use@z": 5.0}
    assert says(new.path, new.plan(), other, expected=expected)[0] == "expected: 22 min of CPU time, 10 min of GPU time"
    assert new.run()[0] == 0
    new.write("source", "2")
    assert says(new.path, new.plan(), other, expected=expected)[0].startswith("expected: 20 s of CPU time, 10 s of GPU")
