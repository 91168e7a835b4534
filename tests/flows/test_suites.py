"""Ready comparisons: listed, and put in place of params.yaml without losing what somebody wrote."""

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx
import pytest
import yaml
from dvc.repo import Repo
from dvc.stage import Stage

from dvcfleet.repository import opened
from merganser import registry
from merganser.config.inputs import SECTIONS
from merganser.config.loading import load_params
from merganser.config.params import Params
from merganser.config.published import Published, parse_published, published_mistakes, read_published, stands_beside
from merganser.errors import InputError
from merganser.flows.commands import cli
from merganser.flows.suites.check import validate_suite
from merganser.flows.suites.files import (
    GRIDS,
    POINTERS,
    SUITES,
    TABLES,
    WIDTH,
    params_text,
    pointers,
    read_suite,
    suite_names,
    suite_params,
)
from merganser.flows.suites.published import figures_of, suites_with_figures
from merganser.flows.suites.ready import (
    EXAMPLES,
    IGNORED,
    SuiteListing,
    ignore_unused_examples,
    list_suites,
    load_suite,
    sources_of,
    use,
)
from merganser.limits import parse_yaml, read_yaml
from merganser.sources.pointers import pointer_of, read_pointer
from tests.tiny import ROOT

TINY = (ROOT / "tests/tiny/params.yaml").read_text()
OTHER = TINY.replace("seed: 0", "seed: 1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of git and DVC with two suites, the first in use."""
    for name, text in (("one", TINY), ("two", OTHER)):
        (tmp_path / "suites").mkdir(exist_ok=True)
        (tmp_path / f"suites/{name}.yaml").write_text(text)
    (tmp_path / "params.yaml").write_text(TINY)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    Repo.init(str(tmp_path)).close()
    return tmp_path


def commit(root: Path) -> None:
    git = ["git", "-C", str(root), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "params.yaml"], check=True)
    subprocess.run([*git, "commit", "-qm", "params"], check=True)


@cache
def loaded(name: str) -> tuple[Params, ...]:
    """Return the comparison that one of the project's own suites is, and its grids if it has any."""
    return tuple(
        load_suite(ROOT, name, grids=grids) for grids in (False, True)[: 1 + (GRIDS in read_suite(ROOT, name))]
    )


def used(name: str, text: str) -> str:
    """Return what a suite that is written as a params.yaml is put in place as."""
    return f"# From suites/{name}.yaml, by `merganser use {name}`: docs/params.md.\n\n{text}"


def listed(root: Path, name: str) -> SuiteListing:
    """Return a suite as the list of all has it."""
    return next(suite for suite in list_suites(root) if suite.name == name)


def test_suites_are_listed_with_family_tasks_and_entries(root: Path) -> None:
    assert suite_names(root) == ["one", "two"]
    assert {suite.name: suite.in_use for suite in list_suites(root)} == {"one": True, "two": False}
    assert listed(root, "two").family == "open_clip"
    assert listed(root, "two").tasks == ("dark", "light")
    assert listed(root, "two").entries == tuple(yaml.safe_load(OTHER)["methods"])


def test_a_broken_suite_is_listed_with_its_mistake_and_not_put_in_place(root: Path) -> None:
    (root / "suites/two.yaml").write_text(OTHER.replace("seed: 1", "seed: one"))
    assert "seed: " in listed(root, "two").mistake
    for text, mistake in (("seed: one", "seed: "), ("density: 5.0", r"methods\.ties\.density")):
        (root / "suites/two.yaml").write_text(OTHER.replace("density: 0.5" if "density" in text else "seed: 1", text))
        with pytest.raises(InputError, match=mistake):
            use(root, "two")
        assert (root / "params.yaml").read_text() == TINY


def test_a_suite_is_put_in_place_of_another_and_back(root: Path) -> None:
    use(root, "two")
    assert (root / "params.yaml").read_text() == used("two", OTHER)
    use(root, "one")
    assert (root / "params.yaml").read_text() == used("one", TINY)


def test_what_a_suite_leaves_out_is_written_into_the_file_in_use_which_stays_the_suites(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "suites/two.yaml").write_text(OTHER.replace("seed: 1\n", "").replace(", reads: svd", ""))
    use(root, "two")
    assert (
        "params.yaml: added the values that suites/two.yaml leaves out: seed, studies.tasks.methods.tsv_c"
        in capsys.readouterr().err
    )
    assert yaml.safe_load((root / "params.yaml").read_text()) == yaml.safe_load(TINY)
    assert "seed" not in (root / "suites/two.yaml").read_text()
    assert listed(root, "two").in_use
    use(root, "one")
    assert (root / "params.yaml").read_text() == used("one", TINY)


def test_a_missing_params_yaml_is_put_in_place(root: Path) -> None:
    (root / "params.yaml").unlink()
    use(root, "two")
    assert (root / "params.yaml").read_text() == used("two", OTHER)


def test_changes_that_are_in_no_commit_are_kept_until_forced(root: Path) -> None:
    own = TINY.replace("seed: 0", "seed: 7")
    commit(root)
    (root / "params.yaml").write_text(own)
    with pytest.raises(InputError, match=r"in no commit; commit it or copy it"):
        use(root, "two")
    assert (root / "params.yaml").read_text() == own
    use(root, "two", force=True)
    assert (root / "params.yaml").read_text() == used("two", OTHER)


def test_changes_that_are_committed_are_replaced(root: Path) -> None:
    (root / "params.yaml").write_text(TINY.replace("seed: 0", "seed: 7"))
    with pytest.raises(InputError, match=r"in no commit"):
        use(root, "two")
    commit(root)
    use(root, "two")
    assert (root / "params.yaml").read_text() == used("two", OTHER)


def test_a_copy_of_params_yaml_is_a_suite_whose_first_line_is_not_doubled(root: Path) -> None:
    use(root, "two")
    own = (root / "params.yaml").read_text().replace("seed: 1", "seed: 7 # mine")
    (root / "params.yaml").write_text(own)
    (root / "suites/mine.yaml").write_text(own)
    use(root, "one")
    use(root, "mine")
    assert (root / "params.yaml").read_text() == used("mine", OTHER.replace("seed: 1", "seed: 7 # mine"))


def test_a_suite_is_one_file_that_takes_of_others_and_says_what_it_changes(root: Path) -> None:
    (root / "suites/mine.yaml").write_text("""
about: {title: Mine, download: none, gpu: "no"}
extends: one
methods: [regmean, ties: {density: 0.25}, emr: {method: emr, reads: deltas}]
evaluation: {batch_size: 7}
studies: null
grids: {methods: {base: {method: base, reads: deltas}, individual: {method: individual, reads: deltas}}}
""")
    use(root, "mine")
    tiny, found = yaml.safe_load(TINY), yaml.safe_load((root / "params.yaml").read_text())
    assert list(found["methods"]) == ["regmean", "ties", "emr"]
    assert found["statistics"] == {"gram": tiny["statistics"]["gram"]}
    assert found["methods"]["ties"] == tiny["methods"]["ties"] | {"density": 0.25}
    assert found["evaluation"] == tiny["evaluation"] | {"batch_size": 7}
    assert found["tasks"] == tiny["tasks"]
    assert not {"studies", "joints", "learned", "about", "extends"} & found.keys()
    assert listed(root, "mine").title == "Mine"
    use(root, "mine", grids=True)
    assert list(load_params(root / "params.yaml").methods) == ["base", "individual"]
    with pytest.raises(InputError, match=r"suites/one\.yaml has no grids"):
        use(root, "one", grids=True)


def test_grids_that_list_their_entries_have_only_the_searches_that_these_read(root: Path) -> None:
    (root / "suites/mine.yaml").write_text("""
extends: one
grids:
  searches: {a: {method: task_arithmetic, of: deltas}, b: {method: ties, of: deltas}}
  methods: {a: {method: task_arithmetic, reads: searches/a}, b: {method: ties, reads: searches/b}}
""")
    (root / "suites/fewer.yaml").write_text("extends: mine\ngrids: {methods: [b]}\n")
    use(root, "fewer", grids=True)
    params = load_params(root / "params.yaml")
    assert (list(params.methods), list(params.searches)) == (["b"], ["b"])


def test_a_params_yaml_that_extends_a_suite_is_told_where_that_is_completed(root: Path) -> None:
    (root / "params.yaml").write_text("extends: one\nseed: 3\n")
    with pytest.raises(InputError, match=r"params\.yaml: extends: .*suites/NAME\.yaml.*`merganser use NAME`"):
        load_params(root / "params.yaml")
    (root / "params.yaml").rename(root / "suites/mine.yaml")
    use(root, "mine")
    assert load_params(root / "params.yaml").seed == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: onee", "no suite or table is called 'onee'; did you mean \"one\""),
        ("extends: mine", "extends itself"),
        (
            "extends: one\nmethods: [ties, tise]",
            "mine.yaml: methods: there is no 'tise' to take; did you mean \"ties\"",
        ),
        ("[one]", "expected a mapping"),
        ("extends: [[one]]", "no suite or table is called ['one']"),
        ("extends: one\nmethods: [[ties]]", "mine.yaml: methods: expected names, or a name: {what it changes}"),
        ("extends: one\nmethods: [ties: ]\nstatistics: 5", "statistics: expected a mapping"),
        ("methods: [ties]", "base: missing"),
        ("extends: one\nabout: {title: Mine}", "about.download: missing"),
        ("extends: one\nabout: true", "about: expected a mapping, got True"),
        ("extends: one\ndensity: 0.2", "mine.yaml: density: unknown key"),
    ],
)
def test_a_mistake_in_what_a_suite_takes_is_named(root: Path, text: str, message: str) -> None:
    (root / "suites/mine.yaml").write_text(text)
    assert message in listed(root, "mine").mistake


HARD = {
    "words": [
        "no",
        "yes",
        "null",
        "True",
        "0",
        "1e5",
        "it's",
        "dahlia?",
        "a: b",
        "a, b",
        "# c",
        "",
        " x",
        "-",
        "ü",
        "l\n2",
    ],
    "numbers": [1e-05, 1e16, -3, 0.1, float("inf"), True, None],
    "empty": {"a": {}, "b": []},
    "long": {"list": [f"{number} of many, with a comma" for number in range(50)], "text": "word " * 60},
    "no": {"0": {"yes": {}}},
}


def test_what_is_written_reads_back_as_it_was() -> None:
    assert parse_yaml(params_text(HARD), "") == HARD
    assert max(map(len, params_text({"long": HARD["long"]["list"]}).splitlines())) <= WIDTH


TABLE = """
models/far:
  base: {hub: org/base, follow: main}
  dark: {hub: org/dark, name: [a, b], follow: main} # of two
"""


def test_the_pointer_files_of_a_suite_are_written_and_then_left_as_they_are(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / TABLES).mkdir()
    (root / POINTERS).write_text(TABLE)
    base, dark = (root / "models/far" / file for file in ("base.yaml", "dark.yaml"))
    change = {"base": {"source": "models/far/base.yaml"}, "tasks": {"dark": {"source": "models/far/dark.yaml"}}}
    (root / "suites/far.yaml").write_text(yaml.safe_dump({"extends": "one", **change}))
    use(root, "far")
    assert base.read_text() == "hub: org/base\nfollow: main\n"
    assert read_pointer(dark) == pointer_of({"hub": "org/dark", "name": ["a", "b"], "follow": "main"}, dark)
    base.write_text(f"hub: org/base\nfollow: main\nrevision: {'a' * 40} # by a run\n")
    dark.write_text("hub: own/dark\nfollow: main\n")
    capsys.readouterr()
    use(root, "far", force=True)
    assert "by a run" in base.read_text()
    assert "own/dark" in dark.read_text()
    assert (
        capsys.readouterr().err == "models/far/dark.yaml: kept, although it differs from suites/tables/pointers.yaml\n"
    )


PAPER = """
paper: "Author et al., A method, 2025"
each:
  protocol: accuracy
  checkpoints: others
  decimals: 1
  parameters: {average: {}, base: {}}
  notes: {average: "on other splits"}
tables:
  - {table: Table 1, columns: [mean], rows: {one: {average: [70.0]}, far: {average: [60.0], base: [50.0]}}}
  - {table: Table 2, columns: [dark], decimals: 2, notes: {average: tuned}, rows: {far: {average: [55.55]}}}
  - {table: Table 3, columns: [mean], rows: {one: {average: [71.0]}}}
"""


def test_what_papers_report_of_a_suite_is_written_where_it_names_it_and_then_left_as_it_is(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "published").mkdir()
    (root / "published/author.yaml").write_text(PAPER)
    file = Path("suites/far/published.yaml")
    (root / "suites/far.yaml").write_text(yaml.safe_dump({"extends": "one", "published": {"source": str(file)}}))
    params = use(root, "far")
    published = read_published(root / file)
    assert published.tasks == list(params.tasks)
    common = {"paper": "Author et al., A method, 2025", "protocol": "accuracy", "checkpoints": "others"}
    parameters, notes = {"average": {}, "base": {}}, {"average": "on other splits"}
    one, two = (table.model_dump() for table in published.tables)
    rows = {"average": [60.0], "base": [50.0]}
    assert one == common | {"table": "Table 1", "decimals": 1, "columns": ["mean"], "rows": rows} | {
        "parameters": parameters,
        "notes": notes,
    }
    assert two == common | {"table": "Table 2", "decimals": 2, "columns": ["dark"], "rows": {"average": [55.55]}} | {
        "parameters": {"average": {}},
        "notes": {"average": "tuned"},
    }
    use(root, "far", force=True)
    assert "kept, although it differs" not in capsys.readouterr().err
    (root / file).write_text((root / file).read_text().replace("60.0", "61.0"))
    use(root, "far", force=True)
    assert capsys.readouterr().err == f"{file}: kept, although it differs from published; remove it to get that one\n"
    assert read_published(root / file).tables[0].rows["average"] == [61.0]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("paper:", "papers:", "author.yaml: paper: missing"),
        ("base: {}}", "bose: {}}", 'author.yaml: each.parameters.bose: not in rows; did you mean "base"?'),
        ("{average: tuned}", "{base: tuned}", "author.yaml: tables.1.notes.base: not in rows"),
        ("rows: {one: {average: [71.0]}}", "rows: [1]", "author.yaml: tables.2.rows: expected a mapping"),
        (
            "rows: {one: {average: [71.0]}}",
            "rows: {one: [1]}",
            "author.yaml: tables.2.rows.one: expected a mapping",
        ),
    ],
)
def test_a_broken_file_of_a_paper_is_refused_by_name(root: Path, old: str, new: str, reason: str) -> None:
    (root / "published").mkdir()
    (root / "published/author.yaml").write_text(PAPER.replace(old, new))
    (root / "suites/far.yaml").write_text(
        yaml.safe_dump({"extends": "one", "published": {"source": "suites/far/published.yaml"}})
    )
    before = (root / "params.yaml").read_text()
    with pytest.raises(InputError, match=re.escape(reason)):
        use(root, "far")
    assert (root / "params.yaml").read_text() == before


def test_every_suite_that_papers_report_of_names_its_file() -> None:
    for name in PUBLISHED:
        published = loaded(name)[0].published
        assert published is not None, name
        assert published.source == f"suites/{name}/published.yaml", name


def test_dvc_ignores_the_examples_that_are_not_read(root: Path) -> None:
    for name in ("one", "two"):
        (root / "examples" / name).mkdir(parents=True)
        (root / "examples" / name / "dvc.yaml").write_text("stages: {made: {cmd: 'true', outs: [x]}}\n")
    (root / "suites/two.yaml").write_text(OTHER.replace("hub/dark", "examples/two/hub/dark"))
    use(root, "two")
    with Repo(str(root)) as repo:
        assert [Path(stage.path).parent.name for stage in repo.index.stages] == ["two"]


# Made out of clip-vit-b-32-20, larger than -8, or with the sections of another.
LIKE_ANOTHER = re.compile(
    r"(open-)?clip-vit-(b-16|l-14)-.*|.*-(14|20)|roberta-.*|flan-t5-base-glue|t5-.*|mergebench-.*"
)
EACH_SHAPE = [
    pytest.param(name, marks=[pytest.mark.drill] if LIKE_ANOTHER.fullmatch(name) else []) for name in suite_names(ROOT)
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the project that DVC and suites read, in a repository of DVC."""
    root = tmp_path_factory.mktemp("clone")
    for part in ("examples", "published", "suites"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("hub", "datasets", "dvc.lock"))
    shutil.copy(ROOT / "dvc.yaml", root)
    Repo.init(str(root), no_scm=True).close()
    return root


@pytest.mark.parametrize("name", EACH_SHAPE)
def test_dvc_knows_no_stage_that_the_suite_in_use_does_not_read(name: str, clone: Path) -> None:
    use(clone, name, force=True)
    with opened(clone) as repo:
        if (
            f"{EXAMPLES}/" not in (clone / "params.yaml").read_text()
        ):  # then DVC need not read the stages: it knows ours
            found = [path for path in repo.dvcignore.find(repo.fs, str(clone)) if Path(path).name == "dvc.yaml"]
            assert found == [str(clone / "dvc.yaml")]
            return
        own, others = set[Stage](), set[Stage]()
        for stage in repo.index.stages:
            (own if Path(stage.path) == clone / "dvc.yaml" else others).add(stage)
        assert others
        read = networkx.multi_source_dijkstra_path_length(repo.index.graph, own).keys()
        held_out = read_yaml(clone / "params.yaml").get("unseen", {})  # have data, and no model is read
        own_tasks = read_yaml(clone / f"suites/{name}.yaml").get("tasks", {})
        left_out = [task for task, about in own_tasks.items() if about is None and task not in held_out]
        unread = {f"finetune@{task}" for task in (*held_out, *left_out)} | {f"data@{task}" for task in left_out}
        assert {str(stage.name) for stage in others - read} == unread


def test_dvc_ignores_what_the_projects_own_params_yaml_does_not_read(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("hub", "datasets"))
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before = (tmp_path / IGNORED).read_bytes()
    ignore_unused_examples(tmp_path)
    assert (tmp_path / IGNORED).read_bytes() == before


def test_an_unknown_suite_is_refused_with_the_nearest_name(root: Path) -> None:
    with pytest.raises(InputError, match=r"no suite is called 'tow'; did you mean \"two\"\?; there are one, two"):
        use(root, "tow")


def test_the_command_line_lists_and_uses_suites_from_a_folder_inside(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root / "suites")
    for arguments in (["use", "two"], ["suites"], ["suites", "--json"]):
        monkeypatch.setattr(sys, "argv", ["merganser", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 0
    said = capsys.readouterr().out
    assert "params.yaml is that of suites/two.yaml: open_clip, 2 tasks, 7 entries" in said
    assert [row["in_use"] for row in json.loads(said[said.index("[") :])] == [False, True]


def test_outside_a_repository_the_packages_suites_are_checked_and_none_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, words in ((0, ["suites", "check", "image", "--offline"]), (2, ["use", "image"])):
        monkeypatch.setattr(sys, "argv", ["merganser", *words, "--repo", str(tmp_path)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == code


@pytest.mark.parametrize("name", EACH_SHAPE)
def test_every_suite_is_valid_and_says_what_it_is(name: str) -> None:
    found = validate_suite(ROOT, name)
    assert found.mistakes == found.notes == ()


def test_the_tables_have_nothing_that_no_suite_takes() -> None:
    taken, named = dict[str, set[str]](), set[Path]()
    for name in suite_names(ROOT):
        for params, where in zip(loaded(name), ("", f"{GRIDS}."), strict=False):
            for section in ("tasks", "methods", *SECTIONS):
                taken.setdefault(where + section, set()).update(getattr(params, section))
            named |= set(sources_of(params))
    for table in (ROOT / TABLES).glob("*.yaml"):
        content = read_yaml(table)
        if table != ROOT / POINTERS:
            inner = {f"{GRIDS}.{section}": each for section, each in content.get(GRIDS, {}).items()}
            for section, each in {**content, **inner}.items():
                unused = set(each) - taken[section] if section in taken and isinstance(each, dict) else set()
                assert unused == set(), (table.name, section)
    assert set(pointers(ROOT)) - named == set()
    extended = [read_yaml(path).get("extends", []) for path in (ROOT / SUITES).rglob("*.yaml")]
    words = {each for names in extended for each in ([names] if isinstance(names, str) else names)}
    assert {path.stem for path in (ROOT / TABLES).glob("*.yaml")} - {POINTERS.stem} <= words


def test_every_pointer_file_that_a_suite_names_is_in_the_table_and_well_formed() -> None:
    table = pointers(ROOT)
    for name in suite_names(ROOT):
        named = sources_of(loaded(name)[0])
        assert {path for path in named if path.suffix == ".yaml"} <= set(table), name
    assert all(pointer_of(each, path) for path, each in table.items())


# public lists of each data set: classes, and prompts
PUBLIC = {
    **{"sun397": (397, 2), "cars": (196, 8), "resisc45": (45, 18), "eurosat": (10, 3), "svhn": (10, 1)},
    **{"gtsrb": (43, 3), "mnist": (10, 1), "dtd": (47, 8), "flowers102": (102, 1), "pcam": (2, 1)},
    **{"fer2013": (7, 6), "pets": (37, 1), "stl10": (10, 2), "cifar100": (100, 18), "cifar10": (10, 18)},
    **{"food101": (101, 1), "fashion_mnist": (10, 2), "emnist_letters": (26, 1), "kmnist": (10, 1)},
    "rendered_sst2": (2, 1),
}


def test_the_clip_suites_have_as_many_classes_as_their_data_sets() -> None:
    params = loaded("clip-vit-b-32-20")[0]
    own = {name: task.data.values for name, task in params.tasks.items()}
    assert {name: (len(each["classes"]), len(each["templates"])) for name, each in own.items()} == PUBLIC


@pytest.mark.parametrize(
    "name", ["clip-vit-b-32-lora-8", "clip-vit-l-14-lora-8", "open-clip-vit-b-32-20", "open-clip-vit-b-16-14"]
)
def test_the_same_tasks_have_the_same_classes_and_prompts_in_all_suites(name: str) -> None:
    ours, found = loaded("clip-vit-b-32-20")[0].tasks, loaded(name)[0].tasks
    shared = [task for task in found if task in ours]
    assert len(shared) in (8, 14, 19)
    assert all(found[task].data.values == ours[task].data.values for task in shared)


def test_the_image_suite_is_in_place_from_the_start() -> None:
    here, suite = read_yaml(ROOT / "params.yaml"), suite_params(ROOT, "image")[0]
    assert here == suite
    for section in ("tasks", "methods"):
        assert list(here[section]) == list(suite[section])
    assert listed(ROOT, "image").in_use


@cache
def published_of(name: str) -> Published:
    """Return what papers report of a suite."""
    return parse_published(figures_of(ROOT, name, loaded(name)[0]), Path("suites") / name / "published.yaml")


ITS_OWN = {  # parameters that a published row of a method need not name: what it is called by says them
    **{name: {"averaging", "decomposition", "elect", "rank_fraction", "renormalise"} for name in ("drm_h", "drm_v")},
    **{name: {"decompose", "groups", "ratio", "scaled", "thresholds"} for name in ("dts_d", "dts_t")},
    "dts_unseen": {"ratio"},
    "emr": {"rescaler"},
    "iso_c": {"beta"},
    "regmean": {"scaling"},
    "sftm": {"solve", "superpose"},
    "svd": {"ratio"},
    "tsv_c": {"rank_fraction"},
    "tsv_m": {"orthogonalise", "rank_fraction", "whitening"},
}
NOT_READ = {  # by a method whose `inner` is this
    **{inner: {"density"} for inner in ("dare", "dare_ties")},
    "task_arithmetic": {"density", "drop_rate"},
    "ties": {"drop_rate"},
}
ON_MATRICES = {"dts_d", "dts_t", "dts_unseen", "iso_c", "iso_cts", "tsv_c", "tsv_m"}  # and a row names which these are
OTHER_MATRICES = {  # suites and methods where the paper counts others as matrices, which the report says
    *(("clip-vit-b-32-8", "sftm"), ("clip-vit-l-14-8", "sftm")),
    *((suite, method) for suite in ("gpt2-glue", "gpt2-glue-4", "roberta-base-glue") for method in ("dts_t", "dts_d")),
}


PUBLISHED = sorted(suites_with_figures(ROOT))
PAPERS = {  # as the list of what has no rows calls them: how `published` does, and how many tables each has
    "DRM": ("Decom-Renorm-Merge", 15),
    "SFTM": ("SFTM", 5),
    "TSV": ("Task Singular Vectors", 6),
    "DTS": ("(DTS)", 18),
    "survey of merging": (None, 1),
}


def test_what_a_row_need_not_name_are_parameters_of_its_method() -> None:
    for name, own in ITS_OWN.items():
        assert own <= registry.get(name).parameters.model_fields.keys(), name


def test_each_table_of_the_papers_has_rows_or_a_reason_why_not() -> None:
    others = table_under("## Published figures", (ROOT / "suites/README.md").read_text())
    assert all(reason for *_, reason in others)
    tables = [table for name in PUBLISHED for table in published_of(name).tables]
    for paper, (called, count) in PAPERS.items():
        with_rows = [table.table for table in tables if called and called in table.paper and table.rows]
        without = [numbers for name, numbers, _ in others if name == paper]
        found = set[int]().union(*map(numbers_of, [*with_rows, *without]))
        assert found == set(range(1, count + 1)), f"{paper}: {sorted(found ^ set(range(1, count + 1)))}"


def table_under(heading: str, page: str) -> list[tuple[str, str, str]]:
    """Return the rows of the table of three columns under a heading; a first cell that is empty is that above."""
    lines = [line for line in page.split(heading)[1].splitlines() if line.startswith("|")]
    name, found = "", []
    for line in lines[2:]:
        first, second, third = (cell.strip() for cell in line.strip("|").split("|"))
        name = first or name
        found.append((name, second, third))
    return found


def numbers_of(words: str) -> set[int]:
    """Return the tables that words name before a colon: `Tables 2 and 3`, `15 to 18: -task`."""
    named = re.findall(r"(\d+)(?: to (\d+))?", words.partition(":")[0])
    return {number for first, last in named for number in range(int(first), int(last or first) + 1)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_row_names_its_values_and_stands_beside_an_entry_that_has_them(name: str) -> None:
    comparisons = loaded(name)
    published = published_of(name)
    assert published_mistakes(published, *comparisons) == []
    for table in published.tables:
        for entry in table.rows:
            dialect = table.parameters.get(entry, {})
            beside = [
                (params, params.methods[entry])
                for params in comparisons
                if entry in params.methods and stands_beside(dialect, params.methods[entry].reads)
            ]
            assert beside, f"{table.table}: {entry} stands beside no entry"
            for params, ours in beside:
                method, search = registry.get(ours.method), params.searches.get(ours.named("searches") or "")
                tried = set(search.over) or {"scaling", "density", "drop_rate"} if search else set()
                values = {
                    "reads": ours.reads,
                    "matrices": params.parameters.matrices,
                    **method.validate(entry, search.values if search else ours.values),
                }
                chosen = {*method.parameters.model_fields, *(["matrices"] if method.name in ON_MATRICES else [])}
                silent = ITS_OWN.get(method.name, set()) | NOT_READ.get(values.get("inner"), set()) | {"coefficients"}
                unnamed = chosen - silent - dialect.keys() - tried
                assert not unnamed, f"{table.table}: {entry} does not say its {unnamed}"
                differing = {key for key, value in dialect.items() if value is not None and values[key] != value}
                otherwise = {"matrices"} if (name, method.name) in OTHER_MATRICES else set()
                assert differing == otherwise & dialect.keys(), f"{table.table}: {entry}"


def test_what_regmean_says_of_its_ratio_is_its_default_and_that_of_fusionbenchs_rows_of_clip() -> None:
    method = registry.get("regmean")
    ((paper, clip),) = re.findall(r"([\d.]+) in\s+the paper, .* takes ([\d.]+) for CLIP", method.function.__doc__ or "")
    rows = [
        table.parameters["regmean"]["ratio"]
        for name in PUBLISHED
        if name.startswith("clip-")
        for table in published_of(name).tables
        if table.paper.startswith("FusionBench") and "regmean" in table.rows
    ]
    assert method.parameters.model_fields["ratio"].default == float(paper)
    assert len(rows) >= 3
    assert set(rows) == {float(clip)}
