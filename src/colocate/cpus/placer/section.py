"""The section `cpus` of the configuration: its fields, what their types cannot say, and what they mean. Pure.

Which CPUs a machine has is not known here: a list may name CPUs that it does not have.
"""

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from colocate.config.words import Problem, show
from colocate.cpus import BurstLevel, CpuSettings, CpuWishes, NamedPool, parse_wishes
from colocate.errors import UserError
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from colocate.model.values import Address, CpuAmount, Section
from colocate.wire.rpc import MAX_SOCKET_PATH

_CLASSES = {
    "guaranteed": QosClass.GUARANTEED,
    "burstable": QosClass.BURSTABLE,
    "bestEffort": QosClass.BEST_EFFORT,
}
_MOST_RESERVED = 16_384_000
_INDEX = re.compile(r"[0-9]{2}", re.ASCII)


class CpuPolicy(StrEnum):
    """Who decides which CPUs a container runs on."""

    TOPOLOGY = "topology"
    """The placer, by the machine's topology."""
    NONE = "none"
    """Nobody: every container runs on all CPUs."""


class CpuPoolSection(Section, frozen=True):
    """CPUs for the containers of some namespaces: a list, or so many."""

    name: str
    namespaces: tuple[str, ...]
    cpus: str = ""
    size: int = 0


class CpuDefaults(Section, frozen=True):
    """Wishes of pods that have none of their own."""

    guaranteed: str = ""
    burstable: str = ""
    best_effort: str = ""
    namespaces: Mapping[str, str] = {}
    """By namespace; they go before those of the QoS class."""


DEFAULT_STATE_FOLDER = Path("/var/lib/colocate")
DEFAULT_CPUS_SOCKET = Path("/run/colocate/cpus.sock")
DEFAULT_NRI_SOCKET = Path("/var/run/nri/nri.sock")


class NriSection(Section, frozen=True):
    """How containers are placed by NRI."""

    enabled: bool = False
    """Whether the agent places them; `colocate nri` does in any case."""
    socket: Path = DEFAULT_NRI_SOCKET
    index: str = "90"
    """Two digits: the runtime asks plugins of lower ones before."""


class CpusSection(Section, frozen=True):
    """Where containers are placed: for `colocate cri-proxy`, `colocate nri` and the agent alike."""

    policy: CpuPolicy = CpuPolicy.TOPOLOGY
    reserved: CpuAmount = CpuAmount(0)
    """For the system, rounded up to whole CPUs."""
    reserved_cpus: str = ""
    """The same as a list."""
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
    pools: tuple[CpuPoolSection, ...] = ()
    wish_namespaces: tuple[str, ...] = ()
    """Whose pods may wish for exclusive or isolated CPUs, or for strict placement."""
    exclusive_guaranteed: bool = True
    burst: BurstLevel = BurstLevel.CCX
    spread: bool = False
    pin_memory: bool = True
    defaults: CpuDefaults = CpuDefaults()
    state_folder: Path = DEFAULT_STATE_FOLDER
    socket: Path = DEFAULT_CPUS_SOCKET
    """Where `colocate cpus` reaches whoever places containers."""
    metrics: Address = Address("off")
    """Of `colocate cri-proxy` and `colocate nri`; the agent has its own."""
    nri: NriSection = NriSection()
    publish: bool = False
    """Whether the node's annotation tells schedulers which CCXs have room."""
    node: str = ""
    """This node's name in the cluster; empty: NODE_NAME, or the host's name."""
    kubeconfig: str = ""
    """How to reach the cluster, to publish; empty: KUBECONFIG, ~/.kube/config, or the pod's service account."""
    topology: str = ""
    """For tests: decide as for this made machine or dump; cpusets are clipped to what exists."""


def check_cpus(section: CpusSection) -> None:
    """Raise a Problem where no placer could run with it."""
    sockets = {"socket": section.socket, "nri.socket": section.nri.socket}
    for name, path in {"stateFolder": section.state_folder, **sockets}.items():
        if not path.is_absolute():
            raise Problem(f"cpus.{name}", f"{show(str(path))} is not an absolute path; begin it with '/'")
    for name, path in sockets.items():
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise Problem(
                f"cpus.{name}", f"a unix socket allows {MAX_SOCKET_PATH} bytes; choose a shorter path"
            )
    if not _INDEX.fullmatch(section.nri.index):
        raise Problem("cpus.nri.index", f"{show(section.nri.index)} is not two digits, such as '90'")
    address = section.metrics.split_host()
    if address and address[1] > 65535:
        raise Problem("cpus.metrics", f"{address[1]} is not a port; choose one up to 65535")
    if not 0 <= section.reserved <= _MOST_RESERVED:
        raise Problem(
            "cpus.reserved",
            f"{section.reserved}m CPUs cannot be reserved; give 0 to {_MOST_RESERVED // 1000} CPUs",
        )
    if section.reserved and section.reserved_cpus:
        raise Problem("cpus.reservedCpus", "reserved is also given; remove one of them")
    settings(section)
    class_wishes(section)
    for namespace, wishes in namespace_wishes(section).items():
        privileged = wishes.exclusive or wishes.isolated or wishes.strict
        if privileged and namespace not in section.wish_namespaces:
            raise Problem(
                f"cpus.defaults.namespaces.{namespace}",
                "only wishNamespaces may have exclusive, isolated or strict; add it there, or take the wish out",
            )


def settings(section: CpusSection) -> CpuSettings:
    """The same for those who decide; a Problem where it makes no sense."""
    pools: list[NamedPool] = []
    seen: dict[str, str] = {}
    for index, pool in enumerate(section.pools):
        path = f"cpus.pools[{index}]"
        cpus = _cpus(pool.cpus, f"{path}.cpus")
        if not pool.name:
            raise Problem(f"{path}.name", "a pool has a name; give it one")
        if bool(cpus) == bool(pool.size) or pool.size < 0:
            raise Problem(path, "a pool has either cpus or a size above 0; give one of them")
        if pool.name in (other.name for other in pools):
            raise Problem(f"{path}.name", f"{show(pool.name)} is already there; rename one of them")
        for namespace in pool.namespaces:
            if namespace in seen:
                raise Problem(
                    f"{path}.namespaces", f"{show(namespace)} has the pool {seen[namespace]} already"
                )
            seen[namespace] = pool.name
        pools.append(NamedPool(name=pool.name, cpus=cpus, size=pool.size, namespaces=pool.namespaces))
    reserved = _cpus(section.reserved_cpus, "cpus.reservedCpus")
    for index, named in enumerate(pools):
        earlier = [reserved, *(other.cpus for other in pools[:index])]
        if any(not named.cpus.isdisjoint(other) for other in earlier):
            raise Problem(
                f"cpus.pools[{index}].cpus", "some of them are reserved, or in another pool; take them out"
            )
    return CpuSettings(
        reserved=reserved,
        reserved_size=int(section.reserved),
        reserved_namespaces=section.reserved_namespaces,
        pools=tuple(pools),
        wish_namespaces=section.wish_namespaces,
        exclusive_guaranteed=section.exclusive_guaranteed,
        burst=section.burst,
        spread=section.spread,
        pin_memory=section.pin_memory,
    )


def class_wishes(section: CpusSection) -> dict[QosClass, CpuWishes]:
    """The wishes of pods that have none, by their QoS class."""
    defaults = section.defaults
    texts = (defaults.guaranteed, defaults.burstable, defaults.best_effort)
    found = {}
    for (name, qos), text in zip(_CLASSES.items(), texts, strict=True):
        wishes = _wishes(text, f"cpus.defaults.{name}")
        if wishes.exclusive or wishes.isolated or wishes.strict:
            raise Problem(
                f"cpus.defaults.{name}",
                "exclusive, isolated and strict are for namespaces that may wish for them; use namespaces",
            )
        if text:
            found[qos] = wishes
    return found


def namespace_wishes(section: CpusSection) -> dict[str, CpuWishes]:
    """The same by namespace."""
    return {
        name: _wishes(text, f"cpus.defaults.namespaces.{name}")
        for name, text in section.defaults.namespaces.items()
    }


def _wishes(text: str, path: str) -> CpuWishes:
    try:
        return parse_wishes(text)
    except UserError as error:
        raise Problem(path, str(error)) from error


def _cpus(text: str, path: str) -> CpuSet:
    try:
        return CpuSet.parse(text)
    except ValueError as error:
        raise Problem(path, str(error)) from error
