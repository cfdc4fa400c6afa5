"""The cells of workloads in `kubectl get`: Deployments, ReplicaSets, DaemonSets and Jobs. Pure."""

from colocate.lab.api.ages import age
from colocate.lab.api.objects import Object, at, metadata, name_of, parse_time
from colocate.lab.api.selectors import to_text


def age_of(obj: Object, now: float) -> str:
    return age(metadata(obj).get("creationTimestamp"), now)


def _template(workload: Object) -> list[object]:
    containers: list[Object] = at(workload, "spec", "template", "spec", "containers") or []
    return [
        ",".join(str(one.get("name")) for one in containers),
        ",".join(str(one.get("image")) for one in containers),
        to_text(at(workload, "spec", "selector")) or "<none>",
    ]


def deployment(deployment: Object, now: float) -> list[object]:
    status = deployment.get("status") or {}
    return [
        name_of(deployment),
        f"{status.get('readyReplicas') or 0}/{at(deployment, 'spec', 'replicas')}",
        status.get("updatedReplicas") or 0,
        status.get("availableReplicas") or 0,
        age_of(deployment, now),
        *_template(deployment),
    ]


def replica_set(replica_set: Object, now: float) -> list[object]:
    status = replica_set.get("status") or {}
    return [
        name_of(replica_set),
        at(replica_set, "spec", "replicas"),
        status.get("replicas") or 0,
        status.get("readyReplicas") or 0,
        age_of(replica_set, now),
        *_template(replica_set),
    ]


def daemon_set(daemon_set: Object, now: float) -> list[object]:
    status = daemon_set.get("status") or {}
    selector = at(daemon_set, "spec", "template", "spec", "nodeSelector") or {}
    names = ("desired", "current")
    return [
        name_of(daemon_set),
        *(status.get(f"{name}NumberScheduled") or 0 for name in names),
        status.get("numberReady") or 0,
        status.get("updatedNumberScheduled") or 0,
        status.get("numberAvailable") or 0,
        ",".join(f"{key}={value}" for key, value in selector.items()) or "<none>",
        age_of(daemon_set, now),
        *_template(daemon_set),
    ]


def job(job: Object, now: float) -> list[object]:
    status = job.get("status") or {}
    ended = {one["type"] for one in status.get("conditions") or []}
    word = "Complete" if "Complete" in ended else "Failed" if "Failed" in ended else "Running"
    wanted = at(job, "spec", "completions")
    done = status.get("succeeded") or 0
    begun, over = parse_time(status.get("startTime")), parse_time(status.get("completionTime"))
    lasted = "" if begun is None else age(status["startTime"], over or now)
    return [
        name_of(job),
        word,
        f"{done}/{wanted}" if wanted is not None else f"{done}/1 of {at(job, 'spec', 'parallelism')}",
        lasted,
        age_of(job, now),
        *_template(job),
    ]
