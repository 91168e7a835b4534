"""The tokenizer and the chat template of a language model's folder."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from merganser.checkpoints.architecture import read_object

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.*", "merges.txt", "*.tiktoken")
LIMIT = 2**25  # bytes: a tokenizer's configuration lists its added tokens


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: its class if known, its files, and the file with the chat template if there is one."""

    kind: str | None
    files: tuple[str, ...]
    template: str | None


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Read the tokenizer of a folder; None if it has none, or is not a folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    vocabularies = [name for name in names if any(fnmatchcase(name, pattern) for pattern in VOCABULARIES)]
    settings = read_object(folder / CONFIG, LIMIT) or {}
    if not vocabularies:
        return None
    others = [name for name in (CONFIG, TEMPLATE) if name in names]
    inside = CONFIG if settings.get("chat_template") else None
    kind = settings.get("tokenizer_class")
    return Tokenizer(str(kind) if kind else None, (*vocabularies, *others), TEMPLATE if TEMPLATE in names else inside)
