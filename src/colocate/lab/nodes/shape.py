"""The shape of a node (size, labels and taints), from a file, a count, or this machine."""

import os
from pathlib import Path

import msgspec
import yaml

from colocate.errors import UserError, unreadable
from colocate.host.identity import Identity
from colocate.lab.api.managed_fields import FieldWriter
from colocate.lab.api.objects import Object
from colocate.model import quantity

VERSION = "v1.34.0+colocate-lab"
MAX_PODS = 110
MOST = 5000
NOWHERE = Identity("", "", "")
"""The machine ids of simulated nodes."""
KUBELET = FieldWriter("kubelet")
KUBELET_STATUS = FieldWriter("kubelet", "status")
"""The field manager of a kubelet's status writes."""


class ShapeTaint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A taint, which keeps away pods that do not tolerate it."""

    key: str
    effect: str
    value: str = ""


class LabNodeShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, or a group of equal ones."""

    name: str
    count: int = 0
    """0 is one node of this name; a larger number makes that many, named name-0001 and so on."""
    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = MAX_PODS
    resources: dict[str, int] = {}
    """Extended resources, as if a device plugin had registered them."""
    labels: dict[str, str] = {}
    roles: tuple[str, ...] = ()
    taints: tuple[ShapeTaint, ...] = ()

    def each(self) -> list["LabNodeShape"]:
        """The nodes of a group, one by one."""
        if not self.count:
            return [self]
        return [
            msgspec.structs.replace(self, name=f"{self.name}-{number:04}", count=0)
            for number in range(1, self.count + 1)
        ]

    def capacity(self) -> dict[str, str]:
        """The capacity in a node's status."""
        extended = {name: str(count) for name, count in self.resources.items()}
        return {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods)} | extended


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[LabNodeShape, ...]


def generated(count: int) -> list[LabNodeShape]:
    """`count` equal nodes."""
    if count < 0 or count > MOST:
        raise UserError(f"--nodes: {count} is not between 0 and {MOST}; give the number of simulated nodes")
    return LabNodeShape(name="node", count=count, roles=("worker",)).each() if count else []


def from_file(path: Path) -> list[LabNodeShape]:
    """The nodes that a YAML file lists under `nodes`."""
    try:
        tree = yaml.safe_load(path.read_text())
        groups = msgspec.convert(tree, _File).nodes
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({unreadable(error)}); check the path") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {reason}; see examples/nodes.yaml") from error
    for group in groups:
        if not 0 <= group.count <= MOST:
            raise UserError(
                f"{path}: {group.name}: count {group.count} is not between 0 and {MOST}; correct it"
            )
    shapes = [shape for group in groups for shape in group.each()]
    for shape in shapes:
        for size in (shape.cpu, shape.memory):
            try:
                quantity.parse(size)
            except ValueError as error:
                raise UserError(f"{path}: {shape.name}: {error}; correct it") from error
    names = [shape.name for shape in shapes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: there are two nodes named {twice!r}; rename one")
    return shapes


def this_machine(name: str) -> LabNodeShape:
    """The machine that the lab runs on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return LabNodeShape(
        name=name, cpu=str(os.cpu_count() or 1), memory=f"{pages // 1024}Ki", roles=("worker",)
    )


def node_object(
    shape: LabNodeShape,
    now: str,
    *,
    address: str,
    runtime: str,
    identity: Identity = NOWHERE,
    version: str = VERSION,
) -> Object:
    """The Node as its kubelet registers it."""
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/os": "linux",
        **{f"node-role.kubernetes.io/{role}": "" for role in shape.roles},
        **shape.labels,
    }
    spec: Object = {"taints": [msgspec.to_builtins(taint) for taint in shape.taints]} if shape.taints else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": shape.name, "labels": labels},
        "spec": spec,
        "status": {
            "capacity": shape.capacity(),
            "allocatable": shape.capacity(),
            "conditions": conditions(now, now),
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": shape.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": identity.machine_id,
                "systemUUID": identity.machine_id,
                "bootID": identity.boot_id,
                "kernelVersion": os.uname().release,
                "osImage": "Colocate lab",
                "containerRuntimeVersion": runtime,
                "kubeletVersion": version,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def conditions(now: str, since: str) -> list[Object]:
    """The conditions of a healthy node."""
    return [
        {
            "type": type,
            "status": status,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        }
        for type, status, reason, message in _CONDITIONS
    ]
