"""Keys of signatures, as PEM files: private ones sign, public ones check."""

from collections.abc import Callable
from getpass import getpass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.signer import CryptoSigner, Signer, SSlibKey

from merganser.errors import InputError

_MAKE = "`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem` makes one"
_EXPORT = "`openssl pkey -in key.pem -pubout -out key.pub` writes that of a private one"
_CURVES = ("secp256r1", "secp384r1", "secp521r1")  # model-signing's


class PrivateKey:
    """A private key; asks for the password of an encrypted one. Raises InputError if it is not a private key."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.password: bytes | None = None
        try:
            key = self._read()
        except TypeError:  # it is encrypted
            self.password = getpass(f"password of {path}: ").encode()
            key = self._read()
        self.is_for_models = _is_on_curve(key)
        self.signer: Signer = _known(path, CryptoSigner, key)

    def _read(self) -> Any:
        what = f"no private key in PEM that this password opens; {_MAKE}"
        return _loaded(self.path, what, lambda content: load_pem_private_key(content, self.password))


class PublicKey:
    """A public key. Raises InputError if it is not one."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        key = _loaded(path, f"no public key in PEM; {_EXPORT}", load_pem_public_key)
        self.is_for_models = _is_on_curve(key)
        self.key: SSlibKey = _known(path, SSlibKey.from_crypto, key)


def _loaded(path: Path, what: str, load: Callable[[bytes], Any]) -> Any:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: {what}") from error


def _is_on_curve(key: Any) -> bool:
    """Tell whether model-signing accepts a key."""
    return isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) and key.curve.name in _CURVES


def _known(path: Path, make: Callable[[Any], Any], key: Any) -> Any:
    try:
        return make(key)
    except ValueError as error:
        raise InputError(f"{path}: a key of a kind that is not known here; take ed25519, or one on P-256") from error
