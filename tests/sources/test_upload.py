"""A merge goes to a hub by the hub's own tool, as docs/checkpoints.md says."""

import os
import subprocess
import sys
from pathlib import Path

from tests.hub import Receiving, serve
from tests.merges import merge_checkpoints
from tests.small_models import write_models


def test_what_the_hubs_tool_uploads_is_the_merge(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", tasks=2)
    tasks = {name: path for name, path in models.items() if name != "base"}
    merge_checkpoints("average", {}, models["base"], tasks, tmp_path / "merged", device="cpu")
    repository = tmp_path / "hub/repository"
    repository.mkdir(parents=True)
    with serve({"models/org/one": repository}, handler=Receiving) as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_one", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
        upload = [str(Path(sys.executable).with_name("hf")), "upload", "org/one", "merged"]
        subprocess.run(upload, cwd=tmp_path, env=os.environ | settings, check=True)
    sent = {path.name: path.read_bytes() for path in (tmp_path / "merged").iterdir()}
    assert {path.name: path.read_bytes() for path in repository.iterdir()} == sent
