"""A source is a class of pointers and a branch: here files at a web address, by their digest."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from merganser.hashes import sha256_of
from tests.chapters import Copy
from tests.small_models import write_models

POINTER = '''class WebPointer(BaseModel):
    """Names an archive of a model or a data set at a web address, by its digest."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    web: Annotated[str, Field(pattern=r"^https?://")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


'''
BRANCH = """    if isinstance(pointer, WebPointer):
        return downloaded(pointer, source)
"""
DOWNLOAD = '''def downloaded(pointer: WebPointer, source: Path) -> Path:
    """Download and unpack an archive; refuse other bytes than its digest."""
    folder, archive = hub_cache() / "web" / pointer.sha256, hub_cache() / f"{pointer.sha256}.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with urlopen(pointer.web) as answer, archive.open("wb") as file:
        shutil.copyfileobj(answer, file)
    if sha256_of(archive) != pointer.sha256:
        raise InputError(f"{source}: sha256: {pointer.web} has {sha256_of(archive)}; correct it")
    shutil.unpack_archive(archive, folder)
    return folder


'''
FETCH = """
from merganser.errors import InputError
from merganser.checkpoints.companions import model_origin
from merganser.tasks.fetch import fetch_model
from pathlib import Path

fetch_model(Path("base.yaml"), Path("fetched"))
found = model_origin(Path("fetched"))
print(found.name, found.kind)
try:
    fetch_model(Path("other.yaml"), Path("other"))
except InputError as error:
    print(error)
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve an archive of a model; give its address."""
    write_models(tmp_path / "models", tasks=0)
    shutil.make_archive(str(tmp_path / "served/base"), "zip", tmp_path / "models/base")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/base.zip"
        server.shutdown()


def test_a_source_is_a_class_and_a_branch(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointers, fetching = "merganser/sources/pointers.py", "merganser/sources/fetching.py"
    copy = Copy(tmp_path / "code", "Add a source")
    copy.insert(pointers, POINTER, "# Of each the first")
    copy.insert(pointers, "WebPointer | ", "HubPointer | OpenClipPointer")
    copy.insert(fetching, BRANCH, "    assert pointer is None")
    copy.insert(fetching, DOWNLOAD, "def write_source_description")
    copy.insert(fetching, "    WebPointer,\n", "    pinned,\n")
    copy.insert(fetching, "from urllib.request import urlopen\n", "from pathlib import Path")
    copy.insert(fetching, "from merganser.sources.guarded import hub_cache\n", "from merganser.sources.hub import")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    said = {"web": address, "sha256": sha256_of(tmp_path / "served/base.zip")}
    for name, changes in {"base": {}, "other": {"sha256": "0" * 64}}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(said | changes))
    done = copy.run("-c", FETCH, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    fetched = tmp_path / "fetched"
    assert sha256_of(fetched / "model.safetensors") == sha256_of(tmp_path / "models/base/model.safetensors")
    assert json.loads((fetched / "source.json").read_text()).items() >= {"kind": "web", **said}.items()
    assert done.stdout.splitlines() == [
        f"{address} web",
        f"other.yaml: sha256: {address} has {said['sha256']}; correct it",
    ]
    assert not (tmp_path / "other").exists()
