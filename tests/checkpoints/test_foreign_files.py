"""Files as other programs write them: read as transformers reads them, or refused with what helps."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import format_utils

from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from tests.merges import merge_checkpoints

State = dict[str, Tensor]
FLOATS = {"a.weight": torch.arange(12.0).reshape(4, 3)}
CODES = {
    "MXFP4": {"experts.down_proj_blocks": torch.ones(2, 8, 1, 16, dtype=torch.uint8)},
    "GPTQ": {"q_proj.qweight": torch.ones(2, 8, dtype=torch.int32), "q_proj.scales": torch.ones(1, 8).half()},
    "bitsandbytes, 4 bits": {"q_proj.weight": torch.ones(8, 1, dtype=torch.uint8)},
    "bitsandbytes, 8 bits": {"q_proj.weight": torch.ones(4, 4, dtype=torch.int8)},
    "compressed-tensors": {"q_proj.weight_packed": torch.ones(4, 4, dtype=torch.int32)},
    "MLX": {"q_proj.weight": torch.ones(4, 4, dtype=torch.uint32), "q_proj.scales": torch.ones(4, 1)},
    "AQLM": {"q_proj.codes": torch.ones(4, 4, 1, dtype=torch.int16)},
}


def folder(path: Path, state: State, name: str = "model.safetensors") -> Path:
    path.mkdir()
    save_file(state, path / name, {"format": "pt"})
    return path


def average(tmp_path: Path, base: Path, *models: Path) -> State:
    tasks = {f"task{number}": model for number, model in enumerate(models)}
    merge_checkpoints("average", {}, base, tasks, tmp_path / "out", device="cpu")
    return load_file(tmp_path / "out/model.safetensors")


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_quantised_weights_are_refused_by_their_dtype(tmp_path: Path, codes: State) -> None:
    base, task = (folder(tmp_path / name, FLOATS | codes) for name in ("base", "task"))
    with pytest.raises(InputError, match=f"the parameter {next(iter(codes))} is quantised, stored as"):
        average(tmp_path, base, task)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_a_weight_that_the_task_stores_as_integers_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    base = folder(tmp_path / "base", FLOATS | {"norm.weight": torch.ones(3)})
    task = folder(tmp_path / "task", FLOATS | {"norm.weight": torch.ones(3).to(dtype)})
    with pytest.raises(
        InputError, match=r"task0: norm\.weight is stored as (I64|BOOL), in the base as F32.*merge without it"
    ):
        average(tmp_path, base, task)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m-00001-of-00002.gguf", "a GGUF file in parts: join them"),
        ("flax_model.msgpack", "weights of Flax: transformers 4 converts them"),
        ("tf_model.h5", "weights of TensorFlow"),
        ("model.onnx", "give the original model"),
        ("onnx/model.onnx", "give the original model"),
        ("openvino_model.xml", "an exported OpenVINO model"),
        ("saved_model.pb", "an exported TensorFlow model"),
        ("bert_model.ckpt.index", "TensorFlow 1: transformers 4 converts them"),
        (".metadata __0_0.distcp", "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt"),
        ("pytorch_model_fsdp_0/__0_0.distcp", "accelerate merge-weights FOLDER/pytorch_model_fsdp_0 OUT"),
        ("zero_to_fp32.py latest", "DeepSpeed: python FOLDER/zero_to_fp32.py FOLDER OUT"),
        ("global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt", "python -m deepspeed.utils.zero_to_fp32 FOLDER OUT"),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "python -m deepspeed.utils.zero_to_fp32 FOLDER OUT"),
        ("iter_0000100/mp_rank_00/model_optim_rng.pt", "Megatron-Bridge exports it"),
        ("adapters.safetensors adapter_config.json", "mlx_lm.fuse --model BASE --adapter-path FOLDER --save-path OUT"),
        ("0000100_adapters.safetensors adapters.safetensors adapter_config.json", "an adapter of MLX"),
        ("checkpoint-20/model.safetensors", "give one of its checkpoints: checkpoint-20"),
    ],
)
def test_a_folder_of_another_format_is_named_with_what_helps(name: str, said: str, tmp_path: Path) -> None:
    for each in name.split():
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=said):
        open_checkpoint(tmp_path)


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("blobs/gone")
    with pytest.raises(InputError, match=r"model\.safetensors is a broken link"):
        open_checkpoint(tmp_path)


def test_what_is_stored_as_integers_and_is_no_weight_stays_the_bases(tmp_path: Path) -> None:
    others = {
        "position_ids": torch.arange(4, dtype=torch.int32)[None],
        "attn.relative_position_index": torch.ones(3, 3, dtype=torch.int64),
        "mask": torch.ones(2, 2, dtype=torch.bool),
        "hashes": torch.ones(3, dtype=torch.uint32),
        "freqs_cis": torch.full((2, 2), 1 + 2j, dtype=torch.complex64),
    }
    base = folder(tmp_path / "base", FLOATS | others)
    task = folder(tmp_path / "task", {"a.weight": FLOATS["a.weight"] + 2} | others)
    merged = average(tmp_path, base, task)
    assert torch.equal(merged.pop("a.weight"), FLOATS["a.weight"] + 2)
    assert all(torch.equal(merged[name], others[name]) for name in others)


def test_torch_weights_of_before_version_1_6_are_read(tmp_path: Path) -> None:
    torch.save(FLOATS, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(open_checkpoint(tmp_path / "old.bin").read("a.weight"), FLOATS["a.weight"])


def test_a_checkpoint_of_lightning_is_read(tmp_path: Path) -> None:
    torch.save({"state_dict": FLOATS, "epoch": 3}, tmp_path / "last.ckpt")
    assert open_checkpoint(tmp_path / "last.ckpt").names == ("a.weight",)


def test_what_a_shard_holds_and_the_index_does_not_name_is_merged(tmp_path: Path) -> None:
    """transformers loads whole shards."""
    paths = []
    for number, name in enumerate(("base", "task")):
        path = folder(tmp_path / name, FLOATS | {"norm.weight": torch.full((3,), float(number))}, "one.safetensors")
        index = {"weight_map": {"a.weight": "one.safetensors"}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        paths.append(path)
    assert torch.equal(average(tmp_path, *paths)["norm.weight"], torch.ones(3))


def test_a_file_that_torch_never_wrote_is_named_with_what_it_begins_with(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"<!DOCTYPE html><html>")
    with pytest.raises(InputError, match=r"last\.ckpt: not a file written by torch: it begins with b'<!DOCTYPE html>"):
        open_checkpoint(tmp_path / "last.ckpt")


def test_gguf_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(400))
    with pytest.raises(InputError, match=r"a GGUF file.*merganser merge average --model copy=.*m\.gguf --out DIR"):
        open_checkpoint(tmp_path / "m.gguf")


def test_four_bit_floats_are_refused_as_quantised(tmp_path: Path) -> None:
    stored = torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    path = folder(tmp_path / "base", {"a.weight": stored})
    with pytest.raises(InputError, match=r"a\.weight is quantised, stored as F4; take the model it was made from"):
        open_checkpoint(path)


def test_a_merge_that_the_float16_of_its_base_cannot_hold_is_refused(tmp_path: Path) -> None:
    base, one, two = (
        folder(tmp_path / name, {"a.weight": torch.full((4, 4), value).half()})
        for name, value in (("base", 60_000.0), ("one", 64_000.0), ("two", 64_000.0))
    )
    with pytest.raises(
        InputError, match=r"a\.weight: has values beyond float16's largest, 65504; write the merge in a"
    ):
        merge_checkpoints("task_arithmetic", {"scaling": 1.0}, base, {"a": one, "b": two}, tmp_path / "out")


def of_diffusers(tmp_path: Path, file: str) -> list[Path]:
    paths = [folder(tmp_path / name, FLOATS, f"diffusion_pytorch_model{file}") for name in ("base", "task")]
    for path in paths:
        (path / "config.json").write_text('{"_class_name": "UNet2DModel"}')
    return paths


@pytest.mark.parametrize("file", [".safetensors", ".fp16.safetensors"])
def test_a_merge_of_diffusers_models_has_the_name_that_diffusers_looks_for(file: str, tmp_path: Path) -> None:
    base, task = of_diffusers(tmp_path, file)
    merge_checkpoints("average", {}, base, {"a": task}, tmp_path / "out", device="cpu")
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["diffusion_pytorch_model.safetensors"]
    assert open_checkpoint(tmp_path / "out").names == ("a.weight",)


def test_shards_of_diffusers_are_read_and_written_under_their_names(tmp_path: Path) -> None:
    stem = "diffusion_pytorch_model"
    for name in ("base", "task"):
        (tmp_path / name).mkdir()
        names = {
            "a.weight": f"{stem}.fp16-00001-of-00002.safetensors",
            "b.bias": f"{stem}.fp16-00002-of-00002.safetensors",
        }
        for key, file in names.items():
            save_file({key: torch.ones(3)}, tmp_path / name / file)
        (tmp_path / name / f"{stem}.safetensors.index.fp16.json").write_text(json.dumps({"weight_map": names}))
    merge_checkpoints("average", {}, tmp_path / "base", {"a": tmp_path / "task"}, tmp_path / "out", device="cpu")
    assert sorted(path.name for path in (tmp_path / "out").glob("diffusion*")) == [
        f"{stem}-00001-of-00002.safetensors",
        f"{stem}-00002-of-00002.safetensors",
        f"{stem}.safetensors.index.json",
    ]
    assert open_checkpoint(tmp_path / "out").names == ("a.weight", "b.bias")


def test_a_pipeline_of_diffusers_is_refused_with_its_components(tmp_path: Path) -> None:
    base, _ = of_diffusers(tmp_path, ".safetensors")
    (tmp_path / "pipeline/scheduler").mkdir(parents=True)
    base.rename(tmp_path / "pipeline/unet")
    (tmp_path / "pipeline/model_index.json").write_text("{}")
    with pytest.raises(InputError, match=r"pipeline: a pipeline of diffusers; merge its components .*: unet$"):
        open_checkpoint(tmp_path / "pipeline")


def test_of_several_files_and_indices_the_usual_name_is_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "base", FLOATS, "model-00001-of-00001.safetensors")
    for name in ("consolidated", "model"):
        shards = {
            "weight_map": {"a.weight": "model-00001-of-00001.safetensors" if name == "model" else "gone.safetensors"}
        }
        (path / f"{name}.safetensors.index.json").write_text(json.dumps(shards))
    assert open_checkpoint(path).names == ("a.weight",)


def test_several_files_of_weights_without_a_usual_name_are_refused_by_their_names(tmp_path: Path) -> None:
    path = folder(tmp_path / "base", FLOATS, "one.safetensors")
    save_file(FLOATS, path / "two.safetensors")
    with pytest.raises(InputError, match=r"several files of weights.*give one of them: one\.safetensors, two\."):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lora_unet_down_blocks_0_attn.lora_down.weight", "lora_unet_down_blocks_0_attn.alpha"], "kohya's sd-scripts"),
        (["lora_te1_text_model_layers_0.lora_up.weight"], "fuse_lora, save_pretrained"),
        (["lycoris_blocks_0_attn.hada_w1_a", "lycoris_blocks_0_attn.alpha"], "kohya's sd-scripts or of LyCORIS"),
        (["unet.down_blocks.0.to_q.lora.down.weight", "unet.down_blocks.0.to_q.alpha"], "a LoRA of diffusers"),
        (["transformer.blocks.0.to_q.lora_A.weight", "text_encoder_2.q.lora_A.weight"], "a LoRA of diffusers"),
        (["model.layers.0.self_attn.q_proj.lora_a", "model.layers.0.self_attn.q_proj.lora_b"], "an adapter of MLX"),
        (["base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.default.weight"], "an adapter of PEFT"),
    ],
)
def test_an_adapters_file_is_named_with_what_makes_a_model_of_it(names: list[str], said: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "it", {name: torch.ones(2, 2) for name in names}, "last.safetensors")
    for place in (path, path / "last.safetensors"):
        with pytest.raises(InputError, match=said):
            open_checkpoint(place)


def test_a_model_with_low_rank_maps_of_its_own_is_a_model(tmp_path: Path) -> None:
    names = ["block.lora_A.weight", "block.lora_B.weight", "block.weight"]
    assert open_checkpoint(folder(tmp_path / "it", {name: torch.ones(2, 2) for name in names})).names == tuple(names)


@pytest.mark.parametrize("as_base", [True, False])
def test_a_whole_model_beside_an_adapter_is_refused_with_both(as_base: bool, tmp_path: Path) -> None:
    both, plain = (folder(tmp_path / name, FLOATS) for name in ("both", "plain"))
    (both / "adapter_config.json").write_text("{}")
    save_file({"base_model.model.a.lora_A.weight": torch.ones(2, 2)}, both / "adapter_model.safetensors")
    said = r"both: a whole model and an adapter, .*give the file model\.safetensors for the model alone, or the adapter"
    models = (both, plain) if as_base else (plain, both)
    with pytest.raises(InputError, match=said):
        average(tmp_path, *models)
    average(tmp_path, plain, both / "model.safetensors")


def test_the_command_for_a_distributed_checkpoint_makes_a_file_that_is_read(tmp_path: Path) -> None:
    torch.save({"model": FLOATS}, tmp_path / "state.pt")
    format_utils.torch_save_to_dcp(tmp_path / "state.pt", tmp_path / "sharded")
    with pytest.raises(InputError, match="dcp_to_torch FOLDER"):
        open_checkpoint(tmp_path / "sharded")
    format_utils.dcp_to_torch_save(tmp_path / "sharded", tmp_path / "whole.pt")
    assert torch.equal(open_checkpoint(tmp_path / "whole.pt").read("a.weight"), FLOATS["a.weight"])
