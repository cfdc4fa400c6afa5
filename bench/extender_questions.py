"""The questions that a kube-scheduler would ask of an extender in a cluster of a given size. No I/O here."""

from typing import Any

import msgspec

_UID = "32487b56-41ce-4e28-a65d-%012x"


class Question(msgspec.Struct, frozen=True):
    path: str
    body: bytes

    def of_pod(self, number: int) -> bytes:
        """The same about another pod: kube-scheduler asks about one after the other."""
        return self.body.replace((_UID % 0).encode(), (_UID % number).encode(), 1)


def node_names(count: int) -> list[str]:
    return [
        f"ip-10-{number // 256}-{number % 256}-17.eu-central-1.compute.internal" for number in range(count)
    ]


def questions_about_names(count: int, cluster: int) -> list[Question]:
    """About so many of a cluster's nodes, from all over it."""
    return [Question("/prioritize", _body(None, node_names(cluster)[:: cluster // count]))]


def questions_about_nodes(count: int) -> list[Question]:
    body = _body({"metadata": {}, "items": [_node(name) for name in node_names(count)]}, None)
    return [Question("/filter", body), Question("/prioritize", body)]


def _body(nodes: Any, names: list[str] | None) -> bytes:
    return msgspec.json.encode({"Pod": _pod(), "Nodes": nodes, "NodeNames": names})


def _pod() -> dict[str, Any]:
    container = {
        "name": "nginx",
        "image": "nginx",
        "resources": {"requests": {"cpu": "50m", "memory": "100Mi"}, "limits": {"memory": "200Mi"}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
    }
    return {
        "metadata": {
            "name": "nginx-7d9-abcde",
            "namespace": "default",
            "uid": _UID % 0,
            "labels": {"app": "nginx", "pod-template-hash": "7d9"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "nginx-7d9", "controller": True}],
        },
        "spec": {"containers": [container], "schedulerName": "mem-real-usage-scheduler", "priority": 0},
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _node(name: str) -> dict[str, Any]:
    """A node as large as they are once they have pulled images: some 10 kB."""
    offered = {"cpu": "64", "ephemeral-storage": "1698763807594", "memory": "263713784Ki", "pods": "110"}
    times = {"lastHeartbeatTime": "2026-11-15T20:47:55Z", "lastTransitionTime": "2026-11-15T20:40:55Z"}
    conditions = [
        {"type": kind, "status": "False", "reason": f"KubeletHasNo{kind}", "message": f"no {kind}", **times}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {
            "names": [f"registry.example/team/app-{n}@sha256:{n:064x}", f"registry.example/team/app-{n}:v1"],
            "sizeBytes": n,
        }
        for n in range(1, 51)
    ]
    return {
        "metadata": {
            "name": name,
            "uid": "5e9e956d-25b0-4976-a65d-23da3084d92d",
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "z1"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"capacity": offered, "allocatable": offered, "conditions": conditions, "images": images},
    }
