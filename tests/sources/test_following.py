"""Pointers that follow a branch of a hub on this machine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from merganser.errors import InputError
from merganser.sources.fetching import fetch_checkpoint
from merganser.sources.following import HubAwayError, follow, look
from merganser.sources.pointers import HubPointer, read_pointer
from tests.hostile_hub import Answer, serve_hostile
from tests.hub import COMMIT, Hub, serve
from tests.tiny_clip import write_clip

NEXT = "fedcba9876543210fedcba9876543210fedcba98"
MODEL = "models/org/clip"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    write_clip(tmp_path / "repo", "open_clip_model.safetensors")
    (tmp_path / "rows/data").mkdir(parents=True)
    (tmp_path / "rows/data/test.parquet").write_bytes(b"rows")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve({MODEL: tmp_path / "repo", "datasets/org/rows": tmp_path / "rows"}, COMMIT) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def pointer(folder: Path, text: str) -> Path:
    path = folder / "pointer.yaml"
    path.write_text(text)
    return path


def move(hub: Hub, repository: str = MODEL) -> Path:
    """Let the branch move to a copy of what it holds; return the copy, to be changed."""
    old = hub.folders[repository]
    hub.earlier[repository, COMMIT] = old
    hub.folders[repository] = new = Path(shutil.copytree(old, old.with_name("moved")))
    hub.heads[repository] = NEXT
    return new


def test_a_branch_is_pinned_to_its_commit_and_the_rest_of_the_file_is_kept(tmp_path: Path, hub: Hub) -> None:
    path = pointer(tmp_path, "# ours\nhub: org/clip\nfollow: main  # the latest\n")
    assert follow(path, "model") == {"org/clip": COMMIT}
    assert path.read_text() == f"# ours\nhub: org/clip\nfollow: main  # the latest\nrevision: {COMMIT}\n"
    before = path.stat()
    assert follow(path, "model") == {}
    assert path.stat() == before


def test_a_branch_that_moved_to_other_weights_is_noticed_and_fetched(tmp_path: Path, hub: Hub) -> None:
    path = pointer(tmp_path, f"{{hub: org/clip, follow: main, revision: {COMMIT}}}\n")
    new = move(hub)
    shutil.rmtree(new)
    write_clip(new, "open_clip_model.safetensors", seed=1)
    assert follow(path, "model") == {"org/clip": NEXT}
    (tmp_path / "out").mkdir()
    fetch_checkpoint(path, tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (new / "open_clip_model.safetensors").read_bytes()


@pytest.mark.parametrize(("kind", "repository"), [("model", MODEL), ("dataset", "datasets/org/rows")])
def test_a_branch_that_moved_without_a_change_to_what_is_read_stays_where_it_is(
    tmp_path: Path, hub: Hub, kind: str, repository: str
) -> None:
    text = f"{{hub: {repository.split('/', 1)[1]}, follow: main, revision: {COMMIT}}}\n"
    path = pointer(tmp_path, text)
    new = move(hub, repository)
    (new / ("README.md" if kind == "model" else ".gitattributes")).write_text("more words")
    assert follow(path, kind) == {}
    assert path.read_text() == text


def test_a_data_set_whose_rows_changed_is_noticed(tmp_path: Path, hub: Hub) -> None:
    path = pointer(tmp_path, f"{{hub: org/rows, follow: main, revision: {COMMIT}}}\n")
    (move(hub, "datasets/org/rows") / "data/test.parquet").write_bytes(b"other rows")
    assert follow(path, "dataset") == {"org/rows": NEXT}


def test_of_a_data_set_whose_configurations_have_folders_one_is_measured_and_followed(tmp_path: Path, hub: Hub) -> None:
    folder = tmp_path / "glue"
    for name, size in {"cola/test.parquet": 300, "mnli/test.parquet": 5000, "README.md": 20}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    hub.folders["datasets/org/glue"] = folder
    path = pointer(tmp_path, f"{{hub: org/glue, name: cola, follow: main, revision: {COMMIT}}}\n")
    one = read_pointer(path)
    assert isinstance(one, HubPointer)
    assert look(path, one, "dataset").size == 320
    for names, size in ((["cola"], 320), (["cola", "mnli"], 5320), ("all", 5320), (None, 5320)):
        assert look(path, one.model_copy(update={"name": names}), "dataset").size == size
    (move(hub, "datasets/org/glue") / "mnli/test.parquet").write_bytes(b"other rows")
    assert follow(path, "dataset") == {}


def test_of_a_group_each_data_set_is_pinned_in_its_place(tmp_path: Path, hub: Hub) -> None:
    hub.folders["datasets/org/other"] = tmp_path / "rows"
    old = f"  other: {{hub: org/other, follow: main, revision: {COMMIT}}} # as it is\n"
    path = pointer(tmp_path, f"group:\n  rows: {{hub: org/rows, follow: main}}\n{old}")
    assert follow(path, "dataset") == {"org/rows": COMMIT}
    assert path.read_text() == f"group:\n  rows: {{hub: org/rows, follow: main, revision: {COMMIT}}}\n{old}"
    assert follow(path, "dataset") == {}


def test_a_rewritten_branch_is_followed(tmp_path: Path, hub: Hub) -> None:
    path = pointer(tmp_path, f"{{hub: org/clip, follow: main, revision: {'a' * 40}}}\n")
    assert follow(path, "model") == {"org/clip": COMMIT}


def test_a_pinned_pointer_asks_nobody(tmp_path: Path, hub: Hub) -> None:
    assert follow(pointer(tmp_path, f"{{hub: org/clip, revision: {COMMIT}}}\n"), "model") == {}
    assert hub.asked == []


def test_a_branch_that_the_hub_does_not_have_is_the_users_mistake(tmp_path: Path, hub: Hub) -> None:
    path = pointer(tmp_path, "{hub: org/clip, follow: other}\n")
    with pytest.raises(InputError, match=r"pointer\.yaml: the hub has no org/clip at revision other"):
        follow(path, "model")


def test_a_hub_that_is_away_leaves_the_pointer_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    text = f"{{hub: org/clip, follow: main, revision: {COMMIT}}}\n"
    with pytest.raises(HubAwayError, match="the hub does not answer"):
        follow(pointer(tmp_path, text), "model")
    assert (tmp_path / "pointer.yaml").read_text() == text


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            r"refuses org/clip \(401\): check the",
        ),
        (403, {}, r"refuses org/clip \(403\): check the"),
        (404, {"X-Error-Code": "RepoNotFound"}, "or does not show it to you; check the spelling, and that the"),
    ],
)
def test_a_token_that_the_hub_does_not_take_is_named_and_no_absence_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], said: str
) -> None:
    def refuse(answer: Answer) -> None:
        answer.status, answer.headers = status, headers

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    path = pointer(tmp_path, f"{{hub: org/clip, follow: main, revision: {COMMIT}}}\n")
    with serve_hostile({}, COMMIT, change=refuse) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_of_last_year")
        with pytest.raises(InputError, match=f"{said} token in HF_TOKEN"):
            follow(path, "model")
        monkeypatch.delenv("HF_TOKEN")
        (tmp_path / "token").write_text("hf_of_last_year")
        with pytest.raises(InputError, match=f"{said} token in {tmp_path / 'token'}"):
            follow(path, "model")


def test_a_pointer_without_a_revision_yet_is_refused_by_fetch(tmp_path: Path) -> None:
    path = pointer(tmp_path, "{hub: org/clip, follow: main}\n")
    with pytest.raises(InputError, match="follows main, and has no revision yet; `merganser run` writes it there"):
        fetch_checkpoint(path, tmp_path / "out")


@pytest.mark.parametrize(("changed", "noticed"), [("runs/best", True), (".", False)])
def test_of_a_repository_only_the_path_is_followed(tmp_path: Path, hub: Hub, changed: str, noticed: bool) -> None:
    write_clip(tmp_path / "repo/runs/best")
    path = pointer(tmp_path, f"{{hub: org/clip, follow: main, revision: {COMMIT}, path: runs/best}}\n")
    new = move(hub) / changed
    (new / "open_clip_config.json").write_text("{}")
    assert follow(path, "model") == ({"org/clip": NEXT} if noticed else {})
