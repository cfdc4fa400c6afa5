"""Control-group trees made of plain folders, as a kernel and a kubelet would lay them out; and a fake sysfs.

Four layouts: cgroup v1 or v2, systemd or cgroupfs naming. The files say what they are told to say.
"""

import copy
from pathlib import Path

from colocate.host import cgroups
from colocate.host.cgroups import Naming, Tree
from colocate.model.memory import Bytes, NumaMemory, PodMemory, Pressure

LAYOUTS = [(version, naming) for version in (1, 2) for naming in Naming]
"""Every layout that the kubelet knows."""

V1_NO_LIMIT = 9223372036854771712
PAGE = 4096


class FakeTree:
    """A tree of one layout under `mount`; pods come and go as a test says."""

    def __init__(self, mount: Path, version: int, naming: Naming, parent: Path = Path()) -> None:
        self.mount = mount
        self.version = version
        self.naming = naming
        self.parent = parent
        mount.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (mount / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
            (mount / "cgroup.subtree_control").write_text("cpuset cpu io memory pids\n")
            (mount / "cgroup.procs").write_text("")
        else:
            for controller in ("memory", "cpu", "pids"):
                (mount / controller).mkdir()
                (mount / controller / "cgroup.procs").write_text("")
        (self.memory / "system.slice" / "sshd.service").mkdir(parents=True)

    def another_kubelet(self, naming: Naming, parent: Path = Path()) -> "FakeTree":
        """In the same tree, with pods of its own."""
        other = copy.copy(self)
        other.naming, other.parent = naming, parent
        return other

    @property
    def tree(self) -> Tree:
        return cgroups.find_tree(self.mount)

    @property
    def memory(self) -> Path:
        """The top of the hierarchy that accounts for memory."""
        return self.mount if self.version == 2 else self.mount / "memory"

    @property
    def root(self) -> Path:
        """The group of all pods."""
        return self.memory / self.parent / ("kubepods.slice" if self.naming is Naming.SYSTEMD else "kubepods")

    def folder(self, pod: PodMemory) -> Path:
        return self.memory / self.parent / cgroups.pod_path(pod.uid, pod.qos, self.naming)

    def write(self, *pods: PodMemory) -> None:
        """Make these pods' groups, or change what they say."""
        for pod in pods:
            self.write_group(self.folder(pod), pod)

    def write_group(self, folder: Path, says: PodMemory) -> None:
        """Make any group, with the figures of a pod."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files(says).items():
            (folder / name).write_text(text)

    def files(self, pod: PodMemory) -> dict[str, str]:
        """What the files of a pod's group say, by name."""
        return v2_files(pod) if self.version == 2 else v1_files(pod)

    def remove(self, pod: PodMemory) -> None:
        folder = self.folder(pod)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def as_read(pod: PodMemory, version: int) -> PodMemory:
    """What can be known of a pod by a kernel of this version."""
    fields = {name: getattr(pod, name) for name in pod.__struct_fields__}
    if version == 1:
        fields |= {"high": None, "pressure": None}
        fields["swap_limit"] = None if pod.limit is None else pod.swap_limit
    return PodMemory(**fields)


def v2_files(pod: PodMemory) -> dict[str, str]:
    stat = {
        "anon": pod.anon,
        "file": pod.file + pod.shmem,
        "kernel": 4096,
        "shmem": pod.shmem,
        "file_mapped": 1,
        "swapcached": 0,
        "inactive_anon": pod.anon,
        "active_anon": 0,
        "inactive_file": pod.inactive_file,
        "active_file": pod.file - pod.inactive_file,
        "unevictable": 0,
    }
    if pod.refaults is not None:
        stat |= {"workingset_refault_anon": pod.refaults // 3}
        stat |= {"workingset_refault_file": pod.refaults - pod.refaults // 3}
    files = {
        "memory.current": f"{pod.usage}\n",
        "memory.stat": _lines(stat),
        "memory.max": _v2_limit(pod.limit),
        "memory.high": _v2_limit(pod.high),
        "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n",
        "cgroup.procs": "",
    }
    if pod.swap is not None:
        files |= {"memory.swap.current": f"{pod.swap}\n", "memory.swap.max": _v2_limit(pod.swap_limit)}
    if pod.pressure:
        files["memory.pressure"] = pressure_file(pod.pressure)
    if pod.numa is not None:
        nodes = " ".join(f"N{node}={amount}" for node, amount in pod.numa.items())
        none = " ".join(f"N{node}=0" for node in pod.numa)
        idle = " ".join(f"N{node}={PAGE}" for node in pod.numa)
        rows = (f"anon {nodes}", f"file {idle}", f"kernel_stack {none}", f"inactive_file {idle}")
        files["memory.numa_stat"] = "".join(f"{row}\n" for row in rows)
    return files


def v1_files(pod: PodMemory) -> dict[str, str]:
    stat = {
        "rss": pod.anon,
        "inactive_file": pod.inactive_file,
        "active_file": pod.file - pod.inactive_file,
        "shmem": pod.shmem,
    }
    if pod.swap is not None:
        stat |= {"swap": pod.swap}
    if pod.refaults is not None:
        stat |= {"workingset_refault_anon": pod.refaults // 3}
        stat |= {"workingset_refault_file": pod.refaults - pod.refaults // 3}
    # The group's own figures come first, and are none: its processes are in the containers' groups.
    text = _lines(dict.fromkeys(stat, 0)) + f"hierarchical_memory_limit {V1_NO_LIMIT}\n"
    files = {
        "memory.usage_in_bytes": f"{pod.usage}\n",
        "memory.stat": text + _lines({f"total_{name}": value for name, value in stat.items()}),
        "memory.limit_in_bytes": f"{V1_NO_LIMIT if pod.limit is None else pod.limit}\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        "cgroup.procs": "",
    }
    swap_limited = pod.swap_limit is not None and pod.limit is not None
    if pod.swap is not None:
        both = (pod.limit or 0) + (pod.swap_limit or 0) if swap_limited else V1_NO_LIMIT
        files["memory.memsw.limit_in_bytes"] = f"{both}\n"
    if pod.numa is not None:
        nodes = " ".join(f"N{node}={amount // PAGE}" for node, amount in pod.numa.items())
        none = " ".join(f"N{node}=0" for node in pod.numa)
        total = sum(pod.numa.values()) // PAGE
        files["memory.numa_stat"] = f"total=0 {none}\nhierarchical_total={total} {nodes}\n"
    return files


def pressure_file(pressure: Pressure) -> str:
    p = pressure
    return (
        f"some avg10={p.some10:.2f} avg60={p.some60:.2f} avg300={p.some300:.2f} total={p.some_total}\n"
        f"full avg10={p.full10:.2f} avg60={p.full60:.2f} avg300={p.full300:.2f} total={p.full_total}\n"
    )


def write_numa(sys: Path, *nodes: NumaMemory) -> None:
    """The NUMA nodes of a machine, all of them online."""
    folder = sys / "devices" / "system" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "online").write_text(",".join(str(node.id) for node in nodes) + "\n")
    for node in nodes:
        own = folder / f"node{node.id}"
        own.mkdir(exist_ok=True)
        amounts = {
            "MemTotal": node.total,
            "MemFree": node.free,
            "Active(file)": node.file - node.inactive_file,
            "Inactive(file)": node.inactive_file,
        }
        lines = [f"Node {node.id} {name}: {amount // 1024:>14} kB\n" for name, amount in amounts.items()]
        (own / "meminfo").write_text("".join(lines))
        (own / "cpulist").write_text(f"{node.id}\n" if node.has_cpus else "\n")
        (own / "distance").write_text(
            " ".join(str(node.distances.get(other.id, 20)) for other in nodes) + "\n"
        )


def write_meminfo(proc: Path, amounts: dict[str, Bytes], *more: str) -> None:
    proc.mkdir(parents=True, exist_ok=True)
    lines = [f"{name + ':':<16}{amount // 1024:>8} kB\n" for name, amount in amounts.items()]
    (proc / "meminfo").write_text("".join([*lines, *(f"{line}\n" for line in more)]))


def _v2_limit(amount: Bytes | None) -> str:
    return "max\n" if amount is None else f"{amount}\n"


def _lines(values: dict[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())
