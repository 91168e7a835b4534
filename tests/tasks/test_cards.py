"""The card of a merged model: what a hub reads from it, and what it says of where the model comes from."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, PreTrainedTokenizerFast

from merganser import registry
from merganser.checkpoints.companions import ModelOrigin, model_origin
from merganser.checkpoints.kinds import ParameterRules
from merganser.hashes import sha256_of
from merganser.merging.cards import model_card
from merganser.tasks import difference, extract, extract_difference, fetch, merge
from tests.merges import merge_checkpoints
from tests.tasks.comparison import TASKS, inside, write_params, write_sources

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "average", "reads": "deltas"},
    "trimmed": {"method": "ties", "reads": "deltas", "density": 0.5},
    "masked": {"method": "emr", "reads": "differences/x"},
}


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Carry a comparison as far as the merges."""
    folder = tmp_path_factory.mktemp("cards")
    write_params(folder, METHODS)
    params = yaml.safe_load((folder / "params.yaml").read_text()) | {"differences": {"x": {"merged": "plain"}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    write_sources(folder / "sources")
    with inside(folder):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            extract.main([task])
        merge.main(["plain"])
        merge.main(["trimmed"])
        difference.main(["x"])
        for task in TASKS:
            extract_difference.main(["x", task])
        merge.main(["masked"])
    return folder


def card(folder: Path, entry: str) -> ModelCard:
    return ModelCard.load(folder / "data/merged" / entry / "README.md")


def rows(text: str, section: str) -> list[list[str]]:
    """The cells of the table in a section, without its heading."""
    body = text.split(f"## {section}\n")[1].split("\n## ")[0]
    return [[cell.strip(" `") for cell in line.strip("| ").split(" | ")] for line in body.splitlines() if line][2:]


@pytest.mark.parametrize(("entry", "method"), [("plain", "average"), ("trimmed", "ties"), ("masked", "emr")])
def test_the_hub_reads_what_the_model_is(carried: Path, entry: str, method: str) -> None:
    data = card(carried, entry).data.to_dict()
    assert data == {
        "library_name": "open_clip",
        "pipeline_tag": "zero-shot-image-classification",
        "tags": ["merge", "merganser", method],
    }


def test_a_card_names_the_checksums_of_all_it_was_made_of(carried: Path) -> None:
    found = rows(card(carried, "trimmed").text, "Made of")
    fetched = {"(base)": carried / "data/base"} | {task: carried / "data/checkpoints" / task for task in sorted(TASKS)}
    sources = {"(base)": "sources/base"} | {task: f"sources/{task}" for task in TASKS}
    assert found == [
        [name, sources[name], "model.safetensors", sha256_of(folder / "model.safetensors")]
        for name, folder in fetched.items()
    ]


def test_a_card_says_all_that_the_entry_was_run_with(carried: Path) -> None:
    given = dict(rows(card(carried, "trimmed").text, "Merge"))
    values = registry.get("ties").validate("", {"density": 0.5})
    assert given == {"method": "ties", "reads": "deltas", "seed": "0"} | {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()
    }


def test_a_method_with_parts_per_task_names_their_file_and_others_do_not(carried: Path) -> None:
    assert "overlays.safetensors" in card(carried, "masked").text
    assert (carried / "data/merged/masked/overlays.safetensors").is_file()
    assert "overlays.safetensors" not in card(carried, "plain").text


def test_difference_vectors_start_from_a_model_and_not_from_its_card(carried: Path) -> None:
    assert not (carried / "data/differences/x/base/README.md").exists()
    assert (carried / "data/merged/plain/README.md").is_file()


def test_the_same_inputs_give_the_same_card(carried: Path) -> None:
    before = (carried / "data/merged/trimmed/README.md").read_bytes()
    with inside(carried):
        merge.main(["trimmed"])
    assert (carried / "data/merged/trimmed/README.md").read_bytes() == before


@pytest.fixture
def licensed(tmp_path: Path) -> Path:
    """Carry a comparison as far as a merge, whose models' cards give licences that do not go together."""
    write_params(tmp_path, {"plain": METHODS["plain"]})
    write_sources(tmp_path / "sources")
    for name, licence in {"base": "mit", "dark": "cc-by-nc-4.0", "light": "mit"}.items():
        facts = ModelCardData(license=licence, datasets=["org/rows", f"org/{name}"])
        ModelCard(f"---\n{facts.to_yaml()}\n---\n").save(tmp_path / f"sources/{name}/README.md")
    with inside(tmp_path):
        fetch.main(["base"])
        for task in TASKS:
            fetch.main(["task", task])
            extract.main([task])
        merge.main(["plain"])
    return tmp_path


def test_licences_that_do_not_go_together_are_in_the_card_and_in_the_profile_of_a_merge(licensed: Path) -> None:
    warned = [
        "non-commercial: cc-by-nc-4.0 (sources/dark) does not allow commercial use, "
        "mit (sources/base, sources/light) does",
        "no licence is known of sources/red",
    ]
    text = card(licensed, "plain").text
    assert [line for line in text.splitlines() if line.startswith("- `no")] == [f"- `{line}`" for line in warned]
    profile = json.loads((licensed / "data/profiles/merge/plain.json").read_text())
    assert profile["licences"] == warned


def test_a_card_names_the_data_sets_that_its_models_cards_name(licensed: Path) -> None:
    found = card(licensed, "plain").data.to_dict()["datasets"]
    assert found == ["org/rows", "org/base", "org/dark", "org/light"]


def test_a_merge_of_models_without_cards_has_no_word_on_licences(carried: Path) -> None:
    assert "licences" not in json.loads((carried / "data/profiles/merge/plain.json").read_text())
    assert "icence" not in card(carried, "plain").text


def made(origins: dict[str, ModelOrigin], folder: Path) -> ModelCard:
    method = registry.get("average")
    return ModelCard(model_card("mean", method, method.validate("", {}), "deltas", 0, folder, origins))


def test_models_of_a_hub_are_the_base_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    hub = {
        "(base)": ModelOrigin("org/base", "hub", {"model.safetensors": "0" * 64}),
        "a": ModelOrigin("org/a", "hub", {"one.safetensors": "1" * 64, "two.safetensors": "2" * 64}),
        "b": ModelOrigin("org/a", "hub"),
        "c": ModelOrigin("here/c"),
    }
    data = made(hub, tmp_path).data.to_dict()
    assert data["base_model"] == ["org/base", "org/a"]
    assert data["base_model_relation"] == "merge"
    assert data["library_name"] == "transformers"
    assert [row[0] for row in rows(made(hub, tmp_path).text, "Made of")] == ["(base)", "a", "a", "b", "c"]


def write_language_model(folder: Path, template: str | None) -> None:
    """Write the configuration of a decoder and a tokenizer of five words, as transformers does."""
    words = {word: number for number, word in enumerate(("<pad>", "<unk>", "</s>", "a", "b"))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")), pad_token="<pad>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    LlamaConfig(vocab_size=5, architectures=["LlamaForCausalLM"]).save_pretrained(folder)


def test_a_language_models_card_names_its_tokenizer_and_its_chat_template(tmp_path: Path) -> None:
    write_language_model(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    found = made({"(base)": ModelOrigin("base"), "a": ModelOrigin("a")}, tmp_path)
    assert found.data.to_dict()["pipeline_tag"] == "text-generation"
    kind = json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert f"Class: `{kind}`, for 5 tokens. Chat template: in `chat_template.jinja`." in found.text
    section = found.text.split("## Tokenizer\n")[1].split("\n## ")[0]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert f"| `{name}` | `{sha256_of(tmp_path / name)}` |" in section


def test_a_tokenizer_without_a_template_is_said_to_have_none(tmp_path: Path) -> None:
    write_language_model(tmp_path, None)
    text = made({"(base)": ModelOrigin("base"), "a": ModelOrigin("a")}, tmp_path).text
    assert "Chat template: none" in text
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": "{{ messages }}"}))
    assert "Chat template: in `tokenizer_config.json`" in made({"(base)": ModelOrigin("base")}, tmp_path).text


@pytest.mark.parametrize(
    ("architectures", "use"),
    [
        (["RobertaForSequenceClassification"], "text-classification"),
        (["T5ForConditionalGeneration"], "text2text-generation"),
        (["GPT2LMHeadModel"], "text-generation"),
        (["CLIPVisionModel"], None),
        (7, None),
        ({"a": 1}, None),
    ],
)
def test_a_card_says_what_a_model_of_transformers_is_for(tmp_path: Path, architectures: Any, use: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    found = made({"(base)": ModelOrigin("base")}, tmp_path)
    assert found.data.to_dict().get("pipeline_tag") == use
    assert "## Tokenizer" not in found.text


def test_a_hostile_source_stays_in_its_cell_and_out_of_the_metadata(tmp_path: Path) -> None:
    name = "x` | y\n---\nlicense: mit\n[link](http://example.org)\n# Title\x1b[0m"
    found = made({"(base)": ModelOrigin("base"), "a": ModelOrigin(name)}, tmp_path)
    assert "license" not in found.data.to_dict()
    line = next(line for line in found.text.splitlines() if line.startswith("| a |"))
    assert line.count("`") == 2
    assert "\\|" in line
    assert "\x1b" not in found.text
    assert found.text.count("\n# ") == 1


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({"kind": "local", "source": "hub/a"}, "hub/a"),
        ({"kind": "hub", "source": "a.yaml", "hub": "org/a", "revision": "0" * 40}, "org/a"),
        ({"kind": "open_clip", "source": "a.yaml", "open_clip": "ViT", "pretrained": "tag"}, "ViT, tag"),
        ({"kind": "package", "source": "a.yaml", "package": "tiny-models", "version": "1.0"}, "tiny-models 1.0"),
        ({"kind": "mean", "source": "data/checkpoints", "mean_of": ["a", "b"]}, "the mean of a, b"),
    ],
)
def test_an_origin_is_known_by_name_and_bytes_whatever_its_revision(
    about: dict[str, Any], name: str, tmp_path: Path
) -> None:
    files = {file: {"sha256": file * 3, "size": 1} for file in ("model.safetensors", "adapter_config.json", "x.json")}
    (tmp_path / "source.json").write_text(json.dumps(about | {"files": files}))
    found = model_origin(tmp_path)
    assert found.name == name
    assert set(found.files) == {"model.safetensors", "adapter_config.json"}


def test_a_merge_without_the_pipeline_has_a_card_too(tmp_path: Path) -> None:
    write_sources(tmp_path)
    models = {task: tmp_path / task for task in TASKS}
    rules = ParameterRules(merged=("visual.*",))
    merge_checkpoints("ties", {"merged": "average"}, tmp_path / "base", models, tmp_path / "out", rules=rules)
    text = ModelCard.load(tmp_path / "out/README.md").text
    assert dict(rows(text, "Merge"))["merged"] == "average"
    assert [row[:2] for row in rows(text, "Made of")] == [["(base)", "base"], *([task, task] for task in TASKS)]
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("licences", "given"),
    [
        ((["mit"], ["mit"]), {"license": "mit"}),
        ((["mit"], ["apache-2.0"]), {"license": "other", "license_name": "apache-2.0, mit"}),
        ((["mit"], []), {"license": "other", "license_name": "mit, unknown"}),
        ((["Own Terms"], ["Own Terms"]), {"license": "other", "license_name": "Own Terms"}),
        (([], []), {}),
    ],
)
def test_a_card_gives_the_licence_of_all_models_or_lists_them(
    tmp_path: Path, licences: tuple[list[str], list[str]], given: dict[str, str]
) -> None:
    base, tuned = licences
    found = made({"(base)": ModelOrigin("base", licences=base), "a": ModelOrigin("a", licences=tuned)}, tmp_path)
    assert {name: value for name, value in found.data.to_dict().items() if name.startswith("license")} == given
    assert ("## Licences" in found.text) == bool(given)


def test_a_mean_of_the_models_has_their_licence(tmp_path: Path) -> None:
    origins = {"(base)": ModelOrigin("the mean of a", "mean"), "a": ModelOrigin("a", licences=["mit"])}
    assert made(origins, tmp_path).data.to_dict()["license"] == "mit"
