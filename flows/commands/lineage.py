"""`merganser lineage`: where a result comes from, and whether anything has changed since."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from dvcfleet.command_line import JsonOption, RepoOption
from dvcfleet.repository import root_around
from dvcfleet.terminal.secrets import masked, printable
from merganser.command_line.app import example
from merganser.errors import InputError, some

if TYPE_CHECKING:
    from dvcfleet.lineage.audit import Audit
    from dvcfleet.lineage.rerun import Rerun
    from dvcfleet.lineage.steps import Finding, Lineage
    from dvcfleet.record.chain import Anchor
    from merganser.flows.evidence.keys import PrivateKey, PublicKey

Key = TypeVar("Key", "PrivateKey", "PublicKey")
app = typer.Typer(
    help="Trace results to their sources, and verify that nothing has changed since.", no_args_is_help=True
)

_ABOUT_TARGET = "A stage, an output or a file in it, an MLflow run ID, or a cell of the report (ENTRY/COLUMN)."


@app.command(epilog=example("merganser lineage show ties/digits"))
def show(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_ABOUT_TARGET)],
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Show the lineage of a result, stage by stage, down to each checkpoint's source, revision and checksum."""
    from dvcfleet.lineage import show
    from dvcfleet.lineage.audit import look_up

    resolved, lineage = look_up(repo, target)
    say(show.lineage_json(resolved, lineage), show.as_lines(resolved, lineage), as_json)


@app.command(epilog=example("merganser lineage why ties/digits"))
def why(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_ABOUT_TARGET)],
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Explain a result in ten lines: command, parameters, sources, code, time, machine and user."""
    from dvcfleet.lineage.audit import look_up
    from dvcfleet.lineage.show import why, why_lines

    resolved, lineage = look_up(repo, target)
    gathered = why(resolved, lineage)
    say(asdict(gathered), why_lines(gathered, lineage), as_json)


@app.command(epilog=example("merganser lineage find org/model"))
def find(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="A hash or the beginning of one, a path, a source, a package or PACKAGE==VERSION."
        ),
    ],
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Find all results that depend on a hash, path, source or package. Paths and sources may be patterns."""
    from dvcfleet.lineage.tree import dependents_lines, find_dependents, read_lineage
    from dvcfleet.repository import opened

    with opened(repo) as dvc_repo:
        dependents = find_dependents(read_lineage(dvc_repo), text)
    say(asdict(dependents), dependents_lines(dependents), as_json)


@app.command("diff", epilog=example("merganser lineage diff brave-otter workspace --of ties/digits"))
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A target, or a run as for `merganser diff`.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The target or run to compare with.")],
    of: Annotated[
        str | None, typer.Option(metavar="TARGET", help="The result to compare in two runs; all if not given.")
    ] = None,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Compare the lineages of two results, or of one in two runs. Shows which differences reached them."""
    from merganser.flows.evidence.runs.diff import diff_lineages
    from merganser.flows.evidence.runs.printing import lineage_diff_lines

    difference = diff_lineages(repo, first, second, of)
    say(asdict(difference), lineage_diff_lines(difference), as_json)


def say(content: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print an answer as text or as JSON, with credentials masked."""
    if as_json:
        print(masked(json.dumps(content, indent=2, default=str)))
    else:
        for line in lines:
            print(printable(masked(line)))


@app.command(epilog=example("merganser lineage verify merge@ties --rerun"))
def verify(
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help=f"{_ABOUT_TARGET} Default: all.")] = None,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Also run all stages again in a scratch copy, and compare the bytes.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --rerun: where to run, a profile of profiles.yaml.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(
            help="With --rerun: compute on this device. If another is declared, compare scores within a tolerance."
        ),
    ] = None,
    signed_by: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Also check the signatures with this public key (PEM).")
    ] = None,
    models_signed_by: Annotated[
        Path | None, typer.Option(metavar="KEY", help="With --signed-by: the key for merges, if it differs.")
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Verify an archive instead of this folder."),
    ] = None,
    anchored: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Also check the ledger against a line of `merganser lineage anchor`."),
    ] = None,
    as_json: JsonOption = False,
    repo: RepoOption = Path(),
) -> None:
    """Read every byte again and report differences from the record. If there are none, say what was compared."""
    if (profile or device) and not rerun:
        raise InputError("--profile and --device are for --rerun")
    from dvcfleet.record.chain import parse_anchor

    if models_signed_by and not signed_by:
        raise InputError("--models-signed-by: it is for --signed-by")
    keys = None
    if signed_by:
        from merganser.flows.evidence.keys import PublicKey

        public = PublicKey(signed_by)
        keys = public, _key_for_models(public, models_signed_by)
    head = parse_anchor(anchored) if anchored is not None else None
    check = partial(_verified, target=target, again=(profile, device) if rerun else None, keys=keys, head=head)
    done = _verified_archive(archive, check) if archive else check(repo)
    if as_json:
        print(masked(json.dumps(asdict(done), indent=2)))
    else:
        for finding in done.findings:
            print(printable(masked(str(finding))))
        if not done.findings:
            print(printable(masked(_all_is_well(done))))
    if rerun and not done.run_again:
        print("not run again: first undo the changes, or run `merganser run`", file=sys.stderr)
    raise typer.Exit(1 if done.findings else 0)


def _verified(
    repo: Path,
    target: str | None,
    again: tuple[str | None, str | None] | None,
    keys: "tuple[PublicKey, PublicKey | None] | None",
    head: "Anchor | None",
    left_out: "Callable[[Lineage, str], bool] | None" = None,
) -> "Audit":
    """Audit a repository.

    `again`: the profile and the device by which stages also run again; `keys`: of signatures; `head`: the ledger's.
    """
    from dvcfleet.lineage.audit import audit
    from dvcfleet.lineage.rerun import RerunError

    try:
        done = audit(repo, target, _how(repo, *again) if again else None, left_out, head)
    except RerunError as error:
        raise InputError(f"{error}{_other_way(repo, again[1] if again else None)}") from error
    if keys:
        from merganser.flows.evidence.signing import check_signatures

        findings, also = check_signatures(repo, *keys, [finding.name for finding in done.findings])
        done = replace(done, findings=(*done.findings, *findings), also=(*done.also, *also))
    return done


def _verified_archive(path: Path, check: "Callable[..., Audit]") -> "Audit":
    """Audit an archive: its own bytes, and if these are as written, the comparison in it, in a scratch folder."""
    from dvcfleet.lineage.audit import Audit
    from dvcfleet.project import hooks_given
    from merganser.flows.comparison import MERGANSER
    from merganser.flows.evidence.archive.files import HOOKS, declared_hooks
    from merganser.flows.evidence.archive.restoring import check_archive, leaves_out, restored_archive

    if damage := check_archive(path):
        return Audit(tuple(damage), 0, 0, path.stat().st_size, 0.0, False)
    with restored_archive(path) as (folder, has_data, dropped):
        is_earlier = declared_hooks(folder) in HOOKS[1:]
        with hooks_given(folder, MERGANSER) if is_earlier else nullcontext():
            done = check(folder, left_out=leaves_out(has_data))
    without = () if has_data else ("no models and data, which the archive does not have",)
    ignored = (f"without {some(dropped)} of .dvc/config, which may lead elsewhere",) if dropped else ()
    return replace(done, also=(*done.also, *without, *ignored))


@app.command(epilog=example("merganser lineage anchor"))
def anchor(repo: RepoOption = Path()) -> None:
    """Print the ledger's head as one line. Keep it elsewhere: in a commit message, a mail, a timestamp service."""
    from dvcfleet.record.chain import anchor_of
    from dvcfleet.repository import STATE_FOLDER

    print(anchor_of(root_around(repo) / STATE_FOLDER))


@app.command(epilog=example("merganser lineage sign key.pem"))
def sign(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="A private key (PEM): ed25519 or P-256.")],
    model_key: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="A P-256 key to sign merges with model-signing, if KEY is another kind."),
    ] = None,
    repo: RepoOption = Path(),
) -> None:
    """Sign the record and each merge, if `verify` finds nothing: in-toto statements, model-signing signatures."""
    from dvcfleet.lineage.audit import audit
    from merganser.flows.evidence.keys import PrivateKey
    from merganser.flows.evidence.signing import sign

    private = PrivateKey(key)
    models = _key_for_models(private, model_key)
    refuse_changed(audit(repo).findings, "signed")
    print(sign(repo, private, models))


def refuse_changed(wrong: "Sequence[Finding]", what: str) -> None:
    """Raise InputError if an audit found something; `what`: what is not done with it."""
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise InputError(f"not {what}, as it differs from its record: {wrong[0]}{more}; see `merganser lineage verify`")


def _key_for_models(key: "Key", path: Path | None) -> "Key | None":
    """Return the key for model-signing: the one in a file if there is one, else the same key if it is on a curve."""
    models = type(key)(path) if path else key if key.is_for_models else None
    if models and not models.is_for_models:
        raise InputError(f"{path}: model-signing takes keys on P-256, P-384 and P-521")
    return models


def _all_is_well(done: "Audit") -> str:
    again = ", all of which ran again" if done.run_again else ""
    compared = [f"{done.stages} stages{again}", f"{done.files} files ({done.size / 1e6:.1f} MB)", *done.also]
    return f"nothing has changed: {', '.join(compared)}; times and memory are as observed"


def _how(repo: Path, profile: str | None, device: str | None) -> "Rerun":
    from dvcfleet.lineage.rerun import Rerun
    from merganser.flows.steps.devices import changes_for

    return Rerun(profile, changes_for(device, root_around(repo) / "params.yaml") if device else {})


def _other_way(repo: Path, device: str | None) -> str:
    """Name the command that reruns stages declared for a GPU on a machine without one."""
    from merganser.flows.steps.devices import declared_devices

    try:
        devices = declared_devices(root_around(repo) / "params.yaml").declared.values()
    except InputError:  # not a comparison
        return ""
    if device or "cuda" not in devices:
        return ""
    return "\nwithout a GPU: --rerun --device cpu computes on the CPU, and compares scores instead of bytes"


@app.command(epilog=example("merganser lineage export lineage.json"))
def export(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A new file: .json (W3C PROV-JSON), .jsonl (OpenLineage events) or .zip (RO-Crate). Or a new folder "
            "(RO-Crate).",
        ),
    ],
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help=f"{_ABOUT_TARGET} Default: all.")] = None,
    repo: RepoOption = Path(),
) -> None:
    """Export lineage as PROV-JSON, OpenLineage events or an RO-Crate."""
    from dvcfleet.lineage.export import exported
    from merganser.outputs import new_folder, new_output, refuse_existing, replacing

    refuse_existing(file)
    content, what = exported(repo, file, target)
    if callable(content):
        with new_folder(file) as folder:
            content(folder)
    else:
        with new_output(file) as place, replacing(place) as out:
            out.writelines(content)
    print(f"{what} in {file}")
