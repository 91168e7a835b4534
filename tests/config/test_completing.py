"""What a params.yaml leaves out is written into it, and nothing else of it changes."""

from fnmatch import fnmatchcase
from pathlib import Path

import PIL.Image
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from ruamel.yaml import YAML

from merganser.config.completing import addition_names, completed
from merganser.config.headers import check_sources
from merganser.config.loading import complete_file, load_params
from merganser.errors import InputError
from tests.tiny_transformers import random_model, write_model

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
    assert "added the missing values: seed, parameters" in said_first
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
    assert mistake in str(caught.value)
    assert path.read_text() == before


def test_a_layout_that_cannot_be_written_into_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match=r"cannot be inserted into this layout; add:\nseed: 0\n"):
        completed("{methods: {x: {method: ties, reads: deltas}}}\n", "params.yaml")
    shared = "methods:\n  a: &a {method: ties}\n  b: *a\n"  # one entry twice: written once
    text, added = completed(shared, "params.yaml")
    assert "a: &a {method: ties, reads: deltas}\n  b: *a\n" in text
    assert addition_names(added) == "seed, parameters, decompose, merge, evaluation, methods.a, methods.b"


def save_texts(folder: Path, label: object, **columns: str) -> None:
    """Save a data set of one text and one label."""
    features = Features(
        {"text": Value("string"), "label": label} | {name: Value(kind) for name, kind in columns.items()}
    )
    row = {"text": "a", "label": 0} | dict.fromkeys(columns, "b")
    DatasetDict({"test": Dataset.from_list([row], features=features)}).save_to_disk(folder)


def configured(folder: Path, text: str, name: str = "config.json") -> None:
    folder.mkdir(parents=True)
    (folder / name).write_text(text)


SHORT = """base: {source: models/base} # a BERT
tasks:
  one: {source: models/one, data: {source: data/classes}}
  two: {source: models/two, data: {source: data/numbers}}
  three: {source: models/three, kind: regression, data: {source: data/numbers}}
methods:
  average:
"""


def test_the_family_and_the_kinds_follow_from_the_checkpoint_and_the_data_and_are_said_once(tmp_path: Path) -> None:
    configured(tmp_path / "models/base", '{"model_type": "bert"}')
    save_texts(tmp_path / "data/classes", ClassLabel(names=["x", "y"]))
    save_texts(tmp_path / "data/numbers", Value("float32"))
    path = written(tmp_path, SHORT)
    params = load_params(path)
    said = complete_file(path)
    assert said is not None
    inferred = "base.family: encoder, tasks.one.kind: text_classification, tasks.two.kind: regression, seed, parameters"
    assert f"added the missing values: {inferred}" in said
    expected = SHORT.replace("models/base}", "models/base, family: encoder}")
    expected = expected.replace("models/one,", "models/one, kind: text_classification,")
    expected = expected.replace("models/two,", "models/two, kind: regression,")
    expected = expected.replace("average:", "average: {method: average, reads: deltas}")
    assert path.read_text().startswith(expected)
    assert load_params(path) == params
    assert complete_file(path) is None


@pytest.mark.parametrize(
    ("files", "family"),
    [
        ({"open_clip_config.json": "{}"}, "open_clip"),
        ({"config.json": '{"model_type": "llama"}'}, "causal"),
        ({"config.json": '{"model_type": "t5"}'}, "seq2seq"),
        ({"config.json": '{"model_type": "siglip"}'}, "siglip"),
        ({"config.json": '{"model_type": "clip"}'}, "clip"),
        ({"config.json": '{"model_type": "vit"}'}, "vision"),
    ],
)
def test_each_familys_configuration_is_known(files: dict[str, str], family: str, tmp_path: Path) -> None:
    for name, text in files.items():
        configured(tmp_path / "hub/base", text, name)
    path = written(tmp_path, BASE.replace(", family: open_clip", ""), TASKS, "methods: {average: }")
    assert f"base.family: {family}" in addition_names(completed(path.read_text(), "", tmp_path)[1])


def test_what_does_not_follow_is_asked_for(tmp_path: Path) -> None:
    configured(tmp_path / "models/base", '{"model_type": "something_new"}')
    path = written(tmp_path, SHORT)
    with pytest.raises(InputError, match=r"line 1: base.family: missing; for example family: open_clip"):
        load_params(path)
    (tmp_path / "models/base/config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(
        InputError, match=r"tasks.one.kind: missing, and .*; encoder supports regression, text_cl"
    ) as caught:
        load_params(path)
    assert "tasks.three" not in str(caught.value)
    save_texts(tmp_path / "data/classes", ClassLabel(names=["x", "y"]))
    save_texts(tmp_path / "data/numbers", Value("float32"))
    assert [task.kind for task in load_params(path).tasks.values()] == [
        "text_classification",
        "regression",
        "regression",
    ]


def test_a_base_that_is_not_there_is_said_and_no_kind_is_asked_for(tmp_path: Path) -> None:
    configured(tmp_path / "models/base", '{"model_type": "bert"}')
    path = written(tmp_path, SHORT.replace("models/base", "models/bse"))
    with pytest.raises(
        InputError, match=r"line 1: base.source: models/bse does not exist, .* correct the path"
    ) as caught:
        load_params(path)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["base.family", "base.source"]


def test_a_source_in_the_home_folder_gets_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = written(
        tmp_path, BASE.replace("hub/base", "~/hub/base"), TASKS.replace("hub/dark", '"~/dark"'), "methods: {ties: }"
    )
    assert load_params(path).base.source == f"{tmp_path}/home/hub/base"
    said = complete_file(path)
    assert said is not None
    assert f"base.source: {tmp_path}/home/hub/base, tasks.dark.source: {tmp_path}/home/dark, seed" in said
    assert f"base: {{source: {tmp_path}/home/hub/base, family: open_clip}}" in path.read_text()
    assert f"  dark: {{source: {tmp_path}/home/dark, data:" in path.read_text()


SEVEN_LINES = """base: {source: models/base}
tasks:
  one: {source: models/one, data: {source: data/one}}
  two: {source: models/two, data: {source: data/two}}
methods:
  average:
  ties:
"""


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize(("kind", "head"), [("bert", "classifier.*"), ("llama, untied", "score.*")])
def test_heads_that_every_model_has_and_the_base_has_not_are_written_in(
    kind: str, head: str, prefixed: bool, tmp_path: Path
) -> None:
    model = random_model(kind, outputs=2)
    headless = {name: value for name, value in model.state_dict().items() if not fnmatchcase(name, head)}
    if prefixed:
        model.save_pretrained(tmp_path / "models/base", state_dict=headless)
    else:
        model.base_model.save_pretrained(tmp_path / "models/base")
    for task, outputs in (("one", 2), ("two", 3)):
        write_model(tmp_path / "models" / task, kind, outputs=outputs)
        save_texts(tmp_path / "data" / task, ClassLabel(names=list("xyz")[:outputs]))
    path = written(tmp_path, SEVEN_LINES)
    said = complete_file(path)
    assert said is not None
    assert f"base.heads: [{head}]" in said
    assert load_params(path).base.heads == [head]
    check_sources(load_params(path), tmp_path, lambda path: False)
    write_model(tmp_path / "models/two", "llama, untied" if kind == "bert" else "bert", outputs=3)
    written(tmp_path, SEVEN_LINES)
    assert load_params(path).base.heads == []


def test_pictures_get_the_usual_template_said_once(tmp_path: Path) -> None:
    own = "  own: {source: hub/own, data: {source: datasets/own, templates: [a drawing of a {}.]}}"
    kind = "  kind: {source: hub/kind, kind: image_classification, data: {source: datasets/kind}}"
    tasks = "tasks:\n  dark: {source: hub/dark, data: {source: datasets/dark}}"
    path = written(
        tmp_path, BASE, tasks, own.replace("a drawing of a {}.", "'a drawing of a {}.'"), kind, "methods: {average: }"
    )
    said = complete_file(path)
    assert said is not None
    assert "added the missing values: templates: ['a photo of a {}.'] of dark, kind, seed" in said
    found = [task.data.values["templates"] for task in load_params(path).tasks.values()]
    assert found == [["a photo of a {}."], ["a drawing of a {}."], ["a photo of a {}."]]
    assert (
        "dark: {source: hub/dark, data: {source: datasets/dark, templates: ['a photo of a {}.']}}" in path.read_text()
    )
    assert complete_file(path) is None


def test_pictures_of_another_column_are_found(tmp_path: Path) -> None:
    picture = {"img": PIL.Image.new("RGB", (2, 2)), "target": 0}
    saved(tmp_path / "datasets/dark", picture, {"img": Image(), "target": ClassLabel(names=["x", "y"])})
    tasks = "tasks:\n  dark: {source: hub/dark, data: {source: datasets/dark}}"
    complete_file(path := written(tmp_path, BASE, tasks, "methods: {average: }"))
    assert load_params(path).tasks["dark"].data.columns == {"image": "img", "label": "target"}


BERT = "base: {source: models/base, family: encoder}"


def saved(folder: Path, row: dict[str, object], features: dict[str, object]) -> None:
    """Save a data set of one row."""
    DatasetDict({"test": Dataset.from_list([row], features=Features(features))}).save_to_disk(folder)


@pytest.mark.parametrize("text", ["sentence", "Review", "tweet", "document"])
@pytest.mark.parametrize("label", ["sentiment", "Category", "target"])
def test_columns_of_usual_names_are_found_written_in_and_said(text: str, label: str, tmp_path: Path) -> None:
    features = {"id": Value("string"), text: Value("string"), label: ClassLabel(names=["bad", "good"])}
    saved(tmp_path / "data/own", {"id": "7", text: "a", label: 1}, features)
    tasks = "tasks:\n  one: {source: models/one, data: {source: data/own}}"
    kind = "  two: {source: models/two, kind: text_classification, data: {source: data/own}}"
    path = written(tmp_path, BERT, tasks, kind, "methods: {average: }")
    said = complete_file(path)
    columns = f"columns: {{text: {text}, label: {label}}}"
    assert said is not None
    assert f"tasks.one.kind: text_classification, tasks.one.data.{columns}, tasks.two.data.{columns}, seed" in said
    assert f"one: {{source: models/one, kind: text_classification, data: {{source: data/own, {columns}}}}}" in (
        path.read_text()
    )
    assert load_params(path).tasks["two"].data.columns == {"text": text, "label": label}


def test_labels_of_words_are_asked_for_and_then_the_columns_follow(tmp_path: Path) -> None:
    row = {"sentence": "a", "sentiment": "good"}
    saved(tmp_path / "data/own", row, {"sentence": Value("string"), "sentiment": Value("string")})
    given = "tasks: {one: {source: models/one, data: {source: data/own}}}"
    path = written(tmp_path, BERT, given, "methods: {average: }")
    with pytest.raises(InputError, match=r"one\.kind: missing, .* 'sentiment' .* holds words; list them under data.la"):
        complete_file(path)
    written(tmp_path, BERT, given.replace("own}", "own, labels: [bad, good]}"), "methods: {average: }")
    complete_file(path)
    task = load_params(path).tasks["one"]
    assert (task.kind, task.data.columns) == ("text_classification", {"text": "sentence", "label": "sentiment"})


def test_whole_numbers_are_not_taken_for_those_of_a_regression(tmp_path: Path) -> None:
    saved(
        tmp_path / "data/own", {"sentence": "a", "target": 1}, {"sentence": Value("string"), "target": Value("int64")}
    )
    save_texts(tmp_path / "data/plain", Value("int64"))
    given = "tasks: {one: {source: models/one, data: {source: data/own}}}"
    for source, label in (("own", "target"), ("plain", "label")):
        path = written(tmp_path, BERT, given.replace("own", source), "methods: {average: }")
        with pytest.raises(InputError, match=rf"'{label}' of the data holds whole numbers; name the classes"):
            load_params(path)
    for more, kind in ((", classes: [x, y]}", "text_classification"), ("}, kind: regression", "regression")):
        written(tmp_path, BERT, given.replace("own}", f"own{more}"), "methods: {average: }")
        assert load_params(path).tasks["one"].kind == kind
        assert load_params(path).tasks["one"].data.columns == {"text": "sentence", "label": "target"}


def test_ambiguous_columns_are_listed_with_the_key_that_says_which(tmp_path: Path) -> None:
    features = {"question": Value("string"), "sentence": Value("string"), "sentiment": ClassLabel(names=["x", "y"])}
    saved(tmp_path / "data/own", {"question": "a", "sentence": "b", "sentiment": 0}, features)
    given = "tasks: {one: {source: models/one, data: {source: data/own}}}"
    path = written(tmp_path, BERT, given, "methods: {average: }")
    with pytest.raises(InputError) as caught:
        load_params(path)
    advice = "the data has the columns question, sentence, sentiment; set data.columns, as in columns: {text: question,"
    assert (
        f"tasks.one.kind: missing, and it does not follow from the data: {advice} pair: sentence, label: sentiment}}"
        in str(caught.value)
    )
    assert len(str(caught.value).splitlines()) == 1
