"""No credential stays in what is said, and nothing that a terminal would obey."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from dvcfleet.errors import UserError
from dvcfleet.terminal import secrets
from dvcfleet.terminal.secrets import masked, printable

PASSWORD = "correct-horse/battery"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    monkeypatch.setenv("TRACKING_URI", "https://somebody:opensesame@host/path")
    monkeypatch.setenv("SOME_TOKEN", "true")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false-but-long")
    _read_variables_again()
    yield  # type: ignore[misc]
    _read_variables_again()


def _read_variables_again() -> None:
    secrets._own_values.cache_clear()
    secrets._patterns.cache_clear()


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("cannot reach https://me:pass@host:80/path", "cannot reach https://***@host:80/path"),
        ("https:/me:pass@host/x: no such file", "https:/***@host/x: no such file"),
        ("cannot reach https://ghp_0123@host/path", "cannot reach https://***@host/path"),
        ("s3://key:se@cret@bucket and more", "s3://***@bucket and more"),
        ("GET /x?page=2&access_token=abc&z=1", "GET /x?page=2&access_token=***&z=1"),
        ("GET /x?X-Amz-Credential=a/b&X-Amz-Signature=0f0f", "GET /x?X-Amz-Credential=***&X-Amz-Signature=***"),
        ("GET /x?sig=abc%3D", "GET /x?sig=***"),
        ("MY_API_KEY='abc' python x.py", "MY_API_KEY='***' python x.py"),
        ('{"password": "abc", "user": "me"}', '{"password": "***", "user": "me"}'),
        ("tool --auth-token abc --out x", "tool --auth-token *** --out x"),
        ("Authorization: Basic YWJjOmRlZg==", "Authorization: ***"),
        ("{'authorization': 'Bearer abc.def'}", "{'authorization': '***'}"),
        ("sent Bearer abcdefgh.ijkl", "sent Bearer ***"),
        ("the token hf_AbCdEfGhIjKlMnOpQr is wrong", "the token *** is wrong"),
        ("ghp_0123456789abcdef0123", "***"),
        ('token="hub-secret"', 'token="***"'),
        ('{"hub_token": "0123456", "auth_token": "12"}', '{"hub_token": "***", "auth_token": "***"}'),
        ("WANDB_TOKEN=abcdef0123 MY_TOKEN='x'", "WANDB_TOKEN=*** MY_TOKEN='***'"),
        ("new_token=abc refresh_token=12 friend_token=abc", "new_token=*** refresh_token=*** friend_token=***"),
        ("--api-key abc --hub-token 123", "--api-key *** --hub-token ***"),
        ('"api_key": "abc", "pad_token": "[PAD]"', '"api_key": "***", "pad_token": "[PAD]"'),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        (f"tried {PASSWORD}, and again", "tried ***, and again"),
        ("tried correct-horse%2Fbattery", "tried ***"),
        ("the store says opensesame is wrong", "the store says *** is wrong"),
    ],
)
def test_a_credential_is_masked_and_the_rest_stays(said: str, left: str) -> None:
    assert masked(said) == left
    assert masked(left) == left


@pytest.mark.parametrize(
    "said",
    [
        "methods.ties.density: Input should be less than or equal to 1, got 1.4",
        "http://127.0.0.1:4200/api and sqlite:////srv/mlflow.db",
        "true, and false-but-long",
        "merganser merge ties --base base --model a=x/model.safetensors --set density=0.2",
        "text.token_embedding.weight and visual.class_embedding@2",
        "max_tokens=5, tokenizer=bpe",
        "git@github.com:org/name.git",
        """pad_token="[PAD]", eos_token='</s>', --mask-token [MASK], {'image_token': '<image>', "bos_token": "!"}""",
        "hf_model_pretrained=True, hf_hub_download_kwargs=x, tokens_per_token=4, use_cls_token=True, start_token=abc",
    ],
)
def test_what_is_no_credential_stays(said: str) -> None:
    assert masked(said) == said


def test_a_message_to_the_user_shows_no_credential_and_commands_no_terminal() -> None:
    said = str(UserError(f"a\x1b[2Jb: {PASSWORD}\n\tnext \ud800 é"))
    assert said == "a\\x1b[2Jb: ***\n\tnext \\ud800 é"
    said.encode()


def test_escapes_keep_lines_and_letters() -> None:
    assert printable("é ж\n\t✓") == "é ж\n\t✓"
    assert printable("\r\b\x9b\u202e") == "\\r\\x08\\x9b\\u202e"


_DEFAULT = re.compile(r"""\b(\w*token)\s*(?::[^=\n]{0,60})?=\s*"([^"\s&;,\\']+)"(?! *[%.\[])""")
# Files of transformers whose words real models' config.json, tokenizer_config.json and generation_config.json have.
_SETTINGS = ("configuration_*.py", "tokenization_*.py", "processing_*.py")


def _settings() -> Iterator[tuple[str, str]]:
    """Give the names of settings in transformers' code, and for special tokens their defaults; others get a number."""
    root = Path(str(transformers.__file__)).parent
    for path in (path for pattern in _SETTINGS for path in root.rglob(pattern)):
        text = path.read_text(encoding="utf-8")
        yield from _DEFAULT.findall(text)
        yield from ((name, "12") for name in re.findall(r"\b([a-z]\w*)\s*(?::[^=\n]{0,60})?=", text) if name != "token")


def test_no_setting_of_a_model_or_tokenizer_is_taken_for_a_credential() -> None:
    known = {pair for pair in _settings() if not pair[0].endswith(("hub_token", "hf_token", "api_key"))}
    assert len({name for name, _ in known}) > 5000
    assert {("pad_token", "[PAD]"), ("eos_token", "</s>"), ("num_key_value_heads", "12")} <= known
    for form in ('{}="{}"', "{}={}", '"{}": "{}"', "--{} {}"):
        text = "\n".join(form.format(*pair) for pair in sorted(known))
        kept = masked(text)
        assert [line for line, left in zip(text.split("\n"), kept.split("\n"), strict=True) if line != left] == []
