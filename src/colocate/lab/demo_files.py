"""The files of the demo: the agent's configuration, the scripts of pods, a deployment."""

from pathlib import Path

from colocate.lab.api.objects import Object
from colocate.lab.cluster import MACHINE

_CONFIG = """\
version: 1
kubelet:
  root: {root}/kubelet
log:
  format: json
control:
  socket: {root}/agent.sock
mock:
  resources:
    - name: {mock}
      count: {devices}
      numa:
        nodes: [0, 1]
"""

_MEMORY = """\
memory:
  enabled: true
  resource: {resource}
  refresh: 1s
  coolDown: 2s
  margin: {margin}
  stateFolder: {root}/state
  cgroupRoot: {cgroups}
  node: {node}
  kubeconfig: {root}/kubeconfig
"""

_GPUS = """\
gpus:
  enabled: true
  dialects: [{{name: colocate, unit: 1Gi}}]
  mock: {root}/gpus.yaml
  stateFolder: {root}/state
  health: {{refresh: 1s}}
  node: {node}
  kubeconfig: {root}/kubeconfig
"""

MOCK_GPUS = """\
version: 1
gpus:
  - {model: Tesla T4, memory: 15360Mi}
  - {model: NVIDIA A100-SXM4-40GB, memory: 40536Mi}
"""
"""Two mock GPUs."""

SAY_LIMIT = """\
own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
if [ -n "$own" ]; then limit=$(cat "/sys/fs/cgroup/memory$(dirname "$own")/memory.limit_in_bytes")
else limit=$(cat "/sys/fs/cgroup$(dirname "$(sed -n 's/^0:://p' /proc/self/cgroup)")/memory.max"); fi
echo "I may use $limit bytes"; exec sleep infinity
"""
"""A script that prints the memory limit of its pod's control group."""


def agent_config(
    root: Path, mock: str, devices: int, memory: str, cgroups: Path | None, margin: str = "10%"
) -> str:
    """The agent's configuration: `devices` devices of a mock resource, mock GPUs and, where pods have control
    groups,
    idle memory."""
    config = _CONFIG.format(root=root, mock=mock, devices=devices) + _GPUS.format(root=root, node=MACHINE)
    if cgroups is None:
        return config
    return config + _MEMORY.format(resource=memory, root=root, cgroups=cgroups, node=MACHINE, margin=margin)


def deployment(name: str, replicas: int, cpu: str = "500m", scheduler: str = "default-scheduler") -> Object:
    """A deployment whose pods go to every node but this machine."""
    labels = {"app": name}
    container = {"name": "main", "image": name, "resources": {"requests": {"cpu": cpu}}}
    here = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [MACHINE]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "affinity": affinity, "schedulerName": scheduler},
            },
        },
    }
