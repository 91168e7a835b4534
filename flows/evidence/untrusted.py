"""Files that a stranger may have written: descriptions of sources, and the inputs of reports."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dvcfleet.errors import FailedError, UserError, in_one_line
from dvcfleet.lineage.steps import Finding, FindingKind
from merganser.errors import InputError


def is_description(content: Mapping[str, Any]) -> bool:
    """Tell whether a `source.json` has a source, and the sha256 of files in its folder."""
    files, group = content.get("files"), content.get("group", {})
    return (
        isinstance(files, dict)
        and isinstance(group, dict)
        and {"source", "kind"} <= content.keys()
        and all(isinstance(content.get(word), str | None) for word in ("source", "kind", "revision", "version"))
        and all(isinstance(file, dict) and isinstance(file.get("sha256"), str) for file in files.values())
        and not any({"", ".", ".."} & {*name.split("/")} for name in files)
        and all(isinstance(one, dict) and {"hub", "revision"} <= one.keys() for one in group.values())
    )


def compare_untrusted(name: Path, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a comparison with computed results; if its inputs make it fail, that is a finding.

    `name`: the folder that is compared.
    """
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except (InputError, UserError, FailedError, OSError, MemoryError):
        raise
    except Exception as error:  # files of any form, of which code that computes from them may say anything
        message = f"cannot be compared: its inputs are not as stages write them ({in_one_line(error)})"
        findings.append(Finding(FindingKind.CHANGED, str(name), message))
    return findings
