"""Sign a comparison with your own keys, and check the signatures, all offline.

The record (dvc.lock, ledgers, environments, report) and each merge get an in-toto statement in a DSSE envelope, with
SLSA's provenance predicate for their origin. Each merge also gets a signature of OpenSSF's model-signing, which anybody
can check without Merganser.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.disk import sync_file_systems, sync_names
from dvcfleet.errors import in_one_line, some
from dvcfleet.lineage.contents import digest_of
from dvcfleet.lineage.steps import Artifact, Finding, Lineage, LineageStep
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.record.environments import CHANGES, ENVIRONMENTS
from dvcfleet.record.ledger import LEDGER, LEDGERS
from dvcfleet.repository import STATE_FOLDER, opened
from dvcfleet.terminal.secrets import masked
from merganser.errors import MALFORMED, InputError
from merganser.flows.evidence.findings import DifferenceKind
from merganser.limits import parse_json, read_small
from merganser.outputs import fresh_folder
from merganser.tasks.stages import MERGED, REPORT

if TYPE_CHECKING:  # archives need no keys, nor what the extra `signing` brings
    from merganser.flows.evidence.keys import PrivateKey, PublicKey


PREDICATE = "https://slsa.dev/provenance/v1"
# What a stage's command and parameters mean.
_BUILD = "https://dvc.org/doc/user-guide/project-structure/dvcyaml-files"


def statement(subjects: Mapping[str, str], lineage: Lineage, steps: Sequence[LineageStep]) -> bytes:
    """Return the statement that stages made files; `subjects`: sha256 by path.

    The dependencies are the stages' inputs, git's commit, and each source's revision and checksums. Raises
    ValueError if in-toto's own check fails.
    """
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    predicate = json_format.ParseDict(_plain(_predicate(lineage, steps)), Provenance())
    files = [ResourceDescriptor(name=name, digest={"sha256": digest}).pb for name, digest in subjects.items()]
    made = Statement(files, PREDICATE, json_format.MessageToDict(predicate))
    made.validate()
    return json_format.MessageToJson(made.pb, indent=None, sort_keys=True).encode()


def read_subjects(payload: bytes) -> dict[str, str]:
    """Return the sha256 of each file in a statement; raise ValueError if it is not one of ours."""
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement import Statement

    parsed = Statement([], PREDICATE, {})
    try:
        json_format.Parse(payload, parsed.pb)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error
    parsed.validate()
    if parsed.pb.predicate_type != PREDICATE:
        raise ValueError(f"a statement of another kind: {parsed.pb.predicate_type}")
    return {each.name: each.digest["sha256"] for each in parsed.pb.subject}


def _predicate(lineage: Lineage, steps: Sequence[LineageStep]) -> dict[str, Any]:
    ran = [step.execution for step in steps if step.execution]
    times = (
        {"startedOn": min(each.began for each in ran), "finishedOn": max(each.ended for each in ran).isoformat()}
        if ran
        else {}
    )
    environments = dict.fromkeys(each.environment for each in ran)
    parameters = {step.stage: {"command": step.commands, "parameters": step.params} for step in steps}
    return {
        "buildDefinition": {
            "buildType": _BUILD,
            "externalParameters": parameters,
            "resolvedDependencies": list(_dependencies(lineage, steps)),
        },
        "runDetails": {
            "builder": {"id": "pkg:pypi/merganser", "version": {"merganser": version("merganser")}},
            "metadata": {"invocationId": ", ".join(dict.fromkeys(each.run for each in ran)), **times},
            "byproducts": [
                {"name": f"{STATE_FOLDER}/{ENVIRONMENTS}/{digest}.json", "digest": {"sha256": digest}}
                for digest in environments
            ],
        },
    }


def _dependencies(lineage: Lineage, steps: Sequence[LineageStep]) -> Iterator[dict[str, Any]]:
    """Describe the stages' inputs, and the code and sources of these stages and of all stages before them."""
    before = list(_before(lineage, [step.stage for step in steps]))
    commits = dict.fromkeys(step.execution.commit for step in before if step.execution and step.execution.commit)
    yield from ({"uri": "git+file:.", "digest": {"gitCommit": commit}} for commit in commits)
    read = [item for step in steps for item in step.inputs if item.kind == "data"]
    read += [item for step in before for item in step.inputs if item.kind != "data"]
    yield from ({"name": item.path, "digest": _digest(item)} for item in dict.fromkeys(read) if item.hash)
    for origin in (origin for step in before for origin in step.origins):
        uri = f"{origin.details.get('hub', origin.source)}@{origin.revision or 'unpinned'}"
        for name, file in origin.files.items():
            yield {"uri": uri, "name": f"{origin.path}/{name}", "digest": {"sha256": file["sha256"]}}


def _before(lineage: Lineage, names: Iterable[str]) -> Iterator[LineageStep]:
    """Yield the stages of these names and all stages before them, each once."""
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name not in seen and (step := lineage.steps.get(name)):
            seen.add(name)
            todo += step.needs
            yield step


def _digest(item: Artifact) -> dict[str, str]:
    """Return a digest by kind; a folder's is that of DVC's list of its files."""
    value, _, folder = (item.hash or "").partition(".")
    return {"dvcDirectory" if folder else "md5": value}


def _plain(content: Any) -> dict[str, Any]:
    """Return a value as JSON stores it, with credentials masked."""
    plain: dict[str, Any] = json.loads(masked(json.dumps(content, default=str)))
    return plain


SIGNATURES = Path("signatures")
PAYLOAD = "application/vnd.in-toto+json"
LARGEST = 64 * 2**20  # bytes of a signature: a statement about a merge names each of its files
RECORDED = (
    *map(Path, ("params.yaml", "dvc.yaml", "dvc.lock", f"{STATE_FOLDER}/{LEDGER}")),
    *(Path(STATE_FOLDER, name) for name in (LEDGERS, ENVIRONMENTS, CHANGES)),
    REPORT,
)


@dataclass(frozen=True)
class _Signed:
    """A statement: the file of its envelope, the files that it covers, and the stages that made them."""

    envelope: Path
    files: tuple[Path, ...]
    steps: tuple[LineageStep, ...]

    def digests(self) -> dict[str, str]:
        """Return the sha256 of each file."""
        return {path.as_posix(): digest_of(path, "sha256") for path in self.files}


def sign(repo: Path, key: "PrivateKey", model_key: "PrivateKey | None") -> str:
    """Sign a comparison and its merges again, in the folder `signatures`; say what was signed.

    `model_key` is for model-signing, which only accepts keys on a curve.
    """
    from securesystemslib.dsse import Envelope

    with opened(repo) as dvc_repo:
        lineage = read_lineage(dvc_repo)
        merges = _merges(lineage)
        with fresh_folder(SIGNATURES) as folder:
            for signed in _to_sign(lineage, merges):
                envelope = Envelope(statement(signed.digests(), lineage, signed.steps), PAYLOAD, {})
                envelope.sign(key.signer)
                place = folder / signed.envelope.relative_to(SIGNATURES)
                place.parent.mkdir(exist_ok=True)
                place.write_text(json.dumps(envelope.to_dict(), indent=1) + "\n", encoding="utf-8")
            if model_key:
                _sign_models(merges, model_key, folder)
            sync_file_systems([folder])  # before it replaces the previous one
        sync_names(SIGNATURES.parent)
    models = f"{len(merges)} by model-signing too" if model_key else "none by model-signing, which takes keys on P-256"
    return f"signed in {SIGNATURES}: the record and {len(merges)} merges, {models}"


def check_signatures(
    repo: Path, key: "PublicKey", model_key: "PublicKey | None", known: Collection[str] = ()
) -> tuple[list[Finding], list[str]]:
    """Compare a comparison with its signed state; return the differences, and what was compared in words.

    `known`: files that are already known to differ, which get no second finding.
    """
    with opened(repo) as dvc_repo:
        lineage = read_lineage(dvc_repo)
        merges = _merges(lineage)
        findings = [fault for signed in _to_sign(lineage, merges) for fault in _check_statement(signed, key, known)]
        if model_key:
            changed = {stage for fault in findings if fault.kind is DifferenceKind.SIGNED for stage in fault.stages}
            same = {entry: step for entry, step in merges.items() if step.stage not in changed}
            findings += _check_models(same, model_key, known)
    models = f"{len(merges)} by model-signing too" if model_key else "none by model-signing"
    return findings, [f"signatures of the record and {len(merges)} merges, {models}"]


def _merges(lineage: Lineage) -> dict[str, LineageStep]:
    """Return the stage of each merge by entry."""
    made = [(Path(item.path), step) for step in lineage.steps.values() for item in step.outputs]
    return {path.name: step for path, step in made if path.parent == MERGED and path.is_dir()}


def _to_sign(lineage: Lineage, merges: Mapping[str, LineageStep]) -> Iterator[_Signed]:
    if not lineage.steps:
        raise InputError("nothing has run yet: there is nothing to sign")
    yield _Signed(SIGNATURES / "record.intoto.json", tuple(files_below(RECORDED)), tuple(lineage.steps.values()))
    for entry, step in merges.items():
        yield _Signed(SIGNATURES / f"merges/{entry}.intoto.json", tuple(files_below([MERGED / entry])), (step,))


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    """List these files, and those in these folders; missing paths give nothing."""
    for path in paths:
        yield from [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def _check_statement(signed: _Signed, key: "PublicKey", known: Collection[str]) -> Iterator[Finding]:
    """Compare files with the statement about them: this key signed it, and the files have not changed."""
    stages = tuple(step.stage for step in signed.steps) if len(signed.steps) == 1 else ()
    try:
        noted = _noted(signed.envelope, key)
    except InputError as error:
        yield Finding(DifferenceKind.SIGNATURE, str(signed.envelope), str(error), stages)
        return
    now = signed.digests()
    changed = [name for name in sorted(noted.keys() | now.keys()) if noted.get(name) != now.get(name)]
    if changed := [name for name in changed if name not in known]:
        message = (
            f"{signed.envelope} lists other files or sha256; if you know why, `merganser lineage sign` signs again"
        )
        yield Finding(DifferenceKind.SIGNED, some(changed), message, stages)


def _noted(envelope: Path, key: "PublicKey") -> dict[str, str]:
    """Return the sha256 of each file in a statement that this key signed; raise InputError if there is none."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error

    try:
        parsed = Envelope.from_dict(read_signature(envelope))
        parsed.verify([key.key], 1)
        if parsed.payload_type != PAYLOAD:
            raise ValueError(f"an envelope of {parsed.payload_type}")
        return read_subjects(parsed.payload)
    except Error as error:
        raise InputError(f"not signed by {key.path.name}, or changed since") from error
    except InputError:
        raise
    except (*MALFORMED, RecursionError) as error:
        raise InputError(f"not a signed statement: {in_one_line(error)}") from error


def read_signature(path: Path) -> Any:
    """Read the JSON of a signature, which anybody may have written; raise InputError if it is missing or malformed."""
    if not path.is_file():
        raise InputError("it is not there: `merganser lineage sign` writes it")
    try:
        return parse_json(read_small(path, LARGEST))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"not JSON: {in_one_line(error)}") from error


def _signature(folder: Path, entry: str) -> Path:
    return folder / "merges" / f"{entry}.sig"


def _sign_models(merges: Iterable[str], key: "PrivateKey", folder: Path) -> None:
    from model_signing import hashing, signing

    # DVC may have linked the merge's files to its cache.
    config = signing.Config().set_hashing_config(hashing.Config().set_allow_symlinks(True))
    # Its annotation says text, which cryptography beneath it refuses.
    config.use_elliptic_key_signer(private_key=key.path, password=key.password)  # type: ignore[arg-type]
    for entry in merges:
        config.sign(MERGED / entry, _signature(folder, entry))


def _check_models(merges: Mapping[str, LineageStep], key: "PublicKey", known: Collection[str]) -> Iterator[Finding]:
    """Check the models' signatures as `model_signing verify` does."""
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    for entry, step in merges.items():
        path = _signature(SIGNATURES, entry)
        try:
            read_signature(path)
            verifying.Config().use_elliptic_key_verifier(public_key=key.path).verify(MERGED / entry, path)
        except InputError as error:
            message = str(error)
        except InvalidSignature:
            message = f"not signed by {key.path.name}, or changed since"
        except (*MALFORMED, RecursionError):
            message = f"by model-signing {key.path.name} did not sign these files"
        else:
            continue
        if not any(Path(name).is_relative_to(MERGED / entry) for name in known):
            yield Finding(DifferenceKind.SIGNATURE, str(path), message, (step.stage,))
