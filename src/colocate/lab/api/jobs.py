"""Runs a Job's pods until enough have succeeded, or too many have failed.

`plan` decides, from the Job and its pods; `carry_out` acts. Left out: indexed Jobs, suspension, pod failure policies,
time to live and CronJobs.
"""

import msgspec

from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import delete
from colocate.lab.api.events import record
from colocate.lab.api.objects import (
    Object,
    at,
    is_ready,
    is_terminating,
    metadata,
    name_of,
    namespace_of,
    parse_time,
    rfc3339,
)
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.replica_sets import is_active, pods_of, templated
from colocate.lab.api.resources import JOBS, PODS
from colocate.lab.api.status import StatusError

COMPONENT = "job-controller"
BACK_OFF_LIMIT = 6
_RETRY = 60.0
_FIRST_WAIT, _LONGEST_WAIT = 10.0, 360.0


class JobPlan(msgspec.Struct, frozen=True):
    """The actions for one Job."""

    create: int
    delete: list[str]
    status: Object
    again_in: float | None = None


def plan(job: Object, pods: list[Object], now: float) -> JobPlan:
    """Decide the actions for a Job with these pods."""
    spec, before = job["spec"], job.get("status") or {}
    succeeded = sum(1 for pod in pods if at(pod, "status", "phase") == "Succeeded")
    failed = [pod for pod in pods if at(pod, "status", "phase") == "Failed"]
    active = [pod for pod in pods if is_active(pod)]
    parallelism = int(spec.get("parallelism", 1))
    wanted = spec.get("completions")
    # Without a number of completions, one success completes the Job.
    left = int(wanted) - succeeded if wanted is not None else (0 if succeeded else parallelism)
    started = parse_time(before.get("startTime")) or now
    ending = _ending(spec, left, len(failed), len(active), now - started)
    status: Object = {"startTime": before.get("startTime") or rfc3339(now)}
    counts = {
        "active": len(active),
        "ready": sum(map(is_ready, active)),
        "succeeded": succeeded,
        "failed": len(failed),
    }
    status |= {name: value for name, value in counts.items() if value}
    if is_over(job) or ending:
        conditions = before.get("conditions") or [
            {"type": ending, "status": "True", "lastTransitionTime": rfc3339(now), **_REASONS[ending]}
        ]
        status["conditions"] = conditions
        if conditions[0]["type"] == "Complete":
            status["completionTime"] = before.get("completionTime") or rfc3339(now)
        status.pop("active", None)
        return JobPlan(0, [name_of(pod) for pod in active], status)
    missing = max(0, min(parallelism, left) - len(active))
    pause = _pause(failed, now) if missing else 0.0
    surplus = [name_of(pod) for pod in active[min(parallelism, left) :]]
    deadline = spec.get("activeDeadlineSeconds")
    waits = [pause, *([started + float(deadline) - now] if deadline is not None else [])]
    return JobPlan(0 if pause else missing, surplus, status, min((w for w in waits if w > 0), default=None))


_REASONS: dict[str, Object] = {
    "Complete": {},
    "Failed": {
        "reason": "BackoffLimitExceeded",
        "message": "Job has reached the specified backoff limit, or was active longer than specified deadline",
    },
}


def _ending(spec: Object, left: int, failed: int, active: int, age: float) -> str:
    if left <= 0 and (spec.get("completions") is not None or not active):
        return "Complete"
    deadline = spec.get("activeDeadlineSeconds")
    if failed > int(spec.get("backoffLimit", BACK_OFF_LIMIT)) or (deadline is not None and age >= deadline):
        return "Failed"
    return ""


def is_over(job: Object) -> bool:
    return bool(at(job, "status", "conditions"))


def _pause(failed: list[Object], now: float) -> float:
    """Seconds to wait after the latest failure before the next pod."""
    if not failed:
        return 0.0
    last = max(parse_time(metadata(pod).get("creationTimestamp")) or 0.0 for pod in failed)
    wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (len(failed) - 1))
    return max(0.0, last + wait - now)


def carry_out(registry: ObjectRegistry, stored: Stored) -> float | None:
    """Reconcile a Job; returns the seconds until the next look, or None."""
    job = stored.body
    if is_terminating(job):
        return None
    decided = plan(job, pods_of(registry, job), registry.clock.time())
    namespace = namespace_of(job)
    for _ in range(decided.create):
        try:
            pod = registry.create(PODS, namespace, _pod(job))
        except StatusError as error:
            record(registry, JOBS, job, COMPONENT, "FailedCreate", f"Error creating: {error}")
            return _RETRY
        record(registry, JOBS, job, COMPONENT, "SuccessfulCreate", f"Created pod: {pod.key.name}")
    for name in decided.delete:
        delete(registry, PODS, namespace, name)
        record(registry, JOBS, job, COMPONENT, "SuccessfulDelete", f"Deleted pod: {name}")
    if not is_over(job) and decided.status.get("conditions"):
        word = decided.status["conditions"][0]["type"]
        told = {"Complete": ("Completed", "Job completed"), "Failed": ("Failed", "Job has failed")}[word]
        record(registry, JOBS, job, COMPONENT, *told)
    now = registry.get(JOBS, namespace, name_of(job))
    status = decided.status
    if decided.create:
        status = plan(now.body, pods_of(registry, job), registry.clock.time()).status
    if now.body.get("status") != status:
        registry.force(JOBS, now, lambda body: body.update(status=status))
    return decided.again_in


def _pod(job: Object) -> Object:
    pod = templated(JOBS, job)
    names = {"batch.kubernetes.io/job-name": name_of(job), "job-name": name_of(job)}
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], **names}
    return pod
