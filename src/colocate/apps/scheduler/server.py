"""The extender over HTTP: reads what kube-scheduler asks, has it judged, answers. Decides nothing itself.

    POST /filter, /prioritize, /preempt     the verbs; a fault costs the one request that it happens in
    GET  /healthz, /readyz                  whether the process answers; whether it can judge, and if not why
    GET  whatever else it is given to tell  for people who ask; see `telling`

Preemption is passed through: what kube-scheduler would evict is right by us.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache

from aiohttp import web
from prometheus_client import Counter, Histogram

from colocate import telemetry
from colocate.aio import Watched, deadline
from colocate.apps.scheduler.bodies import Bodies
from colocate.apps.scheduler.callers import Callers
from colocate.apps.scheduler.connections import Connections
from colocate.apps.scheduler.judge import Judge
from colocate.apps.scheduler.listening import Listening, listen
from colocate.apps.scheduler.refused import Outcome, Refused
from colocate.apps.scheduler.settings import Server
from colocate.clock import Clock
from colocate.telemetry import Event
from colocate.wire import extender_answers as answers
from colocate.wire.extender_questions import Asked, TooMany, Unreadable, read_preemption, read_question

Tell = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""From the query of a URL to JSON; Refused where it asks for what is not there."""

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_OTHER = "other"
_LAST_MOMENT = 0.5
"""Seconds for handlers that are cancelled at the end of the grace to say goodbye."""


class Extender:
    """Answers requests. One judge, any number of connections."""

    def __init__(self, settings: Server, judge: Judge, told: Mapping[str, Tell]) -> None:
        self._settings = settings
        self._judge = judge
        self._bodies = Bodies(settings.limits)
        self._callers = Callers(settings)
        self._verbs: Mapping[str, Callable[[bytes], bytes]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/preempt": self._preempt,
        }
        self._pages: Mapping[str, Callable[[], web.Response]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
        }
        self._told = told
        self.stopping = False
        self.under_way = 0
        self.ended = Watched()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever it is."""
        path = request.rel_url.raw_path
        known = path in self._verbs or path in self._pages or path in self._told
        verb = path[1:] if known else _OTHER
        started = time.perf_counter()
        self.under_way += 1
        try:
            response, outcome = await self._answer(request, path)
            if self.stopping:
                response.force_close()
            outcome = await self._send(request, response) or outcome
        finally:
            self.under_way -= 1
            self.ended.changed()
        counted, timed = _counters(verb, outcome)
        counted.inc()
        timed.observe(time.perf_counter() - started)
        return response

    async def _answer(self, request: web.BaseRequest, path: str) -> tuple[web.Response, Outcome]:
        try:
            if page := self._pages.get(path):
                _check_method(request, "GET", "HEAD")
                return page(), Outcome.OK
            if tell := self._told.get(path):
                _check_method(request, "GET", "HEAD")
                self._callers.check_curious(request)
                return web.Response(body=await tell(request.rel_url.query), content_type=_JSON), Outcome.OK
            judged = self._verbs.get(path)
            if judged is None:
                known = ", ".join((*self._verbs, *self._pages, *self._told))
                raise Refused(404, Outcome.UNKNOWN, f"there is no {path[:80]!r} here; there are {known}")
            _check_method(request, "POST")
            self._callers.check(request)
            body = await self._bodies.read(request)
            try:
                return web.Response(body=judged(body), content_type=_JSON), Outcome.OK
            finally:
                self._bodies.release(len(body))
        except Refused as refused:
            telemetry.logger().debug(
                Event.EXTENDER_REFUSED, path=path[:80], status=refused.status, reason=str(refused)
            )
            return _refusal(refused), refused.outcome
        except Unreadable as error:
            telemetry.logger().debug(Event.EXTENDER_REFUSED, path=path[:80], status=400, reason=str(error))
            return _refusal(Refused(400, Outcome.UNREADABLE, str(error))), Outcome.UNREADABLE
        except TooMany as error:
            telemetry.logger().debug(Event.EXTENDER_REFUSED, path=path[:80], status=413, reason=str(error))
            return _refusal(Refused(413, Outcome.TOO_LARGE, str(error))), Outcome.TOO_LARGE
        except Exception as error:  # noqa: BLE001 -- whatever it is, the next request must be answered
            telemetry.logger().error(Event.EXTENDER_FAULT, where=path, exc_info=error)
            sentence = _fault(error)
            if path == "/filter":
                # The one verb whose answer has a place for it: kube-scheduler shows it in the pod's events.
                return web.Response(body=answers.filter_error(sentence), content_type=_JSON), Outcome.FAULT
            return _page(500, sentence), Outcome.FAULT

    async def _send(self, request: web.BaseRequest, response: web.Response) -> Outcome | None:
        """Send an answer; what became of it if its reader hangs up, or is too slow and is hung up on."""
        transport = request.transport
        if transport is None:
            return Outcome.GONE
        cut_off: list[Outcome] = []

        def cut() -> None:
            cut_off.append(Outcome.SLOW)
            transport.abort()

        # A timer and no more, as for bodies: most answers are gone at once.
        timer = asyncio.get_running_loop().call_later(self._settings.limits.answer_timeout, cut)
        try:
            await response.prepare(request)
            await response.write_eof()
            await request.writer.drain()
        except ConnectionError:
            return cut_off[0] if cut_off else Outcome.GONE
        finally:
            timer.cancel()
        return cut_off[0] if cut_off else None

    def _prioritize(self, body: bytes) -> bytes:
        asked = self._asked(body)
        return answers.priorities(asked.names, self._judge.prioritize(asked), plain=asked.plain)

    def _filter(self, body: bytes) -> bytes:
        asked = self._asked(body)
        sieved = self._judge.filter(asked)
        return answers.filtered(asked, sieved.failed, sieved.unresolvable)

    def _asked(self, body: bytes) -> Asked:
        return read_question(body, self._judge.most_candidates())

    def _preempt(self, body: bytes) -> bytes:
        return answers.preempting(read_preemption(body).victims)

    def _health(self) -> web.Response:
        return _page(200, "ok")

    def _readiness(self) -> web.Response:
        reasons = self._judge.unready()
        return _page(503, *reasons) if reasons else _page(200, "ok")


@asynccontextmanager
async def serving(
    settings: Server, judge: Judge, clock: Clock, told: Mapping[str, Tell] | None = None
) -> AsyncIterator[Listening]:
    """Serve for as long as the body runs; yields where. At its end, requests under way are seen through.

    `told` is what else may be asked, by path.
    """
    answering = Extender(settings, judge, told or {})
    connections = Connections(answering.handle, settings.limits)
    async with listen(settings, connections) as listening:
        telemetry.logger().info(Event.EXTENDER_SERVING, address=listening.url)
        try:
            yield listening
        finally:
            answering.stopping = True
            listening.close()
            connections.close_idle()
            with suppress(TimeoutError):
                async with deadline(clock, settings.grace):
                    seen = 0
                    while answering.under_way:
                        seen = await answering.ended.beyond(seen)
            left = answering.under_way
            await connections.shutdown(_LAST_MOMENT)
            telemetry.logger().info(Event.EXTENDER_STOPPED, address=listening.url, given_up=left)


@cache
def _counters(verb: str, outcome: Outcome) -> tuple[Counter, Histogram]:
    """Of one verb and one outcome; both are few, and to look them up costs more than to count."""
    return telemetry.EXTENDER_REQUESTS.labels(verb, outcome), telemetry.EXTENDER_REQUEST_SECONDS.labels(verb)


def _check_method(request: web.BaseRequest, *allowed: str) -> None:
    if request.method not in allowed:
        raise Refused(
            405,
            Outcome.UNKNOWN,
            f"{request.rel_url.raw_path} takes {' and '.join(allowed)}, not {request.method[:20]}",
            Allow=", ".join(allowed),
        )


def _refusal(refused: Refused) -> web.Response:
    response = _page(refused.status, str(refused))
    response.headers.update(refused.headers)
    if refused.status != 404:
        # Most have a body that nobody has read, and nobody will.
        response.force_close()
    return response


def _page(status: int, *lines: str) -> web.Response:
    return web.Response(
        status=status, body="".join(f"{line}\n" for line in lines).encode(), headers={"Content-Type": _TEXT}
    )


def _fault(error: Exception) -> str:
    return f"a fault of the extender's own ({type(error).__name__}) kept it from judging; its log says more"
