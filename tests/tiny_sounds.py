"""Tiny classifiers of sounds with the feature extractors of their kind, as transformers saves them, and sounds."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import transformers as tf
from datasets import Audio, ClassLabel, Dataset, DatasetDict, Features, Value

RATE = 16000
CLASSES = ["no", "yes", "stop"]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "classifier_proj_size": 8,
}
# The convolutions make a frame of 100 samples, of at least 140.
WAVES = SIZES | {
    "conv_dim": [8, 8, 8],
    "conv_kernel": [20, 5, 3],
    "conv_stride": [10, 5, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
LAYERED = WAVES | {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
SQUEEZED = WAVES | {"squeeze_factor": 2}
WHISPER = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "classifier_proj_size": 8,
    "num_mel_bins": 8,
    "max_source_positions": 50,
    "max_target_positions": 8,
    "vocab_size": 40,
    **{f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "decoder_start")},
}
CONFIGS: dict[str, Any] = {
    "wav2vec2": lambda: tf.Wav2Vec2Config(**WAVES),
    "wav2vec2, layer norm": lambda: tf.Wav2Vec2Config(**LAYERED),
    "hubert": lambda: tf.HubertConfig(**WAVES),
    "wavlm": lambda: tf.WavLMConfig(**LAYERED),
    "data2vec-audio": lambda: tf.Data2VecAudioConfig(**WAVES),
    "sew": lambda: tf.SEWConfig(**SQUEEZED),
    "sew-d": lambda: tf.SEWDConfig(**SQUEEZED),
    "unispeech": lambda: tf.UniSpeechConfig(**WAVES),
    "unispeech-sat": lambda: tf.UniSpeechSatConfig(**WAVES),
    "wav2vec2-conformer": lambda: tf.Wav2Vec2ConformerConfig(**WAVES),
    "wav2vec2-bert": lambda: tf.Wav2Vec2BertConfig(**SIZES, feature_projection_input_dim=16),
    "whisper": lambda: tf.WhisperConfig(**WHISPER),
    "audio-spectrogram-transformer": lambda: tf.ASTConfig(
        **{key: value for key, value in SIZES.items() if key != "classifier_proj_size"},
        num_mel_bins=16,
        max_length=64,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
    ),
}
MASKED = ("wav2vec2, layer norm", "wavlm")  # whose feature extractors give a mask
EXTRACTORS = {
    "wav2vec2-bert": lambda: tf.SeamlessM4TFeatureExtractor(feature_size=8, num_mel_bins=8),
    "whisper": lambda: tf.WhisperFeatureExtractor(feature_size=8, chunk_length=1),
    "audio-spectrogram-transformer": lambda: tf.ASTFeatureExtractor(num_mel_bins=16, max_length=64),
}


def extractor(kind: str) -> Any:
    """Make the feature extractor of a kind of model."""
    waves = tf.Wav2Vec2FeatureExtractor
    return EXTRACTORS[kind]() if kind in EXTRACTORS else waves(return_attention_mask=kind in MASKED)


def random_model(kind: str, outputs: int = 3, seed: int = 0) -> Any:
    """Draw a classifier with weights that no initialisation would give."""
    tf.utils.logging.set_verbosity_error()
    config = CONFIGS[kind]()
    config.num_labels = outputs
    torch.manual_seed(seed)
    model = tf.AutoModelForAudioClassification.from_config(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return model.eval()


@torch.inference_mode()
def logits_of(model: Any, kind: str, drawn: list[Any]) -> torch.Tensor:
    """Score sounds one by one, as transformers does."""
    inputs = [extractor(kind)(sound, sampling_rate=RATE, return_tensors="pt") for sound in drawn]
    dtype = next(model.parameters()).dtype
    return torch.cat(
        [
            model(
                **{name: value.to(dtype) if value.is_floating_point() else value for name, value in each.items()}
            ).logits
            for each in inputs
        ]
    )


def write_model(folder: Path, kind: str, outputs: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Draw a classifier and write it with its feature extractor."""
    model = random_model(kind, outputs, seed)
    with torch.no_grad():  # so that it does not say one class of all
        getattr(model.classifier, "dense", model.classifier).bias.sub_(logits_of(model, kind, sounds(8)).mean(dim=0))
    model.to(dtype).save_pretrained(folder)
    extractor(kind).save_pretrained(folder)
    return model


def sounds(count: int, seed: int = 0, seconds: tuple[float, float] = (0.1, 0.5)) -> list[Any]:
    """Draw tones in noise (samples,) of 16 bits a sample, of different lengths and the first two of one."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(*(int(RATE * each) for each in seconds), count)
    lengths[:2] = lengths[0]
    drawn = []
    for number, length in enumerate(lengths):
        tone = np.sin(2 * np.pi * (200 + 300 * (number % len(CLASSES))) * np.arange(length) / RATE)
        levels = 8000 * (tone + 0.3 * generator.standard_normal(length))
        drawn.append((levels.astype(np.int16) / 2**15).astype(np.float32))
    return drawn


def encoded(sound: Any, form: str = "WAV", rate: int = RATE, **how: Any) -> bytes:
    """Write a sound (samples,) or (samples, channels) as the bytes of a file."""
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=form, **how)
    return file.getvalue()


def data_set(files: list[bytes | None], labels: list[Any], path: str | None = None) -> Any:
    """Make the rows of sounds' files, as `datasets` saves them; it needs torchcodec to do so by itself."""
    stored = Features({"audio": {"bytes": Value("binary"), "path": Value("string")}, "label": Value("int64")})
    rows = Dataset.from_dict({"audio": [{"bytes": file, "path": path} for file in files], "label": labels}, stored)
    return rows.cast_column("audio", Audio()).cast_column("label", ClassLabel(names=CLASSES))


def write_data_set(folder: Path, counts: dict[str, int], **how: Any) -> None:
    """Write splits of sounds, each class in turn, WAV and FLAC."""
    splits = {}
    for seed, (split, count) in enumerate(counts.items()):
        files = [encoded(sound, ("WAV", "FLAC")[place % 2]) for place, sound in enumerate(sounds(count, seed, **how))]
        splits[split] = data_set(files, [place % len(CLASSES) for place in range(count)])
    DatasetDict(splits).save_to_disk(folder)
