"""Every mistake in params.yaml is refused, by its place and with what is wrong."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from merganser import registry
from merganser.config import CHECKED
from merganser.config.inputs.from_data import own_of, search_candidates
from merganser.config.loading import load_params
from merganser.config.params import Params, declared
from merganser.errors import InputError
from merganser.hashes import sha256_of
from merganser.studies.candidates import value_combinations

ROOT = Path(__file__).parents[2]
Content = dict[str, Any]
GOOD: Content = {
    "seed": 0,
    "base": {"source": "hub/base", "family": "open_clip"},
    "parameters": {"merged": ["visual.*"], "matrices": "linear"},
    "tasks": {
        name: {"source": f"hub/{name}", "data": {"source": f"datasets/{name}", "templates": ["a {}."]}}
        for name in ("digits", "greek", "signs", "street")
    },
    "decompose": {"rank_fraction": 0.3, "dtype": "float32"},
    "joints": {"rows": {"side": "rows"}},
    "differences": {"from_average": {"merged": "average"}},
    "methods": {
        "average": {"method": "average", "reads": "deltas"},
        "ties_20": {"method": "ties", "reads": "deltas", "density": 0.2},
        "tsv_m": {"method": "tsv_m", "reads": "svd"},
    },
    "merge": {"device": "cpu"},
    "evaluation": {"split": "test", "batch_size": 512},
    "studies": {
        "tasks": {"subsets": 4, "methods": {"ties": {"method": "ties", "reads": "deltas"}}},
        "rank": {"fractions": [0.1, 0.3, 1.0]},
    },
}


def write(folder: Path, content: Content) -> Path:
    path = folder / "params.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump(content, file)
    return path


def changed(change: Callable[[Content], object]) -> Content:
    content = copy.deepcopy(GOOD)
    change(content)
    return content


def start_from(content: Content, method: str, reads: str) -> None:
    """Let difference vectors start from an entry of a method."""
    content["methods"]["entry"] = {"method": method, "reads": reads}
    content["differences"]["x"] = {"merged": "entry"}


def test_a_stage_does_not_check_again_what_its_run_checked_but_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, changed(lambda content: content["methods"]["ties_20"].update(densty=0.2)))
    monkeypatch.setenv(CHECKED, sha256_of(path))
    assert load_params(path).methods["ties_20"].values == {"density": 0.2, "densty": 0.2}
    path.write_text(path.read_text() + "# edited since\n")
    with pytest.raises(InputError, match="densty"):
        load_params(path)


def read_joint(content: Content, method: str, side: str, **values: Any) -> None:
    """Let an entry of a method read the one joint, of this side."""
    content["joints"] = {"x": {"side": side}}
    content["methods"]["entry"] = {"method": method, "reads": "joints/x"} | values


def read_statistics(content: Content, method: str, reads: str, kind: str = "gram", base: bool = False) -> None:
    """Let an entry of a method read statistics, of which there is one."""
    content["validation"] = {"split": "validation"}
    content["statistics"] = {"x": {"kind": kind, "examples": 8, "base": base}}
    content["methods"]["entry"] = {"method": method, "reads": reads}


def complaint(path: Path) -> str:
    """Return what is said of a file, without the numbers of lines: `test_mistakes.py` looks at them."""
    with pytest.raises(InputError) as caught:
        load_params(path)
    return re.sub(rf"^({re.escape(str(path))}), line \d+: (?=\w+[:.])", r"\1: ", str(caught.value), flags=re.M)


LM_DATA = {"source": "datasets/text", "metric": "acc", "task": {"doc_to_text": "a", "output_type": "loglikelihood"}}


def test_what_is_declared_is_read(tmp_path: Path) -> None:
    params = load_params(write(tmp_path, GOOD))
    assert list(params.tasks) == ["digits", "greek", "signs", "street"]
    assert declared(params.tasks, "greek", "tasks").data.templates == ["a {}."]
    assert declared(params.methods, "ties_20", "methods").method == "ties"
    assert declared(params.methods, "ties_20", "methods").values == {"density": 0.2}
    assert params.evaluation.batch_size == 512


def test_the_projects_own_params_are_right() -> None:
    params = load_params(ROOT / "params.yaml")
    assert len(params.tasks) == 8
    assert len(params.methods) >= 15


@pytest.mark.parametrize(
    ("change", "place", "what"),
    [
        (lambda c: c["methods"]["ties_20"].update(method="tise"), "methods.ties_20: ", 'did you mean "ties"?'),
        (lambda c: c["methods"]["ties_20"].update(densty=0.2), "methods.ties_20.densty: ", 'did you mean "density"?'),
        (lambda c: c["methods"]["ties_20"].update(density=1.4), "methods.ties_20.density: ", "got 1.4"),
        (lambda c: c["methods"]["ties_20"].update(density=float("nan")), "methods.ties_20.density: ", "got nan"),
        (
            lambda c: c["methods"]["ties_20"].update(coefficients="nan"),
            "methods.ties_20.coefficients: ",
            "nan was renamed to inverse_norm",
        ),
        (
            lambda c: c["methods"]["ties_20"].update(coefficients="norm"),
            "methods.ties_20.coefficients: ",
            "expected a map from tasks to numbers, or inverse_norm, got 'norm'",
        ),
        (
            lambda c: c["methods"].update(arc={"method": "slerp", "reads": "deltas"}),
            "methods.arc: ",
            "slerp merges at most 2 models, got 4",
        ),
        (lambda c: c["methods"]["ties_20"].update(density="0.2"), "methods.ties_20.density: ", "got '0.2'"),
        (
            lambda c: c["methods"]["ties_20"].update(coefficients={"digts": 1.0}),
            "methods.ties_20.coefficients: ",
            "no such task: digts; the tasks are digits, greek, signs, street",
        ),
        (lambda c: c["methods"]["ties_20"].update(scaling={"digts": 1.0}), "methods.ties_20.scaling: ", "no such task"),
        (
            lambda c: c["methods"]["ties_20"].update(density={"digits": 0.5, "greek": 0.1}),
            "methods.ties_20.density: ",
            "signs, street missing; the map must name every task",
        ),
        (
            lambda c: c["methods"]["ties_20"].update(layers={"visual.*": {"densty": 0.5}}),
            "methods.ties_20.layers.visual.*.densty: ",
            'did you mean "density"?',
        ),
        (
            lambda c: c["methods"]["tsv_m"].update(layers={"visual.*": {"rank_fraction": 0.5}}),
            "methods.tsv_m: ",
            "needs the first 0.5 of each spectrum for 4 tasks, decompose.rank_fraction is 0.3; raise it",
        ),
        (
            lambda c: c["methods"].update(tall={"method": "tall_mask", "reads": "deltas", "tall_lambda": {"x": 0.2}}),
            "methods.tall.tall_lambda: ",
            "no such task: x",
        ),
        (
            lambda c: c["studies"]["tasks"]["methods"]["ties"].update(coefficients={"digts": 1.0}),
            "studies.tasks.methods.ties.coefficients: ",
            "no such task: digts",
        ),
        (
            lambda c: read_statistics(c, "regmean", "deltas"),
            "methods.entry.reads: ",
            "regmean reads statistics/NAME, got 'deltas'; read statistics/x",
        ),
        (
            lambda c: read_statistics(c, "regmean", "statistics/gram"),
            "methods.entry.reads: ",
            "no 'gram' under statistics, there are x",
        ),
        (
            lambda c: read_statistics(c, "regmean", "statistics/x", "fisher"),
            "methods.entry.reads: ",
            "regmean needs gram, statistics.x is fisher; declare statistics: {NAME: {kind: gram, examples: 256}}",
        ),
        (
            lambda c: read_statistics(c, "gradient_matching", "statistics/x", "fisher"),
            "methods.entry.reads: ",
            "gradient_matching needs fisher and base_fisher, statistics.x is fisher; declare",
        ),
        (
            lambda c: read_statistics(c, "fisher", "differences/from_average", "fisher"),
            "methods.entry.reads: ",
            "fisher reads statistics/NAME, got 'differences/from_average'",
        ),
        (
            lambda c: read_statistics(c, "ties", "statistics/x"),
            "methods.entry.reads: ",
            "ties reads deltas, or differences/NAME, got 'statistics/x'",
        ),
        (lambda c: c.update(statistics={"x": {"kind": "gram", "examples": 0}}), "statistics.x.examples: ", "got 0"),
        (
            lambda c: read_statistics(c, "regmean", "statistics/x", base=True),
            "statistics.x.base: ",
            "only kind: fisher measures the base model too",
        ),
        (lambda c: c["methods"]["tsv_m"].update(reads="deltas"), "methods.tsv_m.reads: ", "tsv_m reads svd"),
        (lambda c: c["methods"]["tsv_m"].update(reads="factors"), "methods.tsv_m.reads: ", "got 'factors'"),
        (lambda c: c["methods"]["ties_20"].pop("method"), "methods.ties_20.method: ", "missing"),
        (lambda c: c["methods"].update(tsv_m="tsv_m"), "methods.tsv_m: ", "expected a mapping"),
        (lambda c: c["decompose"].update(rank_fraction=0.1), "methods.tsv_m: ", "decompose.rank_fraction is 0.1"),
        (lambda c: c.update(methods={}), "methods: ", "there are none"),
        (lambda c: c.update(methods=None), "methods: ", "there are none"),
        (lambda c: c.pop("methods"), "methods: ", "missing"),
        (lambda c: c.update(tasks={}), "tasks: ", "there are none"),
        (lambda c: c.update(tasks=["digits"]), "tasks: ", "expected a mapping"),
        (lambda c: c["evaluation"].update(split="tset"), "evaluation.split: ", "got 'tset'; did you mean \"test\""),
        (lambda c: c["evaluation"].update(split={"name": "test"}), "evaluation.split.examples: ", "missing"),
        (lambda c: c["tasks"]["digits"].pop("data"), "tasks.digits.data: ", "missing"),
        (lambda c: c["tasks"].update(mean=c["tasks"].pop("digits")), "tasks.mean: ", "has this name; rename the task"),
        (lambda c: c["tasks"]["digits"]["data"].update(xsource="x"), "tasks.digits.data.xsource: ", '"source"?'),
        (lambda c: c["tasks"]["digits"]["data"].update(templates=[]), "tasks.digits.data.templates: ", "none"),
        (lambda c: c["tasks"]["digits"]["data"].update(templates=["a."]), "tasks.digits.data.templates.0: ", "{}"),
        (lambda c: c["tasks"]["digits"]["data"].update(templates=["{} {x}"]), "tasks.digits.data.templates.0: ", "{}"),
        (lambda c: c.update(differences=None), "differences: ", "leave it out for none"),
        (lambda c: c["differences"].update(x={}), "differences.x.merged: ", "missing"),
        (
            lambda c: c["differences"].update(x={"merged": "averag"}),
            "differences.x.merged: ",
            'did you mean "average"?',
        ),
        (lambda c: start_from(c, "tsv_m", reads="differences/x"), "differences.x.merged: ", "reads difference vectors"),
        (lambda c: start_from(c, "tsv_c", reads="svd"), "differences.x.merged: ", "keeps a part per task"),
        (
            lambda c: c["methods"]["ties_20"].update(reads="differences/average"),
            "methods.ties_20.reads: ",
            "from_average",
        ),
        (
            lambda c: c["methods"]["ties_20"].update(reads="differences/"),
            "methods.ties_20.reads: ",
            "ties reads deltas",
        ),
        (
            lambda c: c["studies"]["tasks"]["methods"]["ties"].update(reads="differences/from_average"),
            "studies.tasks.methods.ties.reads: ",
            "difference vectors start from a merge of all tasks",
        ),
        (lambda c: c.update(joints=None), "joints: ", "leave it out for none"),
        (lambda c: c["joints"].update(x={}), "joints.x.side: ", "missing"),
        (lambda c: c["joints"].update(x={"side": "row"}), "joints.x.side: ", 'did you mean "rows"?'),
        (
            lambda c: c["methods"].update(drm_h={"method": "drm_h", "reads": "joints/row"}),
            "methods.drm_h.reads: ",
            "no 'row' under joints, there are rows, got 'joints/row'; did you mean \"rows\"?",
        ),
        (
            lambda c: read_joint(c, "drm_v", "rows"),
            "methods.entry.reads: ",
            "drm_v decomposes columns, joints.x is of rows; declare one under joints with side: columns",
        ),
        (
            lambda c: (read_joint(c, "knots", "columns"), c["joints"].update(y={"side": "rows"})),
            "methods.entry.reads: ",
            "knots decomposes rows, joints.x is of columns; read joints/y",
        ),
        (
            lambda c: read_joint(c, "ties", "rows"),
            "methods.entry.reads: ",
            "ties decomposes nothing jointly: it reads deltas, or differences/NAME, got 'joints/x'",
        ),
        (
            lambda c: c["methods"].update(drm_h={"method": "drm_h", "reads": "joints/"}),
            "methods.drm_h.reads: ",
            "drm_h reads deltas, or joints/NAME of side rows, or differences/NAME, got 'joints/'",
        ),
        (
            lambda c: read_joint(c, "knots", "rows", coefficients="inverse_norm"),
            "methods.entry.reads: ",
            "coefficients change the matrices before they are decomposed, so joints/x cannot be used; read deltas",
        ),
        (
            lambda c: read_joint(c, "drm_h", "rows", scaling={"greek": 0.5}),
            "methods.entry.reads: ",
            "a scaling by task changes the matrices",
        ),
        (
            lambda c: c["studies"]["tasks"]["methods"].update(drm_h={"method": "drm_h", "reads": "joints/rows"}),
            "studies.tasks.methods.drm_h.reads: ",
            "joints/rows decomposes all tasks' matrices, not a subset's; read deltas",
        ),
        (
            lambda c: c["methods"].update(dts={"method": "dts_unseen", "reads": "svd"}),
            "methods.dts.reads: ",
            "needs the text embeddings of the tasks' class names, got 'svd'; declare embeddings: {NAME: {of: svd}}",
        ),
        (
            lambda c: c["methods"].update(dts={"method": "dts_unseen", "reads": "embeddings/svd"}),
            "methods.dts.reads: ",
            "no 'svd' under embeddings, there are none, got 'embeddings/svd'",
        ),
        (
            lambda c: (c.update(embeddings={"x": {"of": "svd"}}), c["methods"]["ties_20"].update(reads="embeddings/x")),
            "methods.ties_20.reads: ",
            "ties uses no text embeddings, got 'embeddings/x'; read deltas",
        ),
        (
            lambda c: (
                c.update(embeddings={"x": {"of": "deltas"}}),
                c["methods"].update(dts={"method": "dts_unseen", "reads": "embeddings/x"}),
            ),
            "methods.dts.reads: ",
            "dts_unseen reads svd, or differences/NAME, got 'deltas'",
        ),
        (lambda c: c.update(embeddings={"x": {"of": "joints/rows"}}), "embeddings.x.of: ", "got 'joints/rows'"),
        (
            lambda c: c.update(embeddings={"x": {"of": "differences/from_avrage"}}),
            "embeddings.x.of: ",
            'did you mean "from_average"?',
        ),
        (
            lambda c: c["methods"].update(surgery={"method": "surgery", "reads": "deltas"}),
            "methods.surgery.reads: ",
            "surgery reads surgery/NAME, got 'deltas'; declare surgery: {NAME: {of: differences/NAME}}",
        ),
        (
            lambda c: (
                c.update(surgery={"x": {"of": "differences/from_average"}}),
                c["methods"].update(surgery={"method": "surgery", "reads": "surgery/y"}),
            ),
            "methods.surgery.reads: ",
            "no 'y' under surgery, there are x, got 'surgery/y'",
        ),
        (
            lambda c: (
                c.update(surgery={"x": {"of": "differences/from_average"}}),
                c["methods"]["ties_20"].update(reads="surgery/x"),
            ),
            "methods.ties_20.reads: ",
            "ties takes nothing of surgery, got 'surgery/x'; read deltas",
        ),
        (
            lambda c: c["methods"].update(twin={"method": "twin", "reads": "differences/from_average"}),
            "methods.twin.reads: ",
            "twin reads routers/NAME, got 'differences/from_average'; declare routers: {NAME: {of: differences/NAME}}",
        ),
        (
            lambda c: c["methods"].update(free={"method": "free", "reads": "deltas"}),
            "methods.free.reads: ",
            "free reads routers/NAME, got 'deltas'; declare routers: {NAME: {of: deltas}}",
        ),
        (
            lambda c: (
                c.update(routers={"x": {"of": "deltas"}}),
                c["methods"].update(twin={"method": "twin", "reads": "routers/x"}),
            ),
            "methods.twin.reads: ",
            "twin reads differences/NAME, got 'deltas'",
        ),
        (
            lambda c: c.update(routers={"x": {"of": "svd"}}),
            "routers.x.of: ",
            "expected differences/NAME, which start from the merged model, or deltas, which start from the base",
        ),
        (lambda c: c.update(surgery={"x": {"of": "deltas"}}), "surgery.x.of: ", "expected differences/NAME"),
        (
            lambda c: c.update(surgery={"x": {"of": "differences/from_avrage"}}),
            "surgery.x.of: ",
            'did you mean "from_average"?',
        ),
        (lambda c: c.update(surgery={"x": {"of": "differences/from_average", "rnk": 1}}), "surgery.x.rnk: ", '"rank"?'),
        (
            lambda c: (
                c.update(surgery={"x": {"of": "differences/from_average"}}),
                start_from(c, "surgery", "surgery/x"),
            ),
            "differences.x.merged: ",
            "the entry entry keeps a part per task",
        ),
        (
            lambda c: (
                c.update(surgery={"x": {"of": "differences/from_average"}}),
                c["studies"]["tasks"]["methods"].update(s={"method": "surgery", "reads": "surgery/x"}),
            ),
            "studies.tasks.methods.s: ",
            "surgery needs surgery, trained for a merge of all tasks",
        ),
        (lambda c: c["tasks"]["digits"].update(kind="image_clasification"), "tasks.digits.kind: ", "is not a kind"),
        (lambda c: c["tasks"]["digits"]["data"].update(metric="accurac"), "tasks.digits.data.metric: ", '"accuracy"?'),
        (lambda c: c["tasks"]["digits"]["data"].update(templtes=[]), "tasks.digits.data.templtes: ", '"templates"?'),
        (lambda c: c["base"].update(heads="score.*"), "base.heads: ", "got 'score.*'"),
        (lambda c: c.update(merge={"device": "gpu"}), "merge.device: ", "got 'gpu'"),
        (lambda c: c["evaluation"].update(precision="bf16"), "evaluation.precision: ", 'did you mean "bfloat16"?'),
        (lambda c: c.pop("base"), "base: ", "missing"),
        (lambda c: c["base"].update(family="open_clp"), "base.family: ", 'did you mean "open_clip"?'),
        (lambda c: c.update(mmethods={}), "mmethods: ", 'did you mean "methods"?'),
        (lambda c: c.update(seed=-1), "seed: ", "got -1"),
        (lambda c: c.update(seed=True), "seed: ", "got True"),
        (lambda c: c.update(seed=[]), "seed: expected a whole number from 0 on, or a list of different ones", "got []"),
        (lambda c: c.update(seed=[0, 1, 0]), "seed: ", "got [0, 1, 0]"),
        (lambda c: c.update(seed=[0, -1]), "seed: ", "got [0, -1]"),
        (lambda c: c["decompose"].update(rank_fraction=0), "decompose.rank_fraction: ", "greater than 0"),
        (lambda c: c["evaluation"].update(batch_size=0.5), "evaluation.batch_size: ", "got 0.5"),
        (
            lambda c: c["evaluation"].update(server="vllm serve {model}"),
            "evaluation.server: lacks {port}: Merganser replaces",
            "got 'vllm serve {model}'",
        ),
        (lambda c: c["evaluation"].update(server="serve '{model} {port}"), "evaluation.server: is not a command", ""),
        (
            lambda c: (
                c["evaluation"].update(server="serve {model} {port}"),
                c["methods"].update(smile={"method": "smile", "reads": "svd"}),
                [task.update(kind="language_model", data=LM_DATA) for task in c["tasks"].values()],
                c["base"].update(family="causal"),
            ),
            "methods.smile: evaluation.server runs models as they are, and smile computes more at evaluation",
            "leave one of them out",
        ),
        (
            lambda c: c["evaluation"].update(server="serve {model} {port}"),
            "evaluation.server: no task is of a kind that a server can answer (language_model)",
            "leave it out",
        ),
        (lambda c: c["parameters"].update(matrices="any"), "parameters.matrices: ", "got 'any'"),
        (
            lambda c: c.update(validation={"split": "test"}),
            "validation.split: ",
            "is the split that digits is measured on",
        ),
        (
            lambda c: (
                c.update(validation={"split": "validation"}),
                c["tasks"]["greek"]["data"].update(validation="test"),
            ),
            "tasks.greek.data.validation: ",
            "is the split that greek is measured on",
        ),
        (lambda c: c.update(studies=None), "studies: ", "leave it out for none"),
        (lambda c: c["studies"].update(rank=None), "studies.rank: ", "leave it out for none"),
        (lambda c: c["studies"]["tasks"].update(subsets=0), "studies.tasks.subsets: ", "got 0"),
        (lambda c: c["studies"]["tasks"].update(method={}), "studies.tasks.method: ", 'did you mean "methods"?'),
        (lambda c: c["studies"]["rank"].update(fractions=[0]), "studies.rank.fractions.0: ", "greater than 0"),
        (lambda c: c["studies"]["rank"].update(fractions=[0.1, 0.5]), "studies.rank.fractions: 0.5: ", "write 1.0"),
        (
            lambda c: c["studies"]["tasks"]["methods"]["ties"].update(densty=1),
            "studies.tasks.methods.ties.densty: ",
            'did you mean "density"?',
        ),
        (
            lambda c: (
                c.update(embeddings={"of_svd": {"of": "svd"}}),
                c["studies"]["tasks"]["methods"].update(dts={"method": "dts_unseen", "reads": "embeddings/of_svd"}),
            ),
            "studies.tasks.methods.dts: ",
            "needs the tasks' text embeddings, which this study does not read",
        ),
        (
            lambda c: c["base"].update(source="data/checkpoints"),
            "studies.tasks.methods: ",
            "the base is the mean of all tasks' models",
        ),
        (
            lambda c: c["studies"]["tasks"]["methods"].update(tsv_m={"method": "tsv_m", "reads": "svd"}),
            "studies.tasks.methods.tsv_m: ",
            "needs the first 0.5 of each spectrum for 2 tasks, decompose.rank_fraction is 0.3",
        ),
    ],
)
def test_a_mistake_is_refused_by_its_place(
    change: Callable[[Content], object], place: str, what: str, tmp_path: Path
) -> None:
    path = write(tmp_path, changed(change))
    lines = complaint(path).splitlines()
    assert any(line.startswith(f"{path}: {place}") and what in line for line in lines), lines


@pytest.mark.parametrize("key", ["base", "tasks", "methods"])
def test_a_missing_section_is_named_with_a_line_that_gives_it(key: str, tmp_path: Path) -> None:
    path = write(tmp_path, changed(lambda c: c.pop(key)))
    line = next(line for line in complaint(path).splitlines() if line.startswith(f"{path}: {key}: missing"))
    given = YAML(typ="safe").load(line.partition("; for example ")[2])
    Params.model_validate({**changed(lambda c: c.pop(key)), **given})


def test_sections_that_a_comparison_does_not_use_may_be_left_out(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        del content["joints"], content["differences"], content["studies"]

    params = load_params(write(tmp_path, changed(change)))
    assert (params.joints, params.differences) == ({}, {})
    assert (params.studies.tasks.methods, params.studies.rank.fractions) == ({}, [])
    for part in ("tasks", "rank"):
        assert load_params(write(tmp_path, changed(lambda c, part=part: c["studies"].pop(part))))


def test_an_entry_that_needs_less_for_every_size_of_subset_is_accepted(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["studies"]["tasks"]["methods"]["tsv_m"] = {"method": "tsv_m", "reads": "svd", "rank_fraction": 0.3}
        content["studies"]["rank"]["fractions"] = []

    assert "tsv_m" in load_params(write(tmp_path, changed(change))).studies.tasks.methods


def test_the_name_of_a_study_that_could_leave_its_folder_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, changed(lambda c: c["studies"]["tasks"]["methods"].update({"a/b": {}})))
    assert "studies.tasks.methods.a/b: not a name, got 'a/b'" in complaint(path)


@pytest.mark.parametrize("section", ["tasks", "joints", "differences", "methods"])
@pytest.mark.parametrize(
    "name", ["..", "../up", "a/b", "a b", "a;rm", "$HOME", "`id`", "-rf", "_x", "a.b", "", "é", "a\n"]
)
def test_a_name_that_could_leave_its_folder_or_command_is_refused(section: str, name: str, tmp_path: Path) -> None:
    path = write(tmp_path, changed(lambda c: c[section].update({name: next(iter(c[section].values()))})))
    assert f"{section}.{name}: not a name, got {name!r}" in complaint(path)


def test_a_name_that_yaml_takes_for_a_number_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, changed(lambda c: c["tasks"].update({7: c["tasks"]["digits"]})))
    assert 'tasks.7: a name must be text, got 7; write "7"' in complaint(path)


def test_names_that_join_to_one_stage_are_refused(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["methods"] |= {"a-b": content["methods"]["average"], "a": content["methods"]["average"]}
        content["tasks"] |= {"c": content["tasks"]["digits"], "b-c": content["tasks"]["digits"]}

    assert "2 pairs of names join to 'a-b-c'" in complaint(write(tmp_path, changed(change)))


@pytest.mark.parametrize("method", ["ties", "tsv_m", "individual"])
def test_an_entry_of_any_method_may_read_difference_vectors(method: str, tmp_path: Path) -> None:
    entry = {"method": method, "reads": "differences/from_average"}

    def change(content: Content) -> None:
        content["decompose"]["rank_fraction"] = 0.1  # these factors are not read: those of differences are made anew
        content["studies"]["rank"]["fractions"] = []
        del content["methods"]["tsv_m"]
        content["methods"]["of_differences"] = entry

    params = load_params(write(tmp_path, changed(change)))
    assert declared(params.methods, "of_differences", "methods").difference == "from_average"


@pytest.mark.parametrize(("method", "side"), [("drm_h", "rows"), ("drm_v", "columns"), ("knots", "rows")])
def test_a_method_that_starts_with_a_joint_decomposition_may_read_one(method: str, side: str, tmp_path: Path) -> None:
    params = load_params(write(tmp_path, changed(lambda c: read_joint(c, method, side, scaling=0.5))))
    assert declared(params.methods, "entry", "methods").named("joints") == "x"
    assert declared(params.methods, "entry", "methods").difference is None
    assert declared(params.joints, "x", "joints").side == side
    with pytest.raises(InputError, match=r'no "xs" under joints in params\.yaml; did you mean "x"'):
        declared(params.joints, "xs", "joints")


def test_a_task_may_be_called_base(tmp_path: Path) -> None:
    path = write(tmp_path, changed(lambda c: c["tasks"].update(base=c["tasks"]["digits"])))
    assert "base" in load_params(path).tasks


@pytest.mark.parametrize("source", ["data/checkpoints", "./data/checkpoints/"])
def test_the_folder_of_the_tasks_own_models_is_their_mean(source: str, tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["base"]["source"] = source
        content["studies"]["tasks"]["methods"] = {}

    assert load_params(write(tmp_path, changed(change))).base.is_mean
    assert not load_params(write(tmp_path, GOOD)).base.is_mean


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected a mapping"),
        ("- digits\n", "expected a mapping"),
        ("just words", "expected a mapping"),
        ("seed: 0\nbase: [1\nmore: 2\n", "line 3: "),
        ("seed: 0\nmethods:\n  a: {}\n  a: {}\n", 'line 4: found duplicate key "a"'),
        ("tasks: !!python/object:os.system {}\n", "line 1: could not determine a constructor"),
        ("seed: *nowhere\n", "line 1: found undefined alias"),
        ("seed: 0\n---\nseed: 1\n", "line 2: another document; write each into a separate file"),
        ("seed: \x00", "not YAML"),
        (
            "seed: 0\nmethods:\n\ta: {}\n",
            "line 3: found character that cannot start any token; indent with spaces, not tabs",
        ),
    ],
)
def test_what_is_no_mapping_in_yaml_is_refused_by_its_line(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    said = complaint(path)
    assert said.startswith(str(path))
    assert what in said


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "params.yaml") == f"{tmp_path / 'params.yaml'}: no such file"


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"seed: \xff\xfe")
    assert "not UTF-8 text" in complaint(tmp_path / "params.yaml")


def test_all_mistakes_come_in_one_message(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["seed"] = "zero"
        content["tasks"]["../x"] = {}
        del content["base"]["family"]

    said = complaint(write(tmp_path, changed(change)))
    assert all(place in said for place in ("seed: ", "tasks.../x: ", "base.family: "))


def test_all_mistakes_of_all_methods_come_in_one_message(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["methods"]["ties_20"]["density"] = 2
        content["methods"]["tsv_m"]["reads"] = "deltas"
        content["methods"]["new"] = {"method": "nothing_like_it", "reads": "svd"}

    said = complaint(write(tmp_path, changed(change)))
    assert all(place in said for place in ("methods.ties_20.density: ", "methods.tsv_m.reads: ", "methods.new: "))


def test_an_exponent_is_a_number_as_dvc_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.write_text(path.read_text().replace("density: 0.2", "density: 2e-1"))
    assert declared(load_params(path).methods, "ties_20", "methods").values == {"density": 0.2}


def test_an_undeclared_name_gets_the_nearest_one(tmp_path: Path) -> None:
    params = load_params(write(tmp_path, GOOD))
    with pytest.raises(InputError, match=r'no "digit" under tasks in params\.yaml; did you mean "digits"'):
        declared(params.tasks, "digit", "tasks")
    with pytest.raises(InputError, match=r'no "ties" under methods in params\.yaml; did you mean "ties_20"'):
        declared(params.methods, "ties", "methods")


def test_a_part_per_task_is_no_model_of_unseen_tasks(tmp_path: Path) -> None:
    entry = {"method": "emr", "reads": "deltas", "unseen": True}
    content = changed(lambda c: c["studies"]["tasks"]["methods"].update(emr=entry))
    with pytest.raises(InputError, match=re.escape("studies.tasks.methods.emr.unseen: emr keeps a part per task")):
        load_params(write(tmp_path, content))


def searching(**search: Any) -> Content:
    """Let an entry take what a search chose."""
    content = changed(lambda c: c.update(validation={"split": "validation"}))
    content["searches"] = {"grid": {"method": "ties", "of": "deltas", **search}}
    content["methods"]["tuned"] = {"method": "ties", "reads": "searches/grid"}
    return content


@pytest.mark.parametrize(
    ("search", "entry", "said"),
    [
        ({"of": "svd"}, {}, "searches.grid.of: ties reads deltas"),
        ({"method": "drm_h", "of": "joints/rows"}, {}, "searches.grid.of: expected deltas, svd or differences/NAME"),
        ({"method": "tise"}, {}, 'did you mean "ties"?'),
        ({"method": "nan"}, {}, "searches.grid.over: missing, and nan has neither scaling nor density"),
        ({"over": {"densty": [0.1]}}, {}, 'searches.grid.densty: ties has no such parameter; did you mean "density"?'),
        ({"over": {"density": [0.1, 2.0]}}, {}, "searches.grid.density: "),
        ({"over": {"density": []}}, {}, "searches.grid.over.density: there are no values"),
        ({"over": {"density": [0.1]}, "density": 0.2}, {}, "searches.grid.density: is under over too"),
        ({"method": "tsv_m", "of": "svd", "over": {"rank_fraction": [0.2, 0.5]}}, {"method": "tsv_m"}, "is 0.3; raise"),
        ({"evolve": {}, "over": {"density": [0.1]}}, {}, "searches.grid.over: evolve searches coefficients alone"),
        (
            {"evolve": {"generation": 1}},
            {},
            "searches.grid.evolve.generation: unknown key",
        ),
        ({"evolve": {}, "method": "emr"}, {"method": "emr"}, "searches.grid.evolve: emr takes no coefficients"),
        ({"grid": "paper", "over": {"scaling": [1.0]}}, {}, "searches.grid.over: grid: paper names the values already"),
        ({"grid": "paper", "evolve": {}}, {}, "searches.grid.grid: evolve searches coefficients alone"),
        (
            {"grid": "paper", "method": "star"},
            {"method": "star"},
            "searches.grid.grid: no grid of star's paper is known",
        ),
        ({}, {"reads": "searches/grd"}, "no 'grd' under searches, there are grid"),
        ({}, {"method": "average"}, "searches/grid searches parameters of ties"),
        ({}, {"density": 0.2}, "searches/grid sets all parameters, so density is not allowed here"),
    ],
)
def test_a_wrong_search_or_its_reader_is_refused(tmp_path: Path, search: Content, entry: Content, said: str) -> None:
    content = searching(**search)
    content["methods"]["tuned"].update(entry)
    with pytest.raises(InputError, match=re.escape(said)):
        load_params(write(tmp_path, content))


def test_a_search_searches_scaling_and_density_by_itself(tmp_path: Path) -> None:
    params = load_params(write(tmp_path, searching()))
    assert len(search_candidates(params.searches["grid"])) == 45
    assert len(search_candidates(params.searches["grid"].model_copy(update={"method": "iso_c"}))) == 15


def test_a_search_takes_the_grid_of_its_methods_paper_where_it_says_so(tmp_path: Path) -> None:
    search = load_params(write(tmp_path, searching())).searches["grid"].model_copy(update={"grid": "paper"})
    tried = {name: search_candidates(search.model_copy(update={"method": name})) for name in ("tsv_m", "drm_h", "sftm")}
    assert [one["scaling"] for one in tried["tsv_m"]] == [tenths / 10 for tenths in range(31)]
    assert tried["drm_h"][0] == {"scaling": 0.8, "density": 0.1}
    assert tried["drm_h"][-1] == {"scaling": 1.5, "density": 1.0}
    assert {name: len(found) for name, found in tried.items()} == {"tsv_m": 31, "drm_h": 8 * 10, "sftm": 8 * 9}


def test_only_what_changes_no_other_tasks_model_is_chosen_by_task(tmp_path: Path) -> None:
    search = load_params(write(tmp_path, searching())).searches["grid"].model_copy(update={"grid": "paper"})
    own = {name: own_of(search.model_copy(update={"method": name})) for name in ("tall_mask", "consensus", "ties")}
    assert own == {"tall_mask": ["tall_lambda"], "consensus": [], "ties": []}
    written = search.model_copy(update={"method": "tall_mask", "over": {"tall_lambda": [0.3]}})
    assert own_of(written) == []


def test_every_papers_grid_is_of_its_methods_parameters() -> None:
    methods = [registry.get(name) for name in registry.names()]
    assert {"tsv_m", "drm_h", "drm_v", "sftm"} <= {method.name for method in methods if method.searched}
    for method in methods:
        for values in value_combinations(method.searched or {}):
            method.validate(method.name, values)
