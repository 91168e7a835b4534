"""Say what to do about DVC's errors on damaged files: DVC itself names the file or the fault only."""

import re

from dvcfleet.failures import is_a

_OF_FILES = (
    "dvc.utils.strictyaml.YAMLValidationError",
    "dvc.utils.strictyaml.YAMLSyntaxError",
    "dvc.utils.serialize._common.ParseError",
    "dvc.exceptions.EncodingError",
    "dvc.stage.exceptions.StageFileIsNotDvcFileError",
    "dvc.dvcfile.LockfileCorruptedError",
)


def words_of(error: Exception) -> str:
    """Return the message of an exception of DVC's, with the file and what to do where DVC does not say it."""
    text = str(error)
    if is_a(error, "dvc.config.ConfigError"):
        return f"{text} (in .dvc/config, .dvc/config.local, or the configuration of DVC in your home)"
    if text.endswith("is not a git repository"):
        return f"{text}; `git init` makes it one, or `dvc config core.no_scm true` has DVC work without git"
    found = re.search(r"[^\s'\"]*dvc\.lock", text) if is_a(error, *_OF_FILES) else None
    if not found:
        return text
    path = found[0].removeprefix("./")
    return (
        f"{text}: it is damaged; `git checkout {path}` brings back the last one that was committed, "
        "or remove it: stages whose results are in DVC's cache are restored"
    )
