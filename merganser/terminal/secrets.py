"""Keep credentials and terminal control characters out of all output: messages, logs, reports, records."""

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from urllib.parse import quote

MASK = "***"
_Replacement = str | Callable[[re.Match[str]], str]
SHORTEST = 8  # characters of a variable's value: shorter ones occur in ordinary words
_NAMES = r"token|passw(?:or)?d|passphrase|secret|(?:api|access|secret|private)[_-]?key|auth[_-]?string|signature"
_VARIABLE = re.compile(rf"(?i)(?:^|_)(?:{_NAMES}|connection_string)$|password$")
# What a name in the settings of a model or tokenizer has before `token`: `pad_token`, `end_of_image_token`.
_OF_A_TOKENIZER = re.compile(
    r"(?i)(?:^|[\W_])(?:pad|eos|bos|unk|sep|cls|mask|class|image|img|video|audio|vision|start|end|begin|stop|newline|break"
    r"|placeholder|patch|prefix|suffix|middle|special|separator|delimiter|lang|blank|speaker|[be]o[a-z]|tile|global|additional)[_-]?$"
)
_CREDENTIALS = re.compile(r"(?i)(?:auth|access|api|refresh|session|bearer|secret|private|hub|hf|id)[_-]?$")
_SPECIAL = re.compile(r"(?i)<[^<>]+>|\[[A-Z_0-9]+\]?|true|false|none|null")  # a special token, or none
_LONGEST_NAME = 60


def _unless_of_a_tokenizer(match: re.Match[str]) -> str:
    """Mask a credential's value; keep a tokenizer's special tokens, whose names also end in `token`."""
    name = f"{match.string[max(0, match.start() - _LONGEST_NAME) : match.start()]}{match[1]}".rstrip("\"'=: \t\n")
    before, ending = name[:-5], name[-5:].lower()
    if ending == "token" and (_OF_A_TOKENIZER.search(before) or _is_special(before, match[2])):
        return match[0]
    return f"{match[1]}{MASK}"


def _is_special(before: str, value: str) -> bool:
    """Tell whether a value is a special token, or its number; `before`: the part of its name before `token`."""
    is_named = bool(re.search(r"\w[_-]?$", before)) and not _CREDENTIALS.search(before)
    return bool(_SPECIAL.fullmatch(value.rstrip(",;"))) or (is_named and value.isdecimal() and len(value) <= 7)


# Patterns and their replacements.
_SHAPES: tuple[tuple[str, _Replacement], ...] = (
    (r"://[^\s/]+@", f"://{MASK}@"),  # user and password of an address
    (r":/[^\s/:]+:[^\s/]+@", f":/{MASK}@"),  # the same, once it was taken for a path
    (rf"(?i)((?:{_NAMES}|credential|[?&]sig)=[\"']?)([^\s&;,\"']+)", _unless_of_a_tokenizer),
    (rf"(?i)([\"'](?:[\w-]*(?:{_NAMES}))[\"']\s*:\s*[\"'])([^\"']+)", _unless_of_a_tokenizer),
    (rf"(?i)(--[\w-]*(?:{_NAMES})\s+)(\S+)", _unless_of_a_tokenizer),
    (r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)(?:\w+\s+)?[^\s\"']+", rf"\1{MASK}"),
    (r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}", rf"\1{MASK}"),
    (r"\bhf_(?=[\w-]*[A-Z])[\w-]{16,}", MASK),  # not `hf_model_pretrained`, and the like
    (r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-|pnu_|pnb_)[\w-]{16,}", MASK),
    (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", MASK),
    (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+", MASK),  # a JSON web token
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
)
# In lower case: what each of the patterns finds holds one of these.
_HINTS = (
    *(":/", "token", "passw", "passphrase", "secret", "signature", "credential", "sig=", "bearer"),
    *("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-", "pnu_", "pnb_"),
    *("akia", "asia", "eyj", "apikey", "api_key", "api-key", "accesskey", "access_key", "access-key", "private"),
    *("authorization", "authstring", "auth_string", "auth-string"),
)
LONGEST_KEY = 200  # lines


def masked(text: str) -> str:
    """Replace credentials by ***.

    These are credentials in addresses, headers and assignments, those of a known shape, and the values of variables
    like `..._TOKEN` or `..._PASSWORD` in this process's environment at the first call.
    """
    if not may_hold_credential(text):
        return text
    for pattern, left in _patterns():
        text = pattern.sub(left, text)
    return text


class LineMask:
    """Mask credentials in text that arrives in blocks of lines, each line as by `masked`.

    It also masks all lines of a private key, of which `masked` sees only the first.
    """

    def __init__(self) -> None:
        self._key_lines = 0  # how many more lines may belong to a key

    def masked(self, lines: str) -> str:
        """Return a block's lines, masked."""
        if not self._key_lines and not may_hold_credential(lines):
            return lines
        return "\n".join(map(self._line, lines.split("\n")))

    def _line(self, line: str) -> str:
        if self._key_lines:
            self._key_lines = 0 if "-----END " in line else self._key_lines - 1
            return MASK
        if "PRIVATE KEY-----" in line and "-----BEGIN " in line and "-----END " not in line:
            self._key_lines = LONGEST_KEY
        return masked(line)


def may_hold_credential(text: str) -> bool:
    """Tell whether text may hold a credential: a test that is much faster than the patterns."""
    lower = text.lower()
    return any(hint in lower for hint in _HINTS) or any(value in text for value in _own_values())


def printable(text: str) -> str:
    """Escape control characters, lone surrogates and the like, except newlines and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def say(*lines: object) -> None:
    """Print lines with names of any origin, without credentials and terminal control characters."""
    for line in lines:
        print(printable(masked(str(line))))


@cache
def _own_values() -> list[str]:
    return _values(os.environ)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], _Replacement], ...]:
    own = "|".join(re.escape(value) for value in _own_values())
    shapes: tuple[tuple[str, _Replacement], ...] = ((own, MASK), *_SHAPES) if own else _SHAPES
    return tuple((re.compile(pattern, re.DOTALL), left) for pattern, left in shapes)


def _values(variables: Mapping[str, str]) -> list[str]:
    """List the secret values, longest first: of variables named like secrets, and passwords in addresses."""
    values: set[str] = set()
    for name, value in variables.items():
        address = re.search(r"://[^\s/:@]*:([^\s/]+)@", value)
        is_credential = _VARIABLE.search(name) and not _OF_A_TOKENIZER.search(re.sub("(?i)token$", "", name))
        parts = value.splitlines() if is_credential else [address[1]] if address else []
        values |= {form for part in parts for form in (part, quote(part, safe=""))}
    return sorted((value for value in values if len(value) >= SHORTEST), key=lambda value: (-len(value), value))
