"""What a params.yaml leaves out is written into it, and nothing else of it changes."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from merganser.config.completing import addition_names, completed
from merganser.config.loading import complete_file, load_params
from merganser.errors import InputError

BASE = "base: {source: hub/base, family: open_clip}"
TASKS = """tasks: # two
  dark: {source: hub/dark, data: {source: datasets/dark, templates: ["a {} image."]}}
  light: {source: hub/light, data: {source: datasets/light, templates: ["a {} image."]}}"""
DEFAULTS = """
# left out above, and so by default (docs/params.md):
seed: 0
parameters: {merged: [visual.*], matrices: linear}
decompose: {rank_fraction: 1.0, dtype: float32}
merge: {device: cpu}
evaluation: {split: test, batch_size: 64, device: cpu, precision: float32}
"""


def written(tmp_path: Path, *parts: str) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text("\n".join([*parts, ""]))
    return path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("  ties:", "  ties: {method: ties, reads: deltas}"),
        ("  ties: null # why", "  ties: {method: ties, reads: deltas} # why"),
        ("  ties: # why", "  ties: {method: ties, reads: deltas} # why"),
        ("  tsv_m: {}", "  tsv_m: {method: tsv_m, reads: svd}"),
        ("  ties: {density: 0.1}", "  ties: {method: ties, reads: deltas, density: 0.1}"),
        ("  x: {method: ties, density: 0.1}", "  x: {method: ties, reads: deltas, density: 0.1}"),
        ('  "x": {"method": "ties"  }', '  "x": {"method": "ties", reads: deltas  }'),
        (
            "  x:\n      method: ties # a\n      density: 0.1",
            "  x:\n      method: ties # a\n      reads: deltas\n      density: 0.1",
        ),
        (
            "  ties:\n    # a\n    density: 0.1",
            "  ties:\n    # a\n    method: ties\n    reads: deltas\n    density: 0.1",
        ),
        ("  x: {method: ties, reads: deltas}", "  x: {method: ties, reads: deltas}"),
    ],
)
def test_an_entry_gets_what_it_lacks_where_it_stands(given: str, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, BASE, TASKS, "methods:", given)
    said_first, said_again = complete_file(path), complete_file(path)
    assert path.read_text() == "\n".join([BASE, TASKS, "methods:", expected, DEFAULTS])
    assert said_first is not None
    assert "wrote what was left out: seed, parameters" in said_first
    assert said_again is None


def test_what_a_section_has_stays_and_what_it_lacks_follows(tmp_path: Path) -> None:
    sections = ["parameters:\n  matrices: any_2d", "evaluation: {batch_size: 8}", "seed: 3", "merge: {}"]
    study = "studies: {tasks: {methods: {average: }}}"
    path = written(tmp_path, BASE, TASKS, "methods: {average: }", *sections, study)
    complete_file(path)
    found = YAML(typ="safe").load(path)
    assert found["parameters"] == {"merged": ["visual.*"], "matrices": "any_2d"}
    assert found["evaluation"] == {"split": "test", "batch_size": 8}
    assert (found["seed"], found["merge"]) == (3, {})
    average = {"method": "average", "reads": "deltas"}
    assert found["studies"] == {"tasks": {"subsets": 10, "methods": {"average": average}}}


def test_an_entry_reads_what_is_declared_for_its_method(tmp_path: Path) -> None:
    declared = {
        "learned: {ada: {learner: adamerging}}": ("adamerging:", "learned/ada"),
        "statistics: {g: {kind: gram}, f: {kind: fisher}}": ("regmean:", "statistics/g"),
        "statistics: {f: {kind: fisher, base: true}}": ("gradient_matching:", "statistics/f"),
        "differences: {x: {merged: base}}": ("dts_d:", "differences/x"),
        "routers: {r: {of: deltas}}": ("free:", "routers/r"),
        "embeddings: {e: {of: svd}}": ("dts_unseen:", "embeddings/e"),
    }
    for section, (entry, reads) in declared.items():
        path = written(tmp_path, BASE, TASKS, f"methods:\n  base:\n  {entry}", section)
        complete_file(path)
        params = load_params(path)
        assert params.methods[entry[:-1]].reads == reads
        needs_data = not section.startswith(("differences", "embeddings"))
        assert (params.validation is not None) == needs_data
        assert [one.of for one in params.learned.values()] == ["deltas"] * len(params.learned)


@pytest.mark.parametrize(
    ("methods", "mistake"),
    [
        ("methods: {x: {method: tise}}", 'methods.x: unknown method "tise"; did you mean "ties"?'),
        ("methods: {x: {density: 0.1}}", "methods.x.method: missing; for example method: ties"),
        ("methods: {regmean: }", "methods.regmean.reads: regmean reads statistics/NAME, got 'statistics'; declare"),
        ("methods: {ties: {densty: 0.1}}", 'methods.ties.densty: ties has no such parameter; did you mean "density"?'),
        ("methods: ties", "methods: expected a mapping"),
        ("", "methods: missing; for example methods:"),
    ],
)
def test_a_file_with_a_mistake_is_refused_and_stays_as_it_is(methods: str, mistake: str, tmp_path: Path) -> None:
    path = written(tmp_path, BASE, TASKS, methods)
    before = path.read_text()
    with pytest.raises(InputError) as caught:
        complete_file(path)
    assert any(line.startswith(f"{path}: {mistake}") for line in str(caught.value).splitlines())
    assert path.read_text() == before


def test_a_layout_that_cannot_be_written_into_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match=r"cannot be written into it; write:\nseed: 0\n"):
        completed("{methods: {x: {method: ties, reads: deltas}}}\n", "params.yaml")
    shared = "methods:\n  a: &a {method: ties}\n  b: *a\n"  # one entry twice: written once
    text, added = completed(shared, "params.yaml")
    assert "a: &a {method: ties, reads: deltas}\n  b: *a\n" in text
    assert addition_names(added) == "seed, parameters, decompose, merge, evaluation, methods.a, methods.b"
