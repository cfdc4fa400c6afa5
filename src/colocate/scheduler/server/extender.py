"""The extender over HTTP: reads what kube-scheduler asks, has it judged, answers. Decides nothing itself.

    POST /filter, /prioritize, /preempt     the verbs; a fault costs the one request that it happens in
    POST /gpu/filter, … /gpu/bind           the same for pods with GPUs, where it is told to choose those
    GET  /healthz, /readyz                  whether the process answers; whether it can judge, and if not why
    GET  whatever else it is given to tell  for people who ask; see `telling`

Preemption is passed through: what kube-scheduler would evict is right by us, unless it frees no GPU that fits.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import parse_qsl

from colocate import telemetry
from colocate.aio import deadline
from colocate.clock import Clock
from colocate.http.connection import HttpConnection
from colocate.http.connections import ConnectionLimits, Connections
from colocate.http.exchange import BodyFault, Exchange, HttpAnswer, Reply, Sent, text_page
from colocate.http.listener import connections_within_files
from colocate.http.places import Rank
from colocate.http.requests import HttpRequest
from colocate.scheduler.server.bodies import Bodies, Body
from colocate.scheduler.server.callers import Callers
from colocate.scheduler.server.judge import Judge
from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused, count_request
from colocate.scheduler.server.socket import Listening, listen
from colocate.scheduler.settings import Server
from colocate.telemetry import Event
from colocate.wire import extender_answers as answers
from colocate.wire.body_meter import binding_meter, preemption_meter, question_meter
from colocate.wire.extender_questions import Asked, TooMany, Unreadable, read_preemption, read_question

Tell = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""From the query of a URL to JSON; Refused where it asks for what is not there."""

_OTHER = "other"
_MOST_FIELDS = 100
"""Of a query."""
_LAST_MOMENT = 0.5
"""Seconds for handlers to finish that are cancelled at the end of the grace."""


_METERS = {
    "filter": question_meter,
    "prioritize": question_meter,
    "preempt": preemption_meter,
    "bind": binding_meter,
}
"""What is counted of a body while it comes, by verb."""

Verb = Callable[[bytes, str], bytes | Awaitable[bytes]]
"""From a body, and the address that sent it, to an answer; at once where it need not wait for anything."""


class GpuDoor(Protocol):
    """The part that chooses GPUs, as the server asks it."""

    async def filter(self, body: bytes, caller: str) -> bytes: ...

    def prioritize(self, body: bytes, caller: str) -> bytes: ...

    def preempt(self, body: bytes, caller: str) -> bytes: ...

    async def bind(self, body: bytes, caller: str) -> bytes: ...

    def unready(self) -> Sequence[str]:
        """Why it cannot choose yet, a sentence each; nothing where it can."""


class ExtenderServer:
    """Answers requests. One judge, any number of connections."""

    def __init__(
        self, settings: Server, judge: Judge, told: Mapping[str, Tell], gpus: GpuDoor | None = None
    ) -> None:
        self._judge = judge
        self._gpus = gpus
        self.bodies = Bodies(settings.limits)
        self.callers = Callers(settings)
        self.verbs: dict[str, Verb] = {**_judged(judge), "/preempt": _pass_preemption}
        if gpus is not None:
            self.verbs |= {
                "/gpu/prioritize": gpus.prioritize,
                "/gpu/preempt": gpus.preempt,
                "/gpu/filter": gpus.filter,
                "/gpu/bind": gpus.bind,
            }
        self.pages: Mapping[str, Callable[[], HttpAnswer]] = {
            "/healthz": lambda: text_page(200, "ok"),
            "/readyz": self._readiness,
        }
        self.told = told

    def begin(self, request: HttpRequest, connection: HttpConnection) -> "ExtenderExchange":
        return ExtenderExchange(self, request, connection)

    def _readiness(self) -> HttpAnswer:
        reasons = [*self._judge.unready(), *(self._gpus.unready() if self._gpus is not None else ())]
        return text_page(503, *reasons) if reasons else text_page(200, "ok")


class ExtenderExchange(Exchange):
    """One request, whatever it asks."""

    def __init__(self, server: ExtenderServer, request: HttpRequest, connection: HttpConnection) -> None:
        super().__init__(request)
        self._server = server
        self._connection = connection
        self._started = time.perf_counter()
        self._outcome = RequestOutcome.OK
        self._body: Body | None = None

    def begin(self) -> Reply | None:
        server, path = self._server, self.request.path
        try:
            if path in server.verbs:
                self._check_method("POST")
                server.callers.check(self.request, self._connection)
                server.callers.let_in(self._connection)
                self._body = Body(self.request, _METERS[path.rpartition("/")[2]](), server.bodies)
                return None
            if page := server.pages.get(path):
                self._connection.raise_to(Rank.PROBE)
                self._check_method("GET", "HEAD")
                return page()
            if tell := server.told.get(path):
                self._check_method("GET", "HEAD")
                server.callers.check_curious(self.request, self._connection)
                server.callers.let_in(self._connection)
                return self._later(tell(_first_values(self.request.query)))
            known = ", ".join((*server.verbs, *server.pages, *server.told))
            raise RequestRefused(
                404, RequestOutcome.UNKNOWN, f"{path[:80]!r} does not exist; available: {known}"
            )
        except Exception as error:  # noqa: BLE001 -- see _trouble
            return self._trouble(error)

    def add(self, part: bytes) -> HttpAnswer | None:
        assert self._body is not None
        try:
            self._body.add(part)
        except Exception as error:  # noqa: BLE001 -- see _trouble
            return self._trouble(error)
        return None

    def end(self) -> Reply:
        assert self._body is not None
        try:
            answer = self._server.verbs[self.request.path](self._body.whole(), self._connection.address)
        except Exception as error:  # noqa: BLE001 -- see _trouble
            return self._trouble(error)
        if isinstance(answer, bytes):
            self._body.release()
            return HttpAnswer(answer)
        return self._later(answer)

    def fail(self, fault: BodyFault, reason: str) -> HttpAnswer:
        if fault is BodyFault.BROKEN:
            refused = RequestRefused(400, RequestOutcome.UNREADABLE, f"the body is not valid HTTP: {reason}")
        else:
            length, limits = self._body.length if self._body else 0, self._server.bodies.limits
            refused = RequestRefused(
                408,
                RequestOutcome.SLOW,
                f"only {length} bytes of the body arrived within {limits.body_timeout:g} s",
            )
        return self._trouble(refused)

    def ended(self, sent: Sent) -> None:
        if self._body is not None:
            self._body.release()
        server, path = self._server, self.request.path
        known = path in server.verbs or path in server.pages or path in server.told
        outcome = RequestOutcome(sent) if sent else self._outcome
        count_request(path[1:] if known else _OTHER, outcome, self._started)

    async def _later(self, coming: Awaitable[bytes]) -> HttpAnswer:
        try:
            return HttpAnswer(await coming)
        except Exception as error:  # noqa: BLE001 -- see _trouble
            return self._trouble(error)
        finally:
            if self._body is not None:
                self._body.release()

    def _trouble(self, error: Exception) -> HttpAnswer:
        """What a caller is told of any error: the next request must still be answered."""
        if self._body is not None:
            self._body.release()
        path = self.request.path
        match error:
            case RequestRefused():
                refused = error
            case Unreadable():
                refused = RequestRefused(400, RequestOutcome.UNREADABLE, str(error))
            case TooMany():
                refused = RequestRefused(413, RequestOutcome.TOO_LARGE, str(error))
            case _:
                self._outcome = RequestOutcome.FAULT
                telemetry.logger().error(Event.EXTENDER_FAULT, where=path, exc_info=error)
                sentence = f"the extender failed with an internal error ({type(error).__name__}); see its log"
                if path.endswith("/filter"):
                    # The one verb whose answer has a place for it: kube-scheduler shows it in the pod's events.
                    return HttpAnswer(answers.filter_error(sentence))
                return text_page(500, sentence)
        self._outcome = refused.outcome
        telemetry.logger().debug(
            Event.EXTENDER_REFUSED, path=path[:80], status=refused.status, reason=str(refused)
        )
        # Most have a body that was not read, and will not be.
        return text_page(refused.status, str(refused), close=refused.status != 404, headers=refused.headers)

    def _check_method(self, *allowed: str) -> None:
        method = self.request.method
        if method not in allowed:
            raise RequestRefused(
                405,
                RequestOutcome.UNKNOWN,
                f"{self.request.path} takes {' and '.join(allowed)}, not {method}",
                Allow=", ".join(allowed),
            )


def _first_values(query: str) -> Mapping[str, str]:
    try:
        found = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise RequestRefused(
            400, RequestOutcome.UNREADABLE, f"the query has more than {_MOST_FIELDS} fields; send fewer"
        ) from None
    return dict(reversed(found))


def _judged(judge: Judge) -> Mapping[str, Verb]:
    """The two verbs that a judge answers."""

    def asked(body: bytes) -> Asked:
        return read_question(body, judge.most_candidates())

    def prioritize(body: bytes, caller: str) -> bytes:
        question = asked(body)
        return answers.priorities(question.names, judge.prioritize(question, caller), plain=question.plain)

    def sieve(body: bytes, caller: str) -> bytes:
        question = asked(body)
        sieved = judge.filter(question, caller)
        return answers.filtered(question, sieved.failed, sieved.unresolvable)

    return {"/filter": sieve, "/prioritize": prioritize}


def _pass_preemption(body: bytes, caller: str) -> bytes:
    return answers.preempting(read_preemption(body).victims)


@asynccontextmanager
async def serving(
    settings: Server,
    judge: Judge,
    clock: Clock,
    told: Mapping[str, Tell] | None = None,
    gpus: GpuDoor | None = None,
) -> AsyncIterator[Listening]:
    """Serve for as long as the body runs; yields where. At its end, requests under way are seen through.

    `told` is what else may be asked, by path.
    """
    answering = ExtenderServer(settings, judge, told or {}, gpus)
    if settings.callers.anyone:
        telemetry.logger().warning(
            Event.EXTENDER_OPEN,
            address=str(settings.address),
            reason="server.callers.anyone is true: anyone who can reach the address may ask",
        )
    limits = _connection_limits(settings, answering.callers)
    connections = Connections("extender", answering.begin, limits, answering.callers.let_stay)
    async with listen(settings, connections) as listening:
        telemetry.logger().info(Event.EXTENDER_SERVING, address=listening.url)
        try:
            yield listening
        finally:
            listening.close()
            with suppress(TimeoutError):
                async with deadline(clock, settings.grace):
                    await connections.drain()
            left = connections.under_way
            await connections.shutdown(_LAST_MOMENT)
            telemetry.logger().info(Event.EXTENDER_STOPPED, address=listening.url, given_up=left)


def _connection_limits(settings: Server, callers: Callers) -> ConnectionLimits:
    limits = settings.limits
    places = limits.places(showing=callers.demanding or settings.address.socket is not None)
    allowed = connections_within_files(places.connections)
    if allowed < places.connections:
        telemetry.logger().warning(
            Event.HTTP_FEWER_CONNECTIONS,
            server="extender",
            connections=allowed,
            reason=f"server.limits.connections is {places.connections}, but the process may not open so many files",
            remedy="raise the limit of open files (ulimit -Hn), or lower server.limits.connections",
        )
    return ConnectionLimits(
        places=places.within(allowed),
        header_timeout=limits.header_timeout,
        body_timeout=limits.body_timeout,
        idle_timeout=limits.idle_timeout,
        answer_timeout=limits.answer_timeout,
    )
