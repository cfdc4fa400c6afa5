"""The keys by which this scheduler seals its bookings: of a file, or of a Secret that is made once in the cluster.

Agents mount the Secret. The first replica makes the key, and it stays there: it is in no manifest and in no log. The
Secret itself is made empty by the manifest with the rights: a right to create Secrets cannot be limited to a name,
and leads to the tokens of other accounts.
"""

import base64
import secrets as random

import msgspec

from colocate import telemetry
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError, Conflict, NotFound
from colocate.cluster.resources import SECRETS, Object
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.gpus.agent.key_file import KeyFile, keys_in
from colocate.scheduler.gpus.section import GpuKeySecret, GpuSection
from colocate.telemetry import GPU_UNSEALED, Event

_FIELD = "keys"
_ATTEMPTS = 4


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    data: dict[str, str] | None = None


class SealingKeys:
    """The keys as they are by now."""

    def __init__(self, settings: GpuSection, client: Client) -> None:
        self.keys = settings.keys()
        self.trouble = ""
        """Why bookings are not sealed, or the keys may be old ones; empty where all is well."""
        self._client = client
        self._secret = settings.key_secret
        self._file = KeyFile(settings.key_file) if settings.key_file is not None else None

    async def refresh(self) -> tuple[bytes, ...]:
        """Look again; the keys that were known stay where nothing better is found."""
        before = self.trouble
        if self._file is not None:
            self.keys, self.trouble = self._file.read() or self.keys, self._file.trouble
        elif self._secret.name:
            try:
                self.keys, self.trouble = await self._of_secret(self._secret), ""
            except (ClusterError, UserError) as error:
                self.trouble = (
                    f"the Secret {self._secret.namespace}/{self._secret.name} cannot be used ({error}); apply "
                    "examples/scheduler/gpus-rbac.yaml, or name a file with gpus.keyFile"
                )
        GPU_UNSEALED.set(0 if self.keys else 1)
        if self.trouble and self.trouble != before:
            telemetry.logger().warning(Event.GPU_UNSEALED, reason=self.trouble, sealed=bool(self.keys))
        return self.keys

    async def _of_secret(self, wanted: GpuKeySecret) -> tuple[bytes, ...]:
        """The keys in the Secret; made there where it has none. Where several replicas do that at once, one wins."""
        where = f"Secret {wanted.namespace}/{wanted.name}"
        for _ in range(_ATTEMPTS):
            try:
                found = await self._client.get(SECRETS.read_as(_Secret), wanted.name, wanted.namespace)
            except NotFound:
                found = None
            if found is not None and (text := (found.data or {}).get(_FIELD)):
                return keys_in(_decoded(text, where), where)
            body = _body(wanted, found.metadata.resource_version if found is not None else "")
            try:
                reached("gpus.key")
                if found is None:
                    await self._client.create(SECRETS, body, wanted.namespace)
                else:
                    await self._client.replace(SECRETS, wanted.name, body, wanted.namespace)
                reached("gpus.key_made")
            except Conflict:
                continue
        raise UserError(f"{where} keeps being changed by other clients; find out which ones do that")


def _body(wanted: GpuKeySecret, version: str) -> Object:
    key = base64.b64encode(random.token_bytes(32))
    metadata = {"name": wanted.name, "namespace": wanted.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {**metadata, **({"resourceVersion": version} if version else {})},
        "data": {_FIELD: base64.b64encode(key + b"\n").decode()},
    }


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise UserError(
            f"{where}: its field {_FIELD} is not base64; remove the field, and a key is made"
        ) from None
