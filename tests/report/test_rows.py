import json
from pathlib import Path

import pytest

from merganser.config.loading import load_params
from merganser.report.rows import seconds_before


@pytest.mark.parametrize(("entry", "seconds"), [("ada", 3.5), ("regmean", 1.75), ("ties", None), ("dts_d", None)])
def test_the_seconds_before_a_merge_are_those_of_what_it_reads(
    entry: str, seconds: float | None, tmp_path: Path
) -> None:
    times = {"learned/ada": 3.5, "statistics/gram/dark": 1.25, "statistics/gram/light": 0.5, "statistics/gram/gone": 9}
    for name, wall in {**times, "merge/ties": 7.0, "merge/average": 7.0}.items():
        file = tmp_path / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"wall_s": wall, "cpu_s": 0.0}))
    params = load_params(Path(__file__).parents[1] / "tiny/params.yaml")
    assert seconds_before(params, params.methods[entry], tmp_path) == seconds
