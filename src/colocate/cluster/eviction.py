"""Evictions that wait for their disruption budget: asked for until they may be, or until a deadline.

The result is data: nothing is raised for what clusters do. Which pod goes is not decided here.
"""

import random
from enum import StrEnum

import msgspec

from colocate.backoff import BackOff, Random
from colocate.cluster.client import Client
from colocate.cluster.errors import (
    ApiError,
    Conflict,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from colocate.telemetry import EVICTIONS

_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
"""So a server says, with the code 500, that several budgets match one pod: waiting does not mend that."""


class Evicted(StrEnum):
    """How an eviction ended."""

    EVICTED = "evicted"
    """The server has taken it: the pod is on its way out."""
    GONE = "gone"
    """There was no such pod, or another one under its name, by the time of asking."""
    BLOCKED = "blocked"
    """A disruption budget was in the way until the deadline."""
    REFUSED = "refused"
    """The server does not allow it at all: a right is missing, or budgets contradict each other."""
    UNREACHABLE = "unreachable"
    """There was no usable answer until the deadline. The pod may be on its way out."""


class EvictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient an eviction is."""

    deadline: float = 60.0
    """Seconds after which it is given up; 0 asks once."""
    first_pause: float = 1.0
    last_pause: float = 15.0
    """Seconds between attempts: doubled from the first to the last, and up to twice as long by chance."""


class Eviction(msgspec.Struct, frozen=True):
    """What became of one."""

    outcome: Evicted
    attempts: int
    message: str = ""
    """The server's last words, where they were not simply yes."""
    dry_run: bool = False


async def evict(
    client: Client,
    name: str,
    namespace: str = "",
    uid: str = "",
    grace: int | None = None,
    dry_run: bool = False,
    settings: EvictionSettings = EvictionSettings(),  # noqa: B008 - frozen
    random: Random = random.random,
) -> Eviction:
    """Evict a pod. With a uid, only that very one: a new pod under its name is left alone.

    With `dry_run` the server is asked once whether it would.
    """
    end = client.clock.monotonic() + (0.0 if dry_run else settings.deadline)
    back_off = BackOff(settings.first_pause, settings.last_pause, random)
    attempts = 0
    while True:
        attempts += 1
        asked_to_wait: float | None = None
        try:
            await client.evict(name, namespace, uid, grace, dry_run)
            return _ended(Evicted.EVICTED, attempts, "", dry_run)
        except NotFound as error:
            return _ended(Evicted.GONE, attempts, str(error), dry_run)
        except Conflict as error:
            # With a precondition, it says that the name has passed to another pod.
            outcome = Evicted.GONE if uid else Evicted.REFUSED
            return _ended(outcome, attempts, str(error), dry_run)
        except TooManyRequests as error:
            failed, message, asked_to_wait = Evicted.BLOCKED, str(error), error.retry_after
        except Unreachable as error:
            failed, message = Evicted.UNREACHABLE, str(error)
        except ServerError as error:
            if _SEVERAL_BUDGETS in error.message:
                return _ended(Evicted.REFUSED, attempts, str(error), dry_run)
            failed, message, asked_to_wait = Evicted.UNREACHABLE, str(error), error.retry_after
        except Unauthorized as error:
            # A token is renewed every hour, and a server that has just started may not know it yet.
            failed, message = Evicted.UNREACHABLE, str(error)
        except ApiError as error:
            return _ended(Evicted.REFUSED, attempts, str(error), dry_run)
        pause = back_off.pause(asked_to_wait)
        if client.clock.monotonic() + pause >= end:
            return _ended(failed, attempts, message, dry_run)
        await client.clock.sleep(pause)


def _ended(outcome: Evicted, attempts: int, message: str, dry_run: bool) -> Eviction:
    if not dry_run:
        EVICTIONS.labels(outcome.value).inc()
    return Eviction(outcome, attempts, message, dry_run)
