"""What a run says of the models' licences before it begins."""

import json
from pathlib import Path

from merganser.config.loading import load_params
from merganser.flows.steps.sources import licence_notes
from tests.tasks.comparison import inside
from tests.tiny import make_repository, merganser

WARNED = "licences: non-commercial: cc-by-nc-4.0 (hub/dark) does not allow commercial use, mit (hub/base) does"


def test_a_dry_run_says_which_licences_do_not_go_together_each_time(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    for name, licence in {"base": "mit", "dark": "cc-by-nc-4.0"}.items():
        (repository / "hub" / name / "README.md").write_text(f"---\nlicense: {licence}\n---\n")
    for _ in range(2):
        said = merganser(repository, "run", "--dry-run").stderr.splitlines()
        assert [line for line in said if "icence" in line] == [
            WARNED,
            "licences: no licence is known of hub/light",
        ]


def test_what_was_fetched_counts_if_it_was_this_source(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    with inside(repository):
        params = load_params()
        assert licence_notes(params) == []
        for name, folder in {"base": "data/base", "dark": "data/checkpoints/dark"}.items():
            Path(folder).mkdir(parents=True)
            told = {"source": f"hub/{name}", "kind": "local", "license": ["cc-by-nd-4.0"], "files": {}}
            (Path(folder) / "source.json").write_text(json.dumps(told))
        assert licence_notes(params)[0].startswith("licences: no derivatives: cc-by-nd-4.0 (hub/base, hub/dark) may")
        for folder in ("data/base", "data/checkpoints/dark"):
            path = Path(folder) / "source.json"
            path.write_text(path.read_text().replace("hub/", "elsewhere/"))
        assert licence_notes(params) == []
        Path("data/base/source.json").write_text("{")
        assert licence_notes(params) == []
