"""Asks the API server in which namespaces this agent may evict pods and create them again.

Answers are kept for a few minutes, then asked for again, so that a new or deleted binding takes effect. If the server
fails, the last answer stays. In a namespace without any answer, an eviction is simply tried. Nothing is decided here,
and nothing is done in a namespace to find out.
"""

from collections.abc import Iterable

import msgspec

from colocate.aio import Watched, first
from colocate.cluster.access_review import Permission, is_allowed
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError
from colocate.errors import UserError

MOST = 100
"""Largest number of namespaces that are asked about."""
_AGAIN = 300.0
"""Seconds until an answer is asked for again."""
_AGAIN_AFTER_FAILURE = 30.0


class _Answer(msgspec.Struct, frozen=True):
    evict: bool
    create: bool


class NamespaceRights:
    """Asks about the namespaces of `want`, one question at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._clock = client.clock
        self._wanted: tuple[str, ...] = ()
        self._answers: dict[str, _Answer] = {}
        self._again_at: dict[str, float] = {}
        self._more = Watched()

    def want(self, namespaces: Iterable[str]) -> None:
        """Ask about these namespaces from now on, up to `MOST` of them, and no others."""
        wanted = tuple(sorted(list(dict.fromkeys(each for each in namespaces if each))[:MOST]))
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._answers = {each: answer for each, answer in self._answers.items() if each in wanted}
        self._again_at = {each: at for each, at in self._again_at.items() if each in wanted}
        self._more.changed()

    @property
    def without_eviction(self) -> frozenset[str]:
        """Namespaces in which this agent may not evict pods."""
        return frozenset(each for each, answer in self._answers.items() if not answer.evict)

    @property
    def without_creation(self) -> frozenset[str]:
        """Namespaces in which this agent may not evict pods and create them again."""
        return frozenset(each for each, answer in self._answers.items() if not answer.create)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            seen = self._more.count
            for namespace in self._wanted:
                if self._again_at.get(namespace, 0.0) <= self._clock.monotonic():
                    await self._ask(namespace)
            await first(self._clock.sleep(self._pause()), _wait(self._more, seen))

    def _pause(self) -> float:
        return (
            min(self._again_at.values(), default=self._clock.monotonic() + _AGAIN) - self._clock.monotonic()
        )

    async def _ask(self, namespace: str) -> None:
        try:
            evict = await is_allowed(
                self._client, Permission("create", "pods", "eviction", namespace=namespace)
            )
            # A pod that may not be evicted cannot be moved either.
            create = evict and await self._may_create(namespace)
        except (ClusterError, UserError):
            self._again_at[namespace] = self._clock.monotonic() + _AGAIN_AFTER_FAILURE
            return
        self._again_at[namespace] = self._clock.monotonic() + _AGAIN
        if namespace in self._wanted:
            self._answers[namespace] = _Answer(evict, create)

    async def _may_create(self, namespace: str) -> bool:
        needed = (
            Permission("get", "pods", namespace=namespace),
            Permission("create", "pods", namespace=namespace),
            # Before it creates a pod, the agent checks that the namespace is still the same one.
            Permission("get", "namespaces", namespace=namespace, name=namespace),
        )
        for permission in needed:
            if not await is_allowed(self._client, permission):
                return False
        return True


async def _wait(source: Watched, seen: int) -> None:
    await source.beyond(seen)
