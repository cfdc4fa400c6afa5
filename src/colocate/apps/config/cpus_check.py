"""The section about CPUs: what its types cannot say, and what it means for those who decide. Pure.

Which CPUs a machine has is not known here: a list may name CPUs that it does not have.
"""

import os
import re

from colocate.apps.config.schema import CpusSection
from colocate.apps.config.words import Problem, show
from colocate.cpus import CpuSettings, CpuWishes, NamedPool, parse_wishes
from colocate.errors import UserError
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from colocate.wire.rpc import MAX_SOCKET_PATH

_CLASSES = {
    "guaranteed": QosClass.GUARANTEED,
    "burstable": QosClass.BURSTABLE,
    "bestEffort": QosClass.BEST_EFFORT,
}
_MOST_RESERVED = 16_384_000
_INDEX = re.compile(r"[0-9]{2}", re.ASCII)


def check(section: CpusSection) -> None:
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
