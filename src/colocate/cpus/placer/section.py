"""The section `cpus` of the configuration: its fields, their checks, and the settings that follow from them. Pure.

The machine is unknown here: a list may name CPUs that the machine does not have.
"""

import os
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from colocate.config.words import Problem, show
from colocate.cpus import BurstLevel, CpuSettings, CpuWishes, NamedPool, parse_wishes
from colocate.errors import UserError
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from colocate.model.values import Address, CpuAmount, Section
from colocate.wire.rpc import MAX_SOCKET_PATH

_MOST_RESERVED = 16_384_000
_INDEX = re.compile(r"[0-9]{2}", re.ASCII)


class CpuPolicy(StrEnum):
    """Who decides which CPUs a container runs on."""

    TOPOLOGY = "topology"
    """The placer, by the machine's topology."""
    NONE = "none"
    """No placement: every container runs on all CPUs."""


class CpuPoolSection(Section, frozen=True):
    """CPUs for the containers of some namespaces: `cpus`, a list, or `size`, a number of CPUs."""

    name: str
    namespaces: tuple[str, ...]
    cpus: str = ""
    size: int = 0


class CpuDefaults(Section, frozen=True):
    """Wishes of pods that have none of their own, by QoS class or by namespace."""

    guaranteed: str = ""
    burstable: str = ""
    best_effort: str = ""
    namespaces: Mapping[str, str] = {}
    """By namespace. A namespace that is named here ignores the default of the QoS class."""

    def wishes(self, namespace: str, qos: QosClass) -> CpuWishes:
        """The default for pods of this namespace and class."""
        of_class = self.by_class()[qos]
        return parse_wishes(self.namespaces.get(namespace, of_class))

    def strict_namespaces(self) -> set[str]:
        """Namespaces whose pods get strict placement by default."""
        return {name for name, text in self.namespaces.items() if parse_wishes(text).strict}

    def by_class(self) -> dict[QosClass, str]:
        return {
            QosClass.GUARANTEED: self.guaranteed,
            QosClass.BURSTABLE: self.burstable,
            QosClass.BEST_EFFORT: self.best_effort,
        }


DEFAULT_STATE_FOLDER = Path("/var/lib/colocate")
DEFAULT_CPUS_SOCKET = Path("/run/colocate/cpus.sock")
DEFAULT_NRI_SOCKET = Path("/var/run/nri/nri.sock")


class NriSection(Section, frozen=True):
    """Placement by NRI."""

    enabled: bool = False
    """Whether the agent places containers; `colocate nri` always does."""
    socket: Path = DEFAULT_NRI_SOCKET
    index: str = "90"
    """Two digits: the runtime asks plugins with lower numbers first."""


class CpusSection(Section, frozen=True):
    """How `colocate cri-proxy`, `colocate nri` and the agent place containers."""

    policy: CpuPolicy = CpuPolicy.TOPOLOGY
    reserved: CpuAmount = CpuAmount(0)
    """Amount of CPUs for the system, rounded up to whole CPUs."""
    reserved_cpus: str = ""
    """List of CPUs for the system, in place of an amount."""
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
    pools: tuple[CpuPoolSection, ...] = ()
    wish_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may wish for exclusive or isolated CPUs, or for strict placement."""
    exclusive_guaranteed: bool = True
    burst: BurstLevel = BurstLevel.CCX
    spread: bool = False
    pin_memory: bool = True
    defaults: CpuDefaults = CpuDefaults()
    state_folder: Path = DEFAULT_STATE_FOLDER
    socket: Path = DEFAULT_CPUS_SOCKET
    """Where `colocate cpus` reaches the process that places containers."""
    metrics: Address = Address("off")
    """Metrics address of `colocate cri-proxy` and `colocate nri`; the agent has its own."""
    nri: NriSection = NriSection()
    publish: bool = False
    """Whether the node's annotation tells schedulers which CCXs have room."""
    node: str = ""
    """This node's name in the cluster; empty: NODE_NAME, or the host's name."""
    kubeconfig: str = ""
    """How to reach the cluster, to publish; empty: KUBECONFIG, ~/.kube/config, or the pod's service account."""
    topology: str = ""
    """For tests: decide as for this made machine or dump; cpusets are clipped to what exists."""

    @property
    def places(self) -> bool:
        """Whether containers are placed at all."""
        return self.policy is CpuPolicy.TOPOLOGY

    def settings(self) -> CpuSettings:
        """The settings of the decisions, with lists of CPUs parsed; a Problem where they contradict each other."""
        reserved = _cpus(self.reserved_cpus, "cpus.reservedCpus")
        return CpuSettings(
            reserved=reserved,
            reserved_size=int(self.reserved),
            reserved_namespaces=self.reserved_namespaces,
            pools=_named_pools(self.pools, reserved),
            wish_namespaces=self.wish_namespaces,
            exclusive_guaranteed=self.exclusive_guaranteed,
            burst=self.burst,
            spread=self.spread,
            pin_memory=self.pin_memory,
        )


def check_cpus(section: CpusSection) -> None:
    """Raise a Problem if no placer could run with this section."""
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
    section.settings()
    _check_defaults(section)


def _check_defaults(section: CpusSection) -> None:
    for name, qos in (
        ("guaranteed", QosClass.GUARANTEED),
        ("burstable", QosClass.BURSTABLE),
        ("bestEffort", QosClass.BEST_EFFORT),
    ):
        path = f"cpus.defaults.{name}"
        if _is_privileged(_wishes(section.defaults.by_class()[qos], path)):
            raise Problem(
                path,
                "exclusive, isolated and strict are for namespaces that may wish for them; use namespaces",
            )
    for namespace, text in section.defaults.namespaces.items():
        path = f"cpus.defaults.namespaces.{namespace}"
        if _is_privileged(_wishes(text, path)) and namespace not in section.wish_namespaces:
            raise Problem(
                path,
                "only wishNamespaces may have exclusive, isolated or strict; add it there, or take the wish out",
            )


def _named_pools(sections: Sequence[CpuPoolSection], reserved: CpuSet) -> tuple[NamedPool, ...]:
    pools: list[NamedPool] = []
    seen: dict[str, str] = {}
    for index, pool in enumerate(sections):
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
    for index, named in enumerate(pools):
        earlier = [reserved, *(other.cpus for other in pools[:index])]
        if any(not named.cpus.isdisjoint(other) for other in earlier):
            raise Problem(
                f"cpus.pools[{index}].cpus", "some of them are reserved, or in another pool; take them out"
            )
    return tuple(pools)


def _is_privileged(wishes: CpuWishes) -> bool:
    """Whether only pods of `wish_namespaces` may have these wishes."""
    return wishes.exclusive or wishes.isolated or wishes.strict


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
