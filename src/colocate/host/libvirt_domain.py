"""Reads the few elements of a libvirt domain that decide what a virtual machine sees of its host's CPUs.

The file is anybody's: it is bounded, and no XML parser that follows entities sees it. Nothing is judged here.
"""

import re
from pathlib import Path

from colocate.errors import UserError, system_reason
from colocate.model.cpu_topology import VirtualDomain
from colocate.model.cpuset import CpuSet

_LARGEST = 4 << 20
_ELEMENT = re.compile(r"<(domain|cpu|cache|feature|topology|vcpupin)\b([^<>]{0,2000})>")
_ATTRIBUTE = re.compile(r"(\w{1,40})\s*=\s*(?:'([^'<>]{0,4000})'|\"([^\"<>]{0,4000})\")")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def read_domain(path: Path) -> VirtualDomain:
    """What `virsh dumpxml` prints; UserError where it is not that."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UserError(
            f"{path}: the domain cannot be read ({system_reason(error)}); check the path"
        ) from error
    if len(data) > _LARGEST:
        raise UserError(f"{path}: this is too large for a libvirt domain; give what 'virsh dumpxml' prints")
    text = _COMMENT.sub("", data.decode("utf-8", "replace"))
    elements = [(match[1], _attributes(match[2])) for match in _ELEMENT.finditer(text)]
    if not any(name == "domain" for name, _ in elements):
        raise UserError(f"{path}: this is not a libvirt domain; give what 'virsh dumpxml' prints")
    cpu = next((own for name, own in elements if name == "cpu" and "mode" in own), {})
    cache = next((own for name, own in elements if name == "cache" and "mode" in own), {})
    shape = next((own for name, own in elements if name == "topology"), {})
    return VirtualDomain(
        mode=cpu.get("mode", ""),
        cache=cache.get("mode", ""),
        required=frozenset(
            own["name"]
            for name, own in elements
            if name == "feature" and own.get("policy") == "require" and "name" in own
        ),
        cores=_number(shape.get("cores")),
        threads=_number(shape.get("threads")),
        pins={pin: cpus for name, own in elements if name == "vcpupin" for pin, cpus in [_pin(own, path)]},
    )


def _attributes(text: str) -> dict[str, str]:
    return {match[1]: match[2] or match[3] or "" for match in _ATTRIBUTE.finditer(text)}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else None


def _pin(own: dict[str, str], path: Path) -> tuple[int, CpuSet]:
    virtual = _number(own.get("vcpu"))
    try:
        cpus = CpuSet.parse(own.get("cpuset", ""))
    except ValueError as error:
        raise UserError(f"{path}: vcpupin of vCPU {own.get('vcpu', '')[:20]}: {error}") from error
    if virtual is None or not cpus:
        raise UserError(f"{path}: a vcpupin needs a vcpu and a cpuset; this one has {own}"[:300])
    return virtual, cpus
