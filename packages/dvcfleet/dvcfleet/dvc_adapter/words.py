"""Say what to do about DVC's errors on damaged files: DVC itself names the file or the fault only."""

import re
from collections.abc import Iterable
from typing import Any

from dvcfleet.errors import in_one_line, some
from dvcfleet.terminal.failures import is_a

_PARSING = "dvc.utils.serialize._common.ParseError"
_PARAMETERS = "dvc.dependency.param.BadParamFileError"
_INVALID = "dvc.utils.strictyaml.YAMLValidationError"
_OF_FILES = (
    _INVALID,
    "dvc.utils.strictyaml.YAMLSyntaxError",
    _PARSING,
    "dvc.exceptions.EncodingError",
    "dvc.stage.exceptions.StageFileIsNotDvcFileError",
    "dvc.dvcfile.LockfileCorruptedError",
)


def with_cause(error: BaseException) -> str:
    """Return what an error says, on one line; of a file that cannot be read also the line, and what is wrong there.

    DVC's command line prints these below the message.
    """
    text, cause = in_one_line(error), error.__cause__
    if is_a(error, _INVALID):
        return f"{text} ({some(list(_invalid(error)))})"
    if cause is None or not is_a(error, _PARSING, _PARAMETERS):
        return text
    mark = getattr(cause, "problem_mark", None)  # of an error of the YAML library's
    where = f"line {mark.line + 1}, column {mark.column + 1}: {getattr(cause, 'problem', '')}" if mark else ""
    return f"{text} ({where or with_cause(cause)})"


def _invalid(error: Any) -> Iterable[str]:
    """Say what is wrong with the values of a file whose form is right."""
    from dvc.utils.serialize import parse_yaml_for_update

    content = parse_yaml_for_update(error.text, error.path)
    for each in error.exc.errors:
        keys = ".".join(map(str, each.path))
        yield f"line {_line(content, each.path)}, {keys}: {each.error_message}" if keys else each.error_message


def _line(content: Any, keys: Iterable[Any]) -> int:
    """Return the line on which the value at these keys begins, or the last of the keys that is there."""
    line = 0
    for key in keys:
        try:
            line = content.lc.data[key][0]
            content = content[key]
        except (AttributeError, LookupError, TypeError):
            break
    return line + 1


def words_of(error: Exception) -> str:
    """Return the message of an exception of DVC's, with the file and what to do where DVC does not say it."""
    text = with_cause(error) if is_a(error, _PARSING, _PARAMETERS, _INVALID) else str(error)
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
