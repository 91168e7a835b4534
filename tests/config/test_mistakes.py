"""All mistakes of a params.yaml come in one list, each with its line and the nearest name; none that only follows."""

import re
from pathlib import Path

import pytest

from merganser.config.loading import load_params
from merganser.errors import InputError

BASE = "base: {source: hub/base, family: open_clip}\n"
TASKS = """tasks:
  dark: {source: hub/dark, data: {source: datasets/dark, templates: ["a {} image."]}}
  light: {source: hub/light, data: {source: datasets/light, templates: ["a {} image."]}}
"""
# The text of a file, and of each of its mistakes the line, the place, and words that are said of it.
FILES = [
    (
        "base: {source: hub/base, fmaily: open_clip, family: open_clip}\n" + TASKS + "methods:\n  lerp:\n"
        "  ties: {densty: 0.5}\nevaluation: {batch_size: eight}\n",
        [
            (1, "base.fmaily", 'unknown key; did you mean "family"?'),
            (6, "methods.lerp", 'unknown method "lerp"; did you mean "slerp"?'),
            (7, "methods.ties.densty", 'did you mean "density"?'),
            (8, "evaluation.batch_size", "got 'eight'"),
        ],
    ),
    (
        BASE
        + """tasks:
  dark: {source: hub/dark, kind: image_clasification, data: {source: datasets/dark, templates: ["a {} image."]}}
  light: {data: {source: datasets/light, templates: ["a image."]}}
differences:
  d: {merged: tis}
methods:
  tis:
  dts_d: {reads: differences/e}
  regmean:
seed: -1
""",
        [
            (3, "tasks.dark.kind", 'did you mean "image_classification"?'),
            (4, "tasks.light.source", "missing; for example source: "),
            (4, "tasks.light.data.templates.0", "got 'a image.'"),
            (8, "methods.tis", 'did you mean "ties"?'),
            (9, "methods.dts_d.reads", "no 'e' under differences, there are d"),
            (10, "methods.regmean.reads", "declare statistics: {NAME: {kind: gram, examples: 256}}"),
            (11, "seed", "got -1"),
        ],
    ),
    (
        "base: hub/base\ntasks: [dark, light]\nmethods: {ties: {density: 1.4}, tsv_m: {reads: deltas}}\n"
        "mmerge: {device: gpu}\ndecompose: {rank_fraction: 2}\n",
        [
            (1, "base", "expected a mapping, got 'hub/base'"),
            (2, "tasks", "expected a mapping, got ['dark', 'light']"),
            (3, "methods.ties.density", "got 1.4"),
            (3, "methods.tsv_m.reads", "tsv_m reads svd"),
            (4, "mmerge", 'did you mean "merge"?'),
            (5, "decompose.rank_fraction", "got 2"),
        ],
    ),
    (
        TASKS.replace("light:", "li/ght:")
        + "studies: {tasks: {methods: {ties: {densty: 1}}}, rank: {fractions: [0]}}\n"
        "learned: {ada: {learner: adamergin, of: deltas}}\nmethods: {ada: {method: adamerging, reads: learned/ada}}\n",
        [
            (None, "base", "missing; for example base: "),
            (3, "tasks.li/ght", "not a name"),
            (4, "studies.tasks.methods.ties.densty", 'did you mean "density"?'),
            (4, "studies.rank.fractions.0", "greater than 0"),
            (5, "learned.ada.learner", 'did you mean "adamerging"?'),
        ],
    ),
    (
        "base: {source: hub/base, family: open_clp}\nparameters:\n  merged: [visual.*]\n  matrices: linera\n"
        + TASKS.replace("light:", "7:")
        + "joints: {x: {side: row}}\nmethods: {drm_v: {reads: joints/x}, knots: {reads: joints/y}, base: }\n",
        [
            (1, "base.family", 'did you mean "open_clip"?'),
            (4, "parameters.matrices", 'did you mean "linear"?'),
            (7, "tasks.7", "a name must be text"),
            (8, "joints.x.side", 'did you mean "rows"?'),
            (9, "methods.knots.reads", "no 'y' under joints"),
        ],
    ),
    (
        BASE
        + TASKS
        + "validation: {split: test}\nsearches:\n  s: {method: tise}\n  t: {method: ties, over: {densty: [1]}}\n"
        "methods: {ties: {reads: searches/t}, average: {reads: searches/u}}\n",
        [
            (5, "validation.split", "is the split that dark is measured on"),
            (5, "validation.split", "is the split that light is measured on"),
            (7, "searches.s", 'did you mean "ties"?'),
            (7, "searches.s.of", "missing"),
            (8, "searches.t.densty", 'did you mean "density"?'),
            (9, "methods.average.reads", "no 'u' under searches"),
        ],
    ),
    (
        BASE + TASKS + "routers: {r: {of: svd, penalty: -1}}\nsurgery: {s: {of: deltas, rnk: 3}}\n"
        "embeddings: {e: {of: delta}}\nmethods: {twin: {reads: routers/q}, ties: {coefficients: {drk: 1.0}}}\n",
        [
            (5, "routers.r.of", "expected differences/NAME"),
            (5, "routers.r.penalty", "got -1"),
            (6, "surgery.s.of", "expected differences/NAME"),
            (6, "surgery.s.rnk", 'did you mean "rank"?'),
            (7, "embeddings.e.of", "expected deltas, svd or differences/NAME, got 'delta'"),
            (8, "methods.twin.reads", "no 'q' under routers"),
            (8, "methods.ties.coefficients", "no such task: drk"),
        ],
    ),
    (
        BASE
        + """tasks:
  dark:
    source: hub/dark
    data: {source: datasets/dark, tmplates: [], metric: accurac}
  light: 3
merge: {device: gpu}
validation: {splt: train}
methods:
  ties: {layers: {"*.mlp.*": {densty: 0.1}}}
  slerp: {method: slerpp}
""",
        [
            (5, "tasks.dark.data.tmplates", 'did you mean "templates"?'),
            (5, "tasks.dark.data.metric", 'did you mean "accuracy"?'),
            (6, "tasks.light", "expected a mapping, got 3"),
            (7, "merge.device", "got 'gpu'"),
            (8, "validation.splt", 'did you mean "split"?'),
            (10, "methods.ties.layers.*.mlp.*.densty", 'did you mean "density"?'),
            (11, "methods.slerp", 'did you mean "slerp"?'),
        ],
    ),
    (
        "base: {source: data/vocabularies/al, family: open_clip, heads: x}\n"
        + TASKS
        + "vocabularies: {all: {sourse: hub/base}}\nmethods: {emr: , iso_c: {scalng: 1}}\n"
        "studies: {tasks: {subsets: 0, methods: {emr: {unseen: yes}}}}\n",
        [
            (1, "base.heads", "got 'x'"),
            (1, "base.source", "no 'al' under vocabularies; did you mean"),
            (5, "vocabularies.all.source", "missing"),
            (5, "vocabularies.all", "nothing reads it"),
            (5, "vocabularies.all.sourse", 'did you mean "source"?'),
            (6, "methods.iso_c.scalng", 'did you mean "scaling"?'),
            (7, "studies.tasks.subsets", "got 0"),
            (7, "studies.tasks.methods.emr.unseen", "got 'yes'"),
        ],
    ),
    (
        "seed: [0, 0]\n" + BASE + TASKS + "statistics: {g: {kind: gramm}, f: {kind: fisher, examples: 0}}\n"
        "methods:\n  fisher: {reads: statistics/g}\n  regmean: {ratio: 2}\n  ../x: {method: ties}\n",
        [
            (1, "seed", "got [0, 0]"),
            (6, "statistics.g.kind", 'did you mean "gram"?'),
            (6, "statistics.f.examples", "got 0"),
            (9, "methods.regmean.ratio", None),
            (10, "methods.../x", "not a name"),
        ],
    ),
    (
        "base: {source: data/vocabularies/v, family: open_clip}\n"
        + TASKS
        + """vocabularies: {v: {source: hub/base, rows: {"": base}}}
searches: {t: {method: ties, grid: papr}}
methods:
  ties:
    density: 0.1
    layers:
      "blocks.0.*":
        density: 7
  other: {method: ties, reads: searches/tx}
  ties_2:
    method: ties
    coefficients:
      dark: 1
      drk: 1
""",
        [
            (5, "vocabularies.v.rows.", "got ''"),
            (6, "searches.t.grid", 'did you mean "paper"?'),
            (12, "methods.ties.layers.blocks.0.*.density", "got 7"),
            (13, "methods.other.reads", "no 'tx' under searches"),
            (18, "methods.ties_2.coefficients", "no such task: drk"),
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), FILES, ids=range(len(FILES)))
def test_all_mistakes_come_at_once_with_their_lines_and_no_other(
    text: str, expected: list[tuple[int | None, str, str | None]], tmp_path: Path
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_params(path)
    said = str(caught.value).splitlines()
    found = [re.fullmatch(rf"{re.escape(str(path))}(?:, line (\d+))?: (.+)", line) for line in said]
    assert len([each for each in found if each]) == len(expected), said
    for line, place, words in expected:
        fitting = [each[2] for each in found if each and each[1] == (str(line) if line else None)]
        assert any(each.startswith(f"{place}: ") and (words or "") in each for each in fitting), (place, said)
