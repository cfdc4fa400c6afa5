"""Calls an HTTP extender as kube-scheduler does, and checks its answers.

The caller decides what a failure means. The preempt verb is not called.
"""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.cluster.trouble import in_words
from colocate.errors import ColocateError, UserError
from colocate.lab.api.changes import Stored
from colocate.lab.api.objects import encode
from colocate.lab.scheduler.configuration import ExtenderSettings, ExtenderTls
from colocate.lab.scheduler.facts import SchedulablePod

HEADERS: Mapping[str, str] = {
    # As recorded from kube-scheduler, so that an extender cannot tell the two apart.
    "User-Agent": "Go-http-client/1.1",
    "Content-Type": "application/json",
    "Accept-Encoding": "gzip",
}
_SKIPPED = ("Accept",)


class ExtenderFailed(ColocateError):
    """An extender did not answer, or its answer is invalid."""


class Filtered(msgspec.Struct, frozen=True):
    """An extender's answer to a filter call."""

    names: tuple[str, ...]
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_Node, ...] | None = None


class _FilterReply(msgspec.Struct, frozen=True):
    nodes: _NodeList | None = None
    nodenames: tuple[str, ...] | None = None
    failednodes: dict[str, str] | None = None
    failedandunresolvablenodes: dict[str, str] | None = None
    error: str | None = None


class _HostPriority(msgspec.Struct, frozen=True):
    host: str = ""
    score: int = 0


class _BindReply(msgspec.Struct, frozen=True):
    error: str | None = None


def arguments(pod: bytes, nodes: Sequence[bytes] | None, names: Sequence[str] | None) -> bytes:
    """The body of a filter or prioritize call, from objects that are already JSON. One of the lists is None.

    Pods and nodes have neither kind nor apiVersion in it, as in the store.
    """
    whole = b"null" if nodes is None else b'{"metadata":{},"items":[' + b",".join(nodes) + b"]}"
    named = b"null" if names is None else encode(list(names))
    return b'{"Pod":' + pod + b',"Nodes":' + whole + b',"NodeNames":' + named + b"}"


class Extender:
    """One extender. It opens connections at the first call."""

    def __init__(self, settings: ExtenderSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        # Loaded here, so that a missing certificate is a UserError at the start and not a failure of a pod.
        self._tls = client_context(settings)
        self._managed = frozenset(resource.name for resource in settings.managed_resources)

    def is_interested(self, pod: SchedulablePod) -> bool:
        """Whether the pod requests a resource that the extender manages."""
        return not self._managed or not self._managed.isdisjoint(pod.requests.amounts)

    async def filter(self, pod: bytes, nodes: Sequence[Stored]) -> Filtered:
        """The nodes that it accepts, in their order."""
        known = {stored.key.name for stored in nodes}
        answer = await self._post(self.settings.filter_verb, self._arguments(pod, nodes))
        reply = self._read(answer, _FilterReply)
        if reply.error:
            raise self._failure(self.settings.filter_verb, f"says: {reply.error}")
        accepted: tuple[str, ...] = ()
        if self.settings.node_cache_capable and reply.nodenames is not None:
            accepted = reply.nodenames
        elif reply.nodes is not None:
            accepted = tuple(node.metadata.name for node in reply.nodes.items or ())
        for name in accepted:
            if name not in known:
                raise self._failure(
                    self.settings.filter_verb, f"accepts {name}, which it was not asked about"
                )
        return Filtered(accepted, reply.failednodes or {}, reply.failedandunresolvablenodes or {})

    async def prioritize(self, pod: bytes, nodes: Sequence[Stored]) -> dict[str, int]:
        """Its scores times its weight, to add to the nodes' scores; a node that it leaves out gets none."""
        answer = await self._post(self.settings.prioritize_verb, self._arguments(pod, nodes))
        added: dict[str, int] = {}
        for one in self._read(answer, list[_HostPriority] | None) or ():
            added[one.host] = added.get(one.host, 0) + one.score * self.settings.weight
        return added

    async def bind(self, pod: SchedulablePod, node: str) -> None:
        """Let it bind the pod."""
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}
        answer = await self._post(self.settings.bind_verb, encode(body))
        reply = self._read(answer, _BindReply)
        if reply.error:
            raise self._failure(self.settings.bind_verb, f"says: {reply.error}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _arguments(self, pod: bytes, nodes: Sequence[Stored]) -> bytes:
        if self.settings.node_cache_capable:
            return arguments(pod, None, [stored.key.name for stored in nodes])
        return arguments(pod, [stored.encoded for stored in nodes], None)

    async def _post(self, verb: str, body: bytes) -> Any:
        url = self._url(verb)
        session = self._open()
        hostname = self.settings.tls.server_name or None
        try:
            async with (
                deadline(self._clock, self.settings.http_timeout),
                session.post(url, data=body, server_hostname=hostname) as response,
            ):
                answer = await response.read()
                status = response.status
        except TimeoutError:
            raise self._failure(verb, f"has not answered within {self.settings.http_timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(verb, f"cannot be reached: {in_words(error)}") from None
        if status != 200:
            raise self._failure(verb, f"answers with HTTP status {status}")
        try:
            return _small_keys(msgspec.json.decode(answer))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._failure(verb, f"does not answer with JSON: {error}") from None

    def _read(self, answer: Any, type: Any) -> Any:
        try:
            # Go reads null as an empty object.
            return msgspec.convert({} if answer is None and type in _OBJECTS else answer, type)
        except msgspec.ValidationError as error:
            raise ExtenderFailed(
                f"the extender at {_without_login(self.settings.url_prefix)} sent an answer "
                f"that cannot be read: {error}"
            ) from None

    def _url(self, verb: str) -> str:
        return f"{self.settings.url_prefix.rstrip('/')}/{verb}"

    def _failure(self, verb: str, what: str) -> ExtenderFailed:
        return ExtenderFailed(f"the extender at {_without_login(self._url(verb))} {what}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=HEADERS,
                skip_auto_headers=_SKIPPED,
                # The only time limit of a call is the scheduler's, on its own clock.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                connector=aiohttp.TCPConnector(ssl=self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


_OBJECTS = (_FilterReply, _BindReply)


def _small_keys(value: Any, depth: int = 0) -> Any:
    """Field names in lower case, because Go ignores case; names of nodes are unchanged."""
    if isinstance(value, list):
        return [_small_keys(one, depth) for one in value] if depth == 0 else value
    if isinstance(value, dict) and depth == 0:
        return {key.lower(): one for key, one in value.items() if one is not None}
    return value


def _without_login(url: str) -> str:
    """The URL without user name and password, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def client_context(settings: ExtenderSettings) -> ssl.SSLContext | bool:
    """The TLS context of an extender's client; True uses the system's authorities."""
    tls = settings.tls
    if tls == ExtenderTls() and not settings.enable_https:
        return True
    try:
        return _context(tls, unknown_is_fine=settings.enable_https)
    except (OSError, ssl.SSLError, binascii.Error, ValueError) as error:
        raise UserError(
            f"tlsConfig of the extender at {settings.url_prefix} cannot be used: {error}: "
            "check that its files are there and its data is PEM in base64"
        ) from None


def _context(tls: ExtenderTls, unknown_is_fine: bool) -> ssl.SSLContext:
    has_authority = bool(tls.ca_file or tls.ca_data)
    authority = base64.b64decode(tls.ca_data, validate=True).decode() if tls.ca_data else None
    context = ssl.create_default_context(cafile=tls.ca_file or None, cadata=authority)
    # Like kube-scheduler, accept any server if HTTPS is enabled and no authority is given.
    if tls.insecure or (unknown_is_fine and not has_authority):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_data and tls.key_data:
        _load_pair(context, tls)
    elif tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    return context


def _load_pair(context: ssl.SSLContext, tls: ExtenderTls) -> None:
    # The ssl module reads certificates only from files.
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(
            b"\n".join(base64.b64decode(data, validate=True) for data in (tls.key_data, tls.cert_data))
        )
        context.load_cert_chain(pair)
