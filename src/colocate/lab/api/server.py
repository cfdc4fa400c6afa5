"""The API server on a socket: authenticates, authorizes and answers requests, and turns errors into answers."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

from aiohttp import web

from colocate import telemetry
from colocate.clock import Clock, SystemClock
from colocate.lab.api import bootstrap, documents, kubeconfig, paths
from colocate.lab.api.actions import Actions, Answer, Call
from colocate.lab.api.auth import Authenticator
from colocate.lab.api.certificates import Authority
from colocate.lab.api.controllers import Controllers
from colocate.lab.api.kubeconfig import Credential
from colocate.lab.api.lists import Lister
from colocate.lab.api.managed_fields import manager_of
from colocate.lab.api.metrics import MetricsServer
from colocate.lab.api.objects import encode
from colocate.lab.api.pod_streams import PodAccess, serve_exec, serve_log
from colocate.lab.api.query import ListQuery
from colocate.lab.api.rbac import Authorizer, Deed
from colocate.lab.api.registry import Identities, ObjectRegistry
from colocate.lab.api.representation import JSON, Renderer, negotiate
from colocate.lab.api.resources import PODS
from colocate.lab.api.reviews import Reviews
from colocate.lab.api.status import StatusError, bad_request, body_too_large, internal, no_such_path
from colocate.lab.api.store import ObjectStore
from colocate.lab.api.users import MASTERS, User, from_name
from colocate.lab.api.watch import Watch, subject
from colocate.telemetry import Event

MAX_BODY = 3 * 1024 * 1024
_PIECE = 1 << 18
_STOP_SECONDS = 2.0


class ApiServer:
    """Serves a store over HTTP."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock | None = None,
        identities: Identities | None = None,
        tokens: Mapping[str, User] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self.registry = ObjectRegistry(store, self.clock, identities)
        self.authenticator = Authenticator(store, self.clock, tokens)
        self.authorizer = Authorizer(store)
        reviews = Reviews(self.registry, self.authenticator, self.authorizer)
        self.metrics = MetricsServer(store, self.clock)
        self._actions = Actions(self.registry, Lister(store), reviews, self.metrics)
        self.access: PodAccess | None = None
        """Access to the processes of pods; None where no node has any."""
        self._authority: Authority | None = None
        self._runner: web.AppRunner | None = None
        self._controlling: asyncio.Task[None] | None = None
        self._stopping: asyncio.Future[None] | None = None
        self._address = ""
        self._tls = True
        bootstrap.fill(self.registry)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._address}"

    @property
    def authority(self) -> Authority:
        """The certificate authority of the cluster, made when first asked for."""
        if self._authority is None:
            self._authority = Authority.of(self.store)
        return self._authority

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: bool = True) -> None:
        """Listen; port 0 takes any that is free."""
        self._tls = tls
        self._stopping = asyncio.get_running_loop().create_future()
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(self._date)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_STOP_SECONDS
        )
        await self._runner.setup()
        context: ssl.SSLContext | None = self.authority.server_context(host) if tls else None
        site = web.TCPSite(self._runner, host, port, ssl_context=context)
        try:
            await site.start()
        except BaseException:
            await self.stop()
            raise
        taken = self._runner.addresses[0][1]
        self._address = f"[{host}]:{taken}" if ":" in host else f"{host}:{taken}"
        self._controlling = asyncio.create_task(Controllers(self.registry).run())

    async def stop(self) -> None:
        """Close every watch and connection; the store is unchanged."""
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)
        if self._controlling is not None:
            self._controlling.cancel()
            await asyncio.gather(self._controlling, return_exceptions=True)
            self._controlling = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def admin(self) -> Credential:
        """A credential with all rights."""
        if self._tls:
            return Credential(pair=self.authority.client("kubernetes-admin", MASTERS))
        token = self.store.keep("admin-token", lambda: self.registry.identities.uid().encode()).decode()
        self.authenticator.add_token(token, from_name("kubernetes-admin", frozenset({MASTERS})))
        return Credential(token=token)

    def write_kubeconfig(self, path: Path, credential: Credential | None = None, namespace: str = "") -> None:
        """Write a kubeconfig for this server, as the administrator or with another credential."""
        ca = self.authority.certificate if self._tls else None
        config = kubeconfig.document(self.url, ca, credential or self.admin(), namespace)
        kubeconfig.write(path, config)

    async def _date(self, request: web.Request, response: web.StreamResponse) -> None:
        """Date answers by the same clock as objects."""
        response.headers["Date"] = formatdate(self.clock.time(), usegmt=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._serve(request)
        except StatusError as error:
            return _failure(error)
        except web.HTTPRequestEntityTooLarge:
            return _failure(body_too_large(MAX_BODY))
        except web.RequestPayloadError as error:
            return _failure(bad_request(f"the request body cannot be read: {' '.join(str(error).split())}"))
        except RecursionError:
            return _failure(bad_request("the request body cannot be read: it is nested too deeply"))
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong in one request, the others go on
            telemetry.logger().exception(Event.LAB_REQUEST_FAILED, method=request.method, path=request.path)
            return _failure(internal(f"{type(error).__name__}: {error}"))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        user = self._user(request)
        accept = ",".join(request.headers.getall("Accept", []))
        query = ListQuery(dict(request.query))
        target = paths.parse(request.method, request.path, query.flag("watch"))
        if target is None:
            verb = "get" if request.method in ("GET", "HEAD") else request.method.lower()
            self.authorizer.check(user, Deed(verb, path=request.path))
            found = documents.find(request.method, request.path, accept, self._address)
            if found is None:
                raise no_such_path()
            return web.Response(body=found.body, content_type=found.content_type)
        selected = ""
        if target.verb in ("list", "watch", "deletecollection"):
            fields = query.selection(target.resource.storage).fields
            selected = fields.required("metadata.name") or ""
        self.authorizer.check(user, target.deed(selected))
        if target.resource is PODS and target.subresource in ("exec", "log"):
            pod = self.registry.get(PODS, target.namespace, target.name).body
            if target.subresource == "exec":
                return await serve_exec(request, pod, self.access)
            return await serve_log(request, pod, query, self.access)
        view = negotiate(accept, query.text("includeObject"))
        if target.verb == "watch":
            return await self._watch(request, target, query, Renderer(target.resource, view, 0.0))
        body = await _body(request)
        content_type = request.headers.get("Content-Type", "")
        manager = manager_of(query.text("fieldManager"), request.headers.get("User-Agent", ""))
        call = Call(target, query, view, user, content_type, body, manager)
        return await _send(request, self._actions.perform(call))

    def _user(self, request: web.Request) -> User:
        transport = request.transport
        certificate: Mapping[str, Any] | None = transport.get_extra_info("peercert") if transport else None
        user = self.authenticator.user(request.headers.get("Authorization"), certificate)
        return self._impersonated(user, request)

    def _impersonated(self, user: User, request: web.Request) -> User:
        name = request.headers.get("Impersonate-User")
        groups = request.headers.getall("Impersonate-Group", [])
        if not name:
            if groups:
                raise bad_request("groups can be impersonated only together with a user")
            return user
        self.authorizer.check(user, Deed("impersonate", resource="users", name=name))
        for group in groups:
            self.authorizer.check(user, Deed("impersonate", resource="groups", name=group))
        return from_name(name, frozenset(groups))

    async def _watch(
        self, request: web.Request, target: paths.Target, query: ListQuery, renderer: Renderer
    ) -> web.StreamResponse:
        watched = subject(target.resource, target.namespace, query)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        assert self._stopping is not None
        watch = Watch(self.store, self.clock, watched, renderer)
        with suppress(ConnectionError):  # the client may disconnect at any time
            async for piece in watch.lines(self._stopping):
                await response.write(piece)
            await response.write_eof()
        return response


async def _body(request: web.Request) -> bytes:
    """The whole body; refused before reading if its stated length is too long."""
    if request.content_length is not None and request.content_length > MAX_BODY:
        raise body_too_large(MAX_BODY)
    return await request.read()


async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
    """Send an answer; a long one in pieces, each copied at most once."""
    pieces = list(answer.pieces)
    length = sum(map(len, pieces))
    if length <= _PIECE:
        return web.Response(status=answer.code, body=b"".join(pieces), content_type=JSON)
    response = web.StreamResponse(status=answer.code, headers={"Content-Type": JSON})
    response.content_length = length
    with suppress(ConnectionError):
        await response.prepare(request)
        for piece in pieces:
            for start in range(0, len(piece), _PIECE):
                await response.write(memoryview(piece)[start : start + _PIECE])
        await response.write_eof()
    return response


def _failure(error: StatusError) -> web.Response:
    headers = {}
    if error.code in (429, 504):
        headers["Retry-After"] = str((error.details or {}).get("retryAfterSeconds") or 1)
    return web.Response(status=error.code, body=encode(error.status()), content_type=JSON, headers=headers)
