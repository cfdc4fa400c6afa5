"""Runs the commands of a kubeconfig that print a credential, with a time-out.

Speaks client.authentication.k8s.io/v1 and v1beta1. The command gets no terminal, because no user may be present.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.cluster.kubeconfig import ExecSpec
from colocate.cluster.secret import Secret
from colocate.errors import UserError, system_reason

SECONDS = 60.0
"""Seconds that a command may take. Some ask a distant server; none asks a person."""

_GROUP = "client.authentication.k8s.io"
_VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_SHOWN = 300


class Printed(msgspec.Struct, frozen=True):
    """The credential that a command printed. Valid until `expires`, in seconds since the epoch; None means
    forever."""

    token: Secret | None = None
    certificate: str = ""
    key: Secret | None = None
    expires: float | None = None


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Document(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: _Status | None = None


async def run(
    spec: ExecSpec, clock: Clock, environ: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> Printed:
    """Run the command once; UserError with a remedy where it prints no credential."""
    _check(spec)
    environ = dict(os.environ if environ is None else environ)
    environ |= {one.name: one.value for one in spec.env or ()}
    environ["KUBERNETES_EXEC_INFO"] = _info(spec)
    process = await _start(spec, environ)
    try:
        async with deadline(clock, seconds):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise UserError(
            f"{spec.place}: {spec.command} has not ended within {seconds:g} s; find out why it hangs"
        ) from None
    finally:
        await _end(process)
    if process.returncode != 0:
        said = " ".join(complaint[-_SHOWN:].decode("utf-8", "replace").split())
        raise UserError(
            f"{spec.place}: {spec.command} ended with {process.returncode}: {said or 'no output'}"
        )
    return _read(spec, output)


def _check(spec: ExecSpec) -> None:
    if spec.api_version not in _VERSIONS:
        raise UserError(
            f"{spec.place}.apiVersion is {spec.api_version!r}; {' and '.join(_VERSIONS)} are supported: "
            f"update the plugin and its kubeconfig"
        )
    if spec.interactive_mode == "Always":
        raise UserError(
            f"{spec.place}.interactiveMode is Always, but there is no terminal here; log in another way, such "
            "as with a token file"
        )


def _info(spec: ExecSpec) -> str:
    told: dict[str, object] = {"interactive": False}
    if spec.provide_cluster_info:
        told["cluster"] = spec.cluster
    document = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": told}
    return msgspec.json.encode(document).decode()


async def _start(spec: ExecSpec, environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    # With a slash, the command is a path relative to the kubeconfig's folder; without, it is searched in PATH.
    if "/" in spec.command:
        program: str | None = str(spec.folder / Path(spec.command).expanduser())
    else:
        program = shutil.which(spec.command, path=environ.get("PATH"))
    try:
        if program is None:
            raise FileNotFoundError
        return await asyncio.create_subprocess_exec(
            program,
            *(spec.args or ()),
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        why = system_reason(error) or "there is no such command"
        hint = f" ({' '.join(spec.install_hint.split())})" if spec.install_hint else ""
        raise UserError(f"{spec.place}: {spec.command} cannot be run: {why}; install it{hint}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        try:
            process.kill()
        except ProcessLookupError:
            pass
        await process.wait()


def _read(spec: ExecSpec, output: bytes) -> Printed:
    try:
        document = msgspec.json.decode(output, type=_Document)
    except (ValueError, RecursionError):
        # The output is not shown: it may be a token.
        raise UserError(
            f"{spec.place}: {spec.command} printed no ExecCredential; check its arguments"
        ) from None
    status = document.status
    if document.kind != "ExecCredential" or document.api_version != spec.api_version:
        raise UserError(
            f"{spec.place}: {spec.command} printed {document.kind or 'nothing'} of "
            f"{document.api_version or 'no version'}, not ExecCredential of {spec.api_version}"
        )
    if status is None or not (status.token or (status.client_certificate_data and status.client_key_data)):
        raise UserError(
            f"{spec.place}: {spec.command} printed neither a token nor a certificate with its key; "
            f"log in with it again"
        )
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return Printed(
        Secret(status.token) if status.token else None,
        status.client_certificate_data,
        Secret(status.client_key_data) if status.client_key_data else None,
        expires.timestamp() if expires else None,
    )
