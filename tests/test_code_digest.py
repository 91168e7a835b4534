"""The digest of a module's code: what changes it, and what does not."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from merganser.code_digest import CLASSES, ROOT, CodeTree, code_digest, read_texts, texts_as_json
from merganser.errors import InputError
from merganser.plugins import parsed

SVD = '"""Decompose."""\n\nRANK = 2  # kept\n\n\ndef svd(a):\n    """Find it."""\n    return a, RANK\n'
LAZY = "def main():\n    if True:\n        from merganser.linalg import svd\n\n        svd.svd(1)\n"
TYPED = "if TYPE_CHECKING:\n    from merganser.linalg import svd\nelse:\n    import merganser.models.small\n"
FILES = {
    "merganser/__init__.py": "",
    "merganser/linalg/__init__.py": "from . import loops\n",
    "merganser/linalg/loops.py": "STEP = 1\n",
    "merganser/linalg/svd.py": SVD,
    "merganser/models/__init__.py": 'FAMILIES = {"small": "merganser.models.small"}\n',
    "merganser/models/small.py": "SIZE = 3\n",
    "merganser/report/__init__.py": "",
    "merganser/report/page.py": 'LOADER = PackageLoader("merganser.report", ".")\n',
    "merganser/report/page.css": "a { color: red }\n",
    "merganser/errors.py": "import merganser.linalg.svd\n",
    "merganser/tasks/__init__.py": "",
    "merganser/tasks/factor.py": "import merganser.linalg.svd\nimport torch\n\n\ndef main():\n    pass\n",
    "merganser/tasks/lazy.py": LAZY,
    "merganser/tasks/measure.py": "from merganser import models, errors\n",
    "merganser/tasks/report.py": "from merganser.report.page import LOADER\n",
    "merganser/tasks/typed.py": TYPED,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def listings(tree: Path) -> dict[str, str]:
    code = CodeTree(tree)
    return {name: code.listing(f"merganser.tasks.{name}") for name in ("factor", "lazy", "measure", "report", "typed")}


def changed(tree: Path, file: str, text: str) -> set[str]:
    """Name the stages whose digest changes with a file's content."""
    before = listings(tree)
    (tree / file).write_text(text)
    after = listings(tree)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    "text",
    [
        f"# a comment\n{SVD}",
        SVD.replace("# kept", "# all that is kept"),
        SVD.replace('"""Decompose."""', '"""Decompose it."""').replace('"""Find it."""', '"""Find all."""'),
        SVD.replace('    """Find it."""\n', ""),
        SVD.replace("return a, RANK", "return (\n        a,\n        RANK,\n    )"),
    ],
)
def test_comments_docstrings_and_formatting_change_no_digest(text: str, tree: Path) -> None:
    assert text != SVD
    assert changed(tree, "merganser/linalg/svd.py", text) == set()


@pytest.mark.parametrize("text", [SVD.replace("2", "3"), SVD.replace("a, RANK", "RANK, a"), f"{SVD}import os\n"])
def test_a_changed_constant_changes_the_digest_of_what_imports_it(text: str, tree: Path) -> None:
    assert changed(tree, "merganser/linalg/svd.py", text) == {"factor", "lazy"}


def test_the_packages_around_a_module_are_followed_and_what_they_import(tree: Path) -> None:
    assert changed(tree, "merganser/linalg/loops.py", "STEP = 2\n") == {"factor", "lazy"}
    assert changed(tree, "merganser/__init__.py", "import os\n") == {"factor", "lazy", "measure", "report", "typed"}


def test_a_module_named_in_a_string_counts_as_imported(tree: Path) -> None:
    assert changed(tree, "merganser/models/small.py", "SIZE = 4\n") == {"measure", "typed"}


def test_the_data_of_a_package_named_in_a_string_counts_as_bytes(tree: Path) -> None:
    assert changed(tree, "merganser/report/page.css", "a { color: red } /* links */\n") == {"report"}
    assert changed(tree, "merganser/report/new.css", "") == {"report"}
    (tree / "merganser/report/pages").mkdir()
    assert changed(tree, "merganser/report/pages/page.j2", "") == {"report"}
    (tree / "merganser/report/__pycache__").mkdir()
    assert changed(tree, "merganser/report/__pycache__/page.pyc", "") == set()


def test_modules_of_a_package_that_are_found_by_their_names_count_as_imported(tree: Path) -> None:
    assert changed(tree, "merganser/report/new.py", "SIZE = 1\n") == set()
    page = tree / "merganser/tasks/report.py"
    page.write_text(f'{page.read_text()}FOUND = "merganser.report.*"\n')
    assert changed(tree, "merganser/report/new.py", "SIZE = 2\n") == {"report"}
    assert changed(tree, "merganser/report/newer.py", "") == {"report"}


def test_imports_for_type_checkers_alone_are_not_followed(tree: Path) -> None:
    names = [module.name for module in CodeTree(tree).followed("merganser.tasks.typed")]
    assert names == [
        "merganser",
        "merganser.models",
        "merganser.models.small",
        "merganser.tasks",
        "merganser.tasks.typed",
    ]


def test_what_only_decides_what_is_accepted_is_left_out(tree: Path) -> None:
    assert changed(tree, "merganser/errors.py", "import os\n") == set()


def test_a_module_that_is_missing_or_no_python_is_named(tree: Path) -> None:
    with pytest.raises(InputError, match=r"^merganser\.tasks\.nothing: no such module in "):
        CodeTree(tree).listing("merganser.tasks.nothing")
    (tree / "merganser/linalg/svd.py").write_text("def svd(:\n")
    with pytest.raises(InputError, match=r"merganser/linalg/svd\.py: not Python: invalid syntax .*line 1"):
        CodeTree(tree).listing("merganser.tasks.factor")


def test_the_digest_for_fingerprints_is_of_this_installation() -> None:
    assert code_digest("merganser.linalg.svd") == code_digest("merganser.linalg.svd")
    assert code_digest("merganser.linalg.svd") != code_digest("merganser.linalg.joint")


def test_a_class_is_the_first_digest_of_its_line_and_unknown_code_is_its_own(tree: Path) -> None:
    name = "merganser.tasks.factor"
    digest = CodeTree(tree).digest(name)
    assert CodeTree(tree).code_class(name) == digest
    (tree / CLASSES).write_text(f"{name} first {digest}\n{name} second other\nmerganser.tasks.lazy {digest}\n")
    assert CodeTree(tree).digest(name) == digest  # the table is no data of the package
    assert CodeTree(tree).code_class(name) == "first"
    (tree / "merganser/linalg/svd.py").write_text(SVD.replace("2", "3"))
    assert CodeTree(tree).code_class(name) == CodeTree(tree).digest(name) != digest


def test_known_texts_are_not_parsed_and_give_the_same_digests(tree: Path) -> None:
    first = CodeTree(tree)
    whole = [first.listing(f"merganser.tasks.{name}") for name in ("factor", "lazy", "measure", "report", "typed")]
    (tree / "texts.json").write_text(texts_as_json(first.texts))
    again = CodeTree(tree, read_texts(tree / "texts.json"))
    assert [
        again.listing(f"merganser.tasks.{name}") for name in ("factor", "lazy", "measure", "report", "typed")
    ] == whole
    assert again.texts == first.texts
    (tree / "merganser/linalg/svd.py").write_text(SVD.replace("2", "3"))
    edited = CodeTree(tree, read_texts(tree / "texts.json"))
    unknown = CodeTree(tree)
    assert edited.listing("merganser.tasks.factor") == unknown.listing("merganser.tasks.factor") != whole[0]
    assert edited.texts == unknown.texts  # and nothing of what svd.py was
    assert len(edited.known) == len(first.texts) + 1


@pytest.mark.parametrize("content", ["", "[]", '{"key": {"digest": "", "imported": []}}'])
def test_broken_texts_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "texts.json").write_text(content)
    with pytest.raises(InputError, match=r"texts\.json: not written by the stage `code`"):
        read_texts(tmp_path / "texts.json")


def test_threads_parse_modules_at_once() -> None:
    """Python 3.11 fails where a thread parses while another has let go of the interpreter, as a collection may."""
    files = sorted((ROOT / "merganser").glob("[a-m]*/*.py"))[:60]
    threshold, callback = gc.get_threshold(), lambda *_: time.sleep(1e-5)
    gc.callbacks.append(callback)
    gc.set_threshold(200)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda file: parsed(file, file.read_bytes()), files))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
