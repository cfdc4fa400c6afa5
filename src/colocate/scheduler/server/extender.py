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

from aiohttp import web

from colocate import telemetry
from colocate.aio import Watched, deadline
from colocate.clock import Clock
from colocate.http.connections import (
    ConnectionLimits,
    Connections,
    connection_of,
    send,
    text_page,
)
from colocate.http.listener import connections_within_files
from colocate.http.places import Rank
from colocate.scheduler.server.bodies import Bodies
from colocate.scheduler.server.callers import Callers
from colocate.scheduler.server.judge import Judge
from colocate.scheduler.server.prompt_questions import PromptQuestions, PromptVerb
from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused, count_request
from colocate.scheduler.server.socket import Listening, listen
from colocate.scheduler.settings import Server
from colocate.telemetry import Event
from colocate.wire import extender_answers as answers
from colocate.wire.body_meter import binding_meter, preemption_meter, question_meter
from colocate.wire.extender_questions import Asked, TooMany, Unreadable, read_preemption, read_question

Tell = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""From the query of a URL to JSON; Refused where it asks for what is not there."""

_JSON = "application/json"
_OTHER = "other"
_LAST_MOMENT = 0.5
"""Seconds for handlers that are cancelled at the end of the grace to say goodbye."""


_METERS = {
    "filter": question_meter,
    "prioritize": question_meter,
    "preempt": preemption_meter,
    "bind": binding_meter,
}
"""What is counted of a body while it comes, by verb."""

Verb = Callable[[bytes, str], bytes | Awaitable[bytes]]
"""From a body, and the address that sent it, to an answer."""


class GpuDoor(Protocol):
    """Who chooses GPUs, as the server asks."""

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
        self._settings = settings
        self._judge = judge
        self._gpus = gpus
        self._bodies = Bodies(settings.limits)
        self.callers = Callers(settings)
        prompt: dict[str, PromptVerb] = {**_judged(judge), "/preempt": _pass_preemption}
        if gpus is not None:
            prompt |= {"/gpu/prioritize": gpus.prioritize, "/gpu/preempt": gpus.preempt}
        self.prompt = PromptQuestions(prompt, self.callers, self._bodies)
        self._verbs: dict[str, Verb] = {**prompt}
        if gpus is not None:
            self._verbs |= {"/gpu/filter": gpus.filter, "/gpu/bind": gpus.bind}
        self._pages: Mapping[str, Callable[[], web.Response]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
        }
        self._told = told
        self.stopping = False
        self.under_way = 0
        self.ended = Watched()

    def stop(self) -> None:
        """Close every connection after its next answer."""
        self.stopping = self.prompt.stopping = True

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever it is."""
        path = request.rel_url.raw_path
        known = path in self._verbs or path in self._pages or path in self._told
        verb = path[1:] if known else _OTHER
        started = time.perf_counter()
        self.under_way += 1
        try:
            response, outcome = await self._answer(request, path)
            if self.stopping or not self.callers.let_stay(connection_of(request)):
                response.force_close()
            sent = await send(request, response, self._settings.limits.answer_timeout)
            outcome = RequestOutcome(sent) if sent else outcome
        finally:
            self.under_way -= 1
            self.ended.changed()
        count_request(verb, outcome, started)
        return response

    async def _answer(self, request: web.BaseRequest, path: str) -> tuple[web.Response, RequestOutcome]:
        try:
            if page := self._pages.get(path):
                connection_of(request).raise_to(Rank.PROBE)
                _check_method(request, "GET", "HEAD")
                return page(), RequestOutcome.OK
            if tell := self._told.get(path):
                _check_method(request, "GET", "HEAD")
                self.callers.check_curious(request)
                self.callers.let_in(connection_of(request))
                return web.Response(
                    body=await tell(request.rel_url.query), content_type=_JSON
                ), RequestOutcome.OK
            judged = self._verbs.get(path)
            if judged is None:
                known = ", ".join((*self._verbs, *self._pages, *self._told))
                raise RequestRefused(
                    404, RequestOutcome.UNKNOWN, f"{path[:80]!r} does not exist; available: {known}"
                )
            _check_method(request, "POST")
            self.callers.check(request.headers, request.transport)
            self.callers.let_in(connection_of(request))
            body = await self._bodies.read(request, _METERS[path.rpartition("/")[2]]())
            try:
                answer = judged(body, connection_of(request).address)
                if not isinstance(answer, bytes):
                    answer = await answer
                return web.Response(body=answer, content_type=_JSON), RequestOutcome.OK
            finally:
                self._bodies.release(len(body))
        except RequestRefused as refused:
            telemetry.logger().debug(
                Event.EXTENDER_REFUSED, path=path[:80], status=refused.status, reason=str(refused)
            )
            return _refusal(refused), refused.outcome
        except Unreadable as error:
            telemetry.logger().debug(Event.EXTENDER_REFUSED, path=path[:80], status=400, reason=str(error))
            return _refusal(
                RequestRefused(400, RequestOutcome.UNREADABLE, str(error))
            ), RequestOutcome.UNREADABLE
        except TooMany as error:
            telemetry.logger().debug(Event.EXTENDER_REFUSED, path=path[:80], status=413, reason=str(error))
            return _refusal(
                RequestRefused(413, RequestOutcome.TOO_LARGE, str(error))
            ), RequestOutcome.TOO_LARGE
        except Exception as error:  # noqa: BLE001 -- whatever it is, the next request must be answered
            telemetry.logger().error(Event.EXTENDER_FAULT, where=path, exc_info=error)
            sentence = _fault(error)
            if path.endswith("/filter"):
                # The one verb whose answer has a place for it: kube-scheduler shows it in the pod's events.
                return web.Response(
                    body=answers.filter_error(sentence), content_type=_JSON
                ), RequestOutcome.FAULT
            return text_page(500, sentence), RequestOutcome.FAULT

    def _health(self) -> web.Response:
        return text_page(200, "ok")

    def _readiness(self) -> web.Response:
        reasons = [*self._judge.unready(), *(self._gpus.unready() if self._gpus is not None else ())]
        return text_page(503, *reasons) if reasons else text_page(200, "ok")


def _judged(judge: Judge) -> Mapping[str, PromptVerb]:
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
    connections = Connections("extender", answering.handle, limits, answering.prompt)
    async with listen(settings, connections) as listening:
        telemetry.logger().info(Event.EXTENDER_SERVING, address=listening.url)
        try:
            yield listening
        finally:
            answering.stop()
            listening.close()
            await connections.close_idle()
            with suppress(TimeoutError):
                async with deadline(clock, settings.grace):
                    seen = 0
                    while answering.under_way:
                        seen = await answering.ended.beyond(seen)
            left = answering.under_way
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
        idle_timeout=limits.idle_timeout,
        answer_timeout=limits.answer_timeout,
    )


def _check_method(request: web.BaseRequest, *allowed: str) -> None:
    if request.method not in allowed:
        raise RequestRefused(
            405,
            RequestOutcome.UNKNOWN,
            f"{request.rel_url.raw_path} takes {' and '.join(allowed)}, not {request.method[:20]}",
            Allow=", ".join(allowed),
        )


def _refusal(refused: RequestRefused) -> web.Response:
    response = text_page(refused.status, str(refused))
    response.headers.update(refused.headers)
    if refused.status != 404:
        # Most have a body that nobody has read, and nobody will.
        response.force_close()
    return response


def _fault(error: Exception) -> str:
    return f"the extender failed with an internal error ({type(error).__name__}); see its log"
