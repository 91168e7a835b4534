"""A suite is a file, its pointers, which are pinned at their hub, and the figures of a paper."""

import json
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from merganser.config.loading import load_params
from merganser.config.published import read_published
from merganser.sources.pointers import HubPointer, read_pointer
from tests.chapters import Copy
from tests.flows.conftest import Done
from tests.hub import COMMIT, serve

SUITE = """
about: {title: Two toys, download: 100 bytes, gpu: "no"}
extends: entries
base: {source: suites/toy/sources/base.yaml, family: open_clip}
parameters: {merged: ["visual.*"]}
each: {source: "suites/toy/sources/{}.yaml", data: {source: "suites/toy/sources/{}-data.yaml", templates: ["a {}."]}}
tasks: {dark: {data: {classes: [dark, bright]}}, red: {data: {classes: [red, blue]}}}
published: {source: suites/toy/published.yaml}
methods: [base, individual, average, ties: {density: 0.3}]
"""
POINTERS = """suites/toy/sources:
  base: {hub: org/toy, follow: main}
  dark: {hub: org/toy, follow: main}
  red: {hub: org/toy, follow: main}
  dark-data: {hub: org/toys, follow: main}
  red-data: {hub: org/toys, follow: main}
"""
PAPER = """
paper: "Toy et al."
each: {checkpoints: these, decimals: 1}
tables:
  - table: Table 1
    protocol: accuracy
    columns: [dark, red, mean]
    rows: {toy: {average: [60.0, 70.0, 65.0]}}
"""
HUB = {"models/org/toy": "model.safetensors", "datasets/org/toys": "test.parquet"}


def test_a_suite_is_a_file_and_its_pointers(tmp_path: Path, done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Copy(tmp_path / "copy", "Add a suite")
    copy.add("suites/toy.yaml", SUITE)
    copy.insert("suites/tables/pointers.yaml", POINTERS, "suites/clip-vit-b-32-lora-8/sources:")
    copy.add("published/toy.yaml", PAPER)
    copy.insert("suites/README.md", "| toy | a tiny CLIP | 2, images |\n", "| open-clip-vit-b-32-20 | open_clip's")
    Repo.init(str(copy.folder), no_scm=True).close()
    for name, file in HUB.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_bytes(b"x" * 20)
    with serve({name: tmp_path / name for name in HUB}, COMMIT) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        said = done(copy.folder, "suites", "check", "toy", "--pin")
    assert said.endswith("100 bytes to download, of 5 sources\ntoy: 0 mistakes\n")
    assert {row["name"]: row["tasks"] for row in json.loads(done(copy.folder, "suites", "--json"))}["toy"]
    done(copy.folder, "use", "toy")
    params = load_params(copy.folder / "params.yaml")
    assert params.methods["ties"].values == {"density": 0.3}
    assert read_pointer(copy.folder / params.tasks["red"].data.source) == HubPointer(hub="org/toys", revision=COMMIT)
    assert read_published(copy.folder / "suites/toy/published.yaml").tables[0].rows["average"] == [60.0, 70.0, 65.0]
    assert yaml.safe_load((copy.folder / "points.yaml").read_text())["points"] == {}
