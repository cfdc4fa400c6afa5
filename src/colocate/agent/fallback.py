"""Converts a fallback.cfg of cri-resource-manager into a configuration of Colocate. Pure.

Such a file has `policy` at its top and no version. A field without an equivalent here is refused by name, never
ignored: a node must not run with half of its operator's settings.
"""

from collections.abc import Mapping
from typing import Any

from colocate.config.words import Problem, show, suggest

_POLICIES = {"topology-aware": "topology", "none": "none"}
_FLAGS = {
    "PinMemory": ("pinMemory", False),
    "PreferSharedCPUs": ("exclusiveGuaranteed", True),
    "PinCPU": ("", False),
}
"""By a field of cri-resource-manager: our field, and whether ours means the opposite."""


def is_fallback(tree: Any) -> bool:
    """Whether a file is a fallback.cfg of cri-resource-manager."""
    return isinstance(tree, Mapping) and "policy" in tree and "version" not in tree


def from_fallback(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of our configuration; Problem if a field has no equivalent."""
    for name in tree:
        if name not in ("policy", "logger"):
            raise Problem(name, f"only the policy of a fallback.cfg is read; {_REMEDY}")
    policy = _mapping(tree["policy"], "policy")
    cpus: dict[str, Any] = {}
    for name, value in policy.items():
        match name:
            case "Active":
                if not isinstance(value, str) or value not in _POLICIES:
                    raise Problem(
                        "policy.Active",
                        f"{show(value)} is not known here; choose one of {', '.join(_POLICIES)}",
                    )
                cpus["policy"] = _POLICIES[value]
            case "ReservedResources":
                cpus |= _reserved(_mapping(value, "policy.ReservedResources"))
            case "topology-aware":
                cpus |= _topology_aware(_mapping(value, "policy.topology-aware"))
            case _:
                known = ("Active", "ReservedResources", "topology-aware")
                raise Problem(
                    f"policy.{name}", f"it has no meaning here; {suggest(name, known, 'fields')}; {_REMEDY}"
                )
    return {"version": 1, "cpus": cpus}


_REMEDY = "remove it, or write a configuration of Colocate ('colocate config example')"


def _reserved(value: Mapping[str, Any]) -> dict[str, Any]:
    for name in value:
        if name != "CPU":
            raise Problem(f"policy.ReservedResources.{name}", f"only CPUs can be reserved; {_REMEDY}")
    amount = value.get("CPU")
    if isinstance(amount, str) and amount.startswith("cpuset:"):
        return {"reservedCpus": amount.removeprefix("cpuset:")}
    return {"reserved": amount} if amount is not None else {}


def _topology_aware(value: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, said in value.items():
        path = f"policy.topology-aware.{name}"
        if name == "ReservedPoolNamespaces":
            found["reservedNamespaces"] = said
        elif name in _FLAGS:
            if not isinstance(said, bool):
                raise Problem(path, f"{show(said)} is not true or false; write one of the two")
            ours, opposite = _FLAGS[name]
            if not ours and not said:
                raise Problem(path, "without CPUs there is nothing to place; write 'Active: none'")
            if ours:
                found[ours] = said is not opposite
        else:
            raise Problem(path, f"it has no meaning here; {_REMEDY}")
    return found


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Problem(path, f"{show(value)} is not a mapping; write 'field: value' lines below it")
    return value
