"""Chooses at random which waiting pod is admitted next, like the pod workers of a real kubelet.

A real kubelet admits one pod at a time, and not in the order in which pods were bound: of twenty pods within two
seconds, several overtake earlier ones. Here the order is random with a seed, so that it is reproducible.
"""

import asyncio
from random import Random


class AdmissionOrder:
    """A lock that admits one waiter at a time, in random order."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)
        self._busy = False
        self._waiting: list[asyncio.Future[None]] = []

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    async def __aenter__(self) -> None:
        if not self._busy:
            self._busy = True
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif place.done() and not place.cancelled():
                self._pass_on()  # Admitted and cancelled at once.
            raise

    def _pass_on(self) -> None:
        waiting = [place for place in self._waiting if not place.done()]
        if not waiting:
            self._waiting.clear()
            self._busy = False
            return
        place = waiting[self._random.randrange(len(waiting))]
        self._waiting = [each for each in waiting if each is not place]
        place.set_result(None)
