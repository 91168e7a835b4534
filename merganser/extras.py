"""The libraries of each extra, which an installation without extras lacks."""

from collections.abc import Iterator
from contextlib import contextmanager

from merganser.errors import ExtraError

EXTRAS = {
    "PIL": "vision",
    "cmaes": "pipeline",
    "cryptography": "signing",
    "datasets": "text,vision",
    "dvc": "pipeline",
    "dvcfleet": "pipeline",
    "filelock": "pipeline",
    "in_toto_attestation": "signing",
    "latex2mathml": "pipeline",
    "lm_eval": "lm",
    "matplotlib": "pipeline",
    "mlflow": "pipeline",
    "model_signing": "signing",
    "nltk": "text",
    "open_clip": "vision",
    "pandas": "pandas",
    "peft": "adapters",
    "prefect": "pipeline",
    "prefect_dask": "dask",
    "prefect_ray": "ray",
    "pyarrow": "pipeline",
    "ray": "ray",
    "rouge_score": "text",
    "sacrebleu": "text",
    "securesystemslib": "signing",
    "sklearn": "pipeline",
    "soundfile": "audio",
    "timm": "vision",
    "tokenizers": "text",
    "torchvision": "vision",
    "transformers": "text",
    "uvicorn": "pipeline",
}


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise ExtraError with the extra to install if the block imports a missing library."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if isinstance(error, ExtraError) or library not in EXTRAS:
            raise
        raise lacking(library) from error


def lacking(library: str) -> ExtraError:
    """Return the error of a library of an extra that is not installed."""
    install = f"pip install 'merganser[{EXTRAS[library]}]'"
    return ExtraError(f"this needs {library}, which is not installed: {install}", name=library)
