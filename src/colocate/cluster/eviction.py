"""Evicts a pod, and retries until its disruption budget allows it or a deadline passes.

The result is data: no outcome raises an error. Callers decide which pod to evict.
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
"""The server's message, with code 500, if several budgets match one pod; waiting does not help then."""


class Evicted(StrEnum):
    """How an eviction ended."""

    EVICTED = "evicted"
    """The server has accepted the eviction: the pod is being deleted."""
    GONE = "gone"
    """The pod no longer existed, or another pod had its name."""
    BLOCKED = "blocked"
    """A disruption budget forbade it until the deadline."""
    REFUSED = "refused"
    """The server does not allow it at all: a right is missing, or budgets contradict each other."""
    UNREACHABLE = "unreachable"
    """There was no usable answer until the deadline. The pod may be in deletion."""


class EvictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Deadline and pauses of an eviction."""

    deadline: float = 60.0
    """Seconds after which to give up; 0 asks once."""
    first_pause: float = 1.0
    last_pause: float = 15.0
    """The longest pause between attempts, in seconds. Pauses double from the first to this one, plus jitter of up
    to the same length."""


class Eviction(msgspec.Struct, frozen=True):
    """The result of an eviction."""

    outcome: Evicted
    attempts: int
    message: str = ""
    """The server's last message; empty where it accepted the eviction."""
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
    """Evict a pod. With a uid, a new pod of the same name is left alone.

    With `dry_run`, the server is asked once whether it would evict the pod.
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
            # With a uid as precondition, Conflict means that another pod has the name now.
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
            # Tokens are renewed every hour, and a server that has just started may not know a new one yet.
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
