"""`merganser extract-lora`: what it says of each layer."""

import json
from pathlib import Path

from tests.command_line.conftest import Done, Refused
from tests.transformers_models import save_models

COMMAND = ("extract-lora", "task0", "--base", "base", "--out", "adapter")


def test_it_says_what_each_layer_loses_and_what_is_left_out(tmp_path: Path, done: Done) -> None:
    save_models(tmp_path, "llama, untied", tasks=1)
    said = done(tmp_path, *COMMAND, "--rank", "3").splitlines()
    assert said[0].split() == ["parameter", "rank", "error"]
    assert any(line.split()[:2] == ["model.layers.0.mlp.up_proj.weight", "3"] for line in said)
    assert said[-2].startswith("changed, and not in the adapter: lm_head.weight, model.embed_tokens.weight")
    assert said[-1].startswith("the adapter of task0 for base is in adapter: it loses ")


def test_the_same_as_json_without_what_is_excepted(tmp_path: Path, done: Done) -> None:
    save_models(tmp_path, "llama, untied", tasks=1)
    whole = ("--except", "*embed*", "--except", "lm_head*", "--modules-to-save", "*norm*")
    answer = json.loads(done(tmp_path, *COMMAND, "--energy", "0.9", *whole, "--json"))
    ranks = {layer["name"]: layer["rank"] for layer in answer["layers"]}
    assert ranks["model.norm.weight"] is None
    assert not {"lm_head.weight", "model.embed_tokens.weight"} & ranks.keys()
    assert 0 < answer["error"] < 0.35 * answer["norm"]
    assert answer["notes"] == []


def test_a_rank_or_a_share_is_needed_and_a_new_folder(tmp_path: Path, refused: Refused) -> None:
    save_models(tmp_path, "llama, untied", tasks=1)
    assert "--rank, --energy: give one of the two" in refused(tmp_path, *COMMAND)
    assert "already" in refused(tmp_path, *COMMAND[:-1], "base", "--rank", "3")


def test_an_architecture_that_is_no_name_is_passed_over(tmp_path: Path, done: Done) -> None:
    save_models(tmp_path, "llama, tied", tasks=1)
    for path in tmp_path.glob("*/config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [5]}))
    assert "the adapter of" in done(tmp_path, *COMMAND, "--rank", "3")
