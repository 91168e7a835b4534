"""Sound classifiers with a task's own head: wav2vec2, HuBERT, WavLM, Whisper's encoder, AST and others of transformers.

A whole Whisper can be the base; its decoder is left out. A sound's inputs are those that the checkpoint's feature
extractor makes of it alone. They are padded in the arrays that are kept, and cut to their length before they are run
with others of that length: a network without an attention mask sees padding, and so does the first convolution of
wav2vec2, which is normalised over time. Shape legend: B sounds, T frames, C classes, D features.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import AutoFeatureExtractor, AutoModelForAudioClassification, SequenceFeatureExtractor
from transformers.models.auto import modeling_auto

from merganser.checkpoints.architecture import CONFIG
from merganser.checkpoints.reading import Checkpoint
from merganser.errors import InputError, quoting
from merganser.models import Change, DeviceName, Inputs, Precision
from merganser.models.configurations import build, check_parameter_names, read_family_config
from merganser.models.named_module import Maps, NamedModule
from merganser.models.naming import naming_of

MODEL_TYPES = modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES.keys()
LIBRARY = "transformers"
PIPELINES = {
    "ForAudioClassification": "audio-classification",
    "Data2VecAudioForSequenceClassification": "audio-classification",
    "HubertForSequenceClassification": "audio-classification",
    "SEWDForSequenceClassification": "audio-classification",
    "SEWForSequenceClassification": "audio-classification",
    "UniSpeechForSequenceClassification": "audio-classification",
    "UniSpeechSatForSequenceClassification": "audio-classification",
    "Wav2Vec2BertForSequenceClassification": "audio-classification",
    "Wav2Vec2ConformerForSequenceClassification": "audio-classification",
    "Wav2Vec2ForSequenceClassification": "audio-classification",
    "WavLMForSequenceClassification": "audio-classification",
}
MAKE = AutoModelForAudioClassification.from_config
HEADS = ("projector", "classifier")  # the first one that a module has sees the features
HEAD_NAMES = tuple(f"{head}.*" for head in HEADS)  # a task's own, which a base need not have
# Heads of the pretraining and of recognition, what stands for masked frames in training, and Whisper's decoder.
LEFT_OUT = (
    *("quantizer.*", "project_q.*", "project_hid.*", "ctc_proj.*", "lm_head.*", "speaker_proj.*"),
    *("label_embeddings_concat", "final_proj.*", "*masked_spec_embed", "decoder.*", "model.decoder.*", "proj_out.*"),
)
EXTRACTORS = ("Wav2Vec2", "Whisper", "AST", "SeamlessM4T")  # feature extractors of transformers, one sound's alike
# What a feature extractor may say: it computes tables of these sizes, and pads every sound to some of them.
LARGEST = {"sampling_rate": 192_000, "feature_size": 4096, "num_mel_bins": 4096, "n_fft": 8192, "max_length": 65_536}
SECONDS = 600  # at most, that Whisper's pads every sound to
LENGTH, MASK = "length", "attention_mask"  # of a sound's inputs, along the first of their dimensions


class AudioClassifier(NamedModule):
    """A network of sounds with a head of the task's own."""

    def __init__(self, module: Any, folder: Path) -> None:
        """Take a module as it was built, and the folder of its feature extractor."""
        super().__init__(module, naming_of(module, folder, LEFT_OUT))
        self.folder = folder
        self._head: Module = next(part for name in HEADS for own, part in module.named_children() if own == name)
        self._mask: Tensor | None = None  # of the batch that runs
        self._read: int | None = None  # samples of the shortest sound that the module was seen to read

    def sampling_rate(self) -> int:
        """Return how many samples of a sound a second has."""
        return int(self._extractor.sampling_rate)

    def inputs(self) -> list[str]:
        """Name the arrays that `encode_sounds` makes."""
        return [*self._names, LENGTH]

    def encode_sounds(self, sounds: Sequence[Any], longest: int) -> dict[str, Tensor]:
        """Return the inputs of sounds, float32 (samples,) each, and their lengths, padded like `longest` samples.

        Raises InputError for a sound that is too short for the feature extractor or the network.
        """
        self._check_shortest(min(sounds, key=len))
        rows = [self._encoded(sound) for sound in sounds]
        whole = self._encoded(np.zeros(longest, dtype=np.float32))
        lengths = [len(next(iter(row.values()))) for row in rows]
        padded = {name: torch.stack([_padded(row[name], len(each)) for row in rows]) for name, each in whole.items()}
        shown = {MASK: padded[MASK].to(torch.uint8)} if MASK in padded else {}
        return padded | shown | {LENGTH: torch.tensor(lengths, dtype=torch.int32)}

    def changing(self, change: Change) -> AbstractContextManager[object]:
        """In the block, give the head the result of `change` on the features (B, D).

        The head's projection is linear, so the mean of its outputs is its output for the mean. So each frame
        gets the changed mean.
        """

        def changed(_: Module, args: Any) -> Any:
            features = change(self._mean(args[0]))
            return (features if args[0].dim() == 2 else features[:, None].expand_as(args[0]), *args[1:])

        return self._head.register_forward_pre_hook(changed)

    @cached_property
    def _names(self) -> list[str]:
        """Return the feature extractor's array names, from a second of silence."""
        return list(self._encoded(np.zeros(self.sampling_rate(), dtype=np.float32)))

    @cached_property
    def _extractor(self) -> Any:
        """Open the folder's feature extractor; raise InputError if it is unknown, huge or adds noise."""
        with quoting(f"{self.folder}: transformers cannot make the feature extractor"):
            said, _ = SequenceFeatureExtractor.get_feature_extractor_dict(self.folder, local_files_only=True)
            _check_extractor(said)
            made = AutoFeatureExtractor.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
            kind = type(made).__name__
            if kind not in [f"{name}FeatureExtractor" for name in EXTRACTORS]:
                raise ValueError(f"{kind} is not one of {', '.join(EXTRACTORS)}")
        return made

    def _encoded(self, sound: Any) -> dict[str, Tensor]:
        """Return the inputs of one sound, without a batch dimension."""
        extracted = self._extractor(sound, sampling_rate=self.sampling_rate(), return_tensors="pt")
        return {name: value[0] for name, value in extracted.items()}

    @torch.inference_mode()
    def _check_shortest(self, sound: Any) -> None:
        """Refuse a sound that gives no frame, by running the network on it."""
        if self._read is not None and len(sound) >= self._read:
            return
        with quoting(f"{self.naming.architecture} cannot read a sound of {len(sound)} samples (leave out short ones)"):
            inputs = {name: value[None] for name, value in self._encoded(sound).items()}
            if not all(value.isfinite().all() for value in inputs.values()):
                raise ValueError("its inputs are not finite")
            self._run(inputs)
        self._read = len(sound)

    def _batched(self, run: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
        """Run the sounds of each length together, without padding: (B, ...)."""
        places, parts = zip(*_by_length(inputs), strict=True)
        outputs = torch.cat([run(part) for part in parts])
        return outputs[torch.cat(places).argsort().to(outputs.device)]

    def _run(self, inputs: Inputs) -> Tensor:
        dtype = next(self.module.parameters()).dtype
        ready = {name: value.to(self.device, torch.int32 if name == MASK else dtype) for name, value in inputs.items()}
        self._mask = ready.get(MASK)
        logits: Tensor = self.module(**ready).logits
        return logits

    def _features(self, inputs: Inputs) -> Tensor:
        return self._mean(self._passed(self._head, inputs)[0])

    def _mean(self, states: Tensor) -> Tensor:
        """Return the mean over the frames without padding: (B, D) of (B, T, D); a single vector stays itself."""
        if states.dim() == 2 or self._mask is None:
            return states if states.dim() == 2 else states.mean(dim=1)
        shown = self.module._get_feature_vector_attention_mask(states.shape[1], self._mask)[..., None]
        return (states * shown).sum(dim=1) / shown.sum(dim=1)

    def _weights(self) -> Maps:
        """Return all weights but the head's."""
        return {name: value for name, value in super()._weights().items() if name.partition(".")[0] not in HEADS}


def _check_extractor(said: dict[str, Any]) -> None:
    """Raise ValueError for a feature extractor that needs much memory, or whose inputs vary."""
    seconds = ("chunk_length", SECONDS)
    for key, most in (*LARGEST.items(), seconds):
        if isinstance(value := said.get(key), int | float) and not 0 < value <= most:
            raise ValueError(f"{key} is {value}, not 1 to {most}")
    if said.get("dither"):
        raise ValueError("dither adds noise to each sound; set it to 0")


def _padded(values: Tensor, length: int) -> Tensor:
    """Append zeros along the first dimension."""
    return pad(values, (0, 0) * (values.dim() - 1) + (0, length - len(values)))


def _by_length(inputs: Inputs) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield the sounds of each length: their places, and their inputs without padding."""
    lengths = inputs[LENGTH]
    for length in lengths.unique().tolist():
        places = (lengths == length).nonzero()[:, 0]
        yield places, {name: values[places, :length] for name, values in inputs.items() if name != LENGTH}


def open_network(
    folder: Path, *, outputs: int | None = None, device: DeviceName = "cpu", precision: Precision = "float32"
) -> AudioClassifier:
    """Build the classifier that a folder describes, with so many outputs, without weights."""
    config = _config_of(folder, outputs)
    return AudioClassifier(build(MAKE, config, folder, device, precision), folder)


def check(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that is not such a classifier, or lacks a parameter of one, by configuration and headers."""
    config = _config_of(folder)
    check_parameter_names(MAKE, config, folder, checkpoint, left_out=LEFT_OUT, may_lack=HEAD_NAMES)


def _config_of(folder: Path, outputs: int | None = None) -> Any:
    """Read a configuration; refuse a head that reads all layers: then the trunk needs the base's own head."""
    config = read_family_config("audio", folder, outputs)
    if getattr(config, "use_weighted_layer_sum", False):
        what = "use_weighted_layer_sum: the head reads every layer, which Merganser does not do"
        raise InputError(f"{folder / CONFIG}: {what}; fine-tune with it set to false")
    return config
