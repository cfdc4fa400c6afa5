"""Answers questions that are here as a whole, where they arrive; see `http.whole_requests`.

What is checked of any other is checked of them: the caller, the size of the body and of all bodies together. Where
one is refused, or fails, the server handles it once more as it handles all others, and says why.
"""

import time
from collections.abc import Callable, Mapping

from colocate.http.connections import HttpConnection
from colocate.scheduler.server.bodies import Bodies
from colocate.scheduler.server.callers import Callers
from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused, count_request

PromptVerb = Callable[[bytes, str], bytes]
"""From a body, and the address that sent it, to an answer, without waiting for anything."""


class PromptQuestions:
    """The verbs that never wait."""

    def __init__(self, verbs: Mapping[str, PromptVerb], callers: Callers, bodies: Bodies) -> None:
        self._verbs = verbs
        self._callers = callers
        self._bodies = bodies
        self.stopping = False
        """From then on nothing is answered here: the server tells every caller that it closes."""

    def awaits(self, connection: HttpConnection, path: str, headers: Mapping[str, str]) -> bool:
        if self.stopping or path not in self._verbs:
            return False
        try:
            self._callers.check(headers, connection.transport)
        except RequestRefused:
            return False
        return True

    def answer(
        self, connection: HttpConnection, path: str, headers: Mapping[str, str], body: bytes
    ) -> bytes | None:
        verb = self._verbs.get(path)
        if verb is None or self.stopping or not self._bodies.allows(len(body)):
            return None
        started = time.perf_counter()
        try:
            self._callers.check(headers, connection.transport)
            self._callers.let_in(connection)
            if not self._callers.let_stay(connection):
                return None
            answer = verb(body, connection.address)
        except Exception:  # noqa: BLE001 -- whatever it is, the server comes upon it once more
            return None
        count_request(path[1:], RequestOutcome.OK, started)
        return answer
