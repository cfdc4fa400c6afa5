"""Who of those that wait is admitted next: any of them, as pod workers of a real kubelet come.

It admits one pod at a time, and not in the order in which pods were bound: of twenty that came within two seconds,
several are asked for before others that came earlier. Here the order is drawn, with a seed: it is the same each time.
"""

import asyncio
from random import Random


class AdmissionOrder:
    """Lets in one at a time, for as long as the body runs."""

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
                self._pass_on()  # Let in and gone at once.
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
