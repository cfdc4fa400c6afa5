"""Reads the few elements of a libvirt domain that decide what a virtual machine sees of its host's CPUs.

Any user may have written the file: its size is bounded, and a DOCTYPE, which alone can declare entities, is refused.
Nothing is judged here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.parsers import expat

from colocate.errors import UserError, system_reason
from colocate.model.cpu_topology import VirtualDomain
from colocate.model.cpuset import CpuSet

_LARGEST = 4 << 20
_READ = frozenset({"domain", "cpu", "cache", "feature", "topology", "vcpupin"})


def read_domain(path: Path) -> VirtualDomain:
    """Read the output of `virsh dumpxml`; UserError where the file is something else."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UserError(
            f"{path}: the domain cannot be read ({system_reason(error)}); check the path"
        ) from error
    if len(data) > _LARGEST:
        raise UserError(f"{path}: this is too large for a libvirt domain; give what 'virsh dumpxml' prints")
    try:
        elements = _elements(data.decode("utf-8", "replace"))
    except (expat.ExpatError, ValueError):
        elements = []
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


def _elements(text: str) -> Sequence[tuple[str, Mapping[str, str]]]:
    """The elements that are read, with their attributes, in order. No tree is built of the others."""
    found: list[tuple[str, Mapping[str, str]]] = []

    def start(name: str, attributes: Mapping[str, str]) -> None:
        if name in _READ:
            found.append((name, attributes))

    def refuse(*_: object) -> None:
        raise ValueError("no libvirt domain has a DOCTYPE")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = refuse
    parser.Parse(text, True)
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else None


def _pin(own: Mapping[str, str], path: Path) -> tuple[int, CpuSet]:
    virtual = _number(own.get("vcpu"))
    try:
        cpus = CpuSet.parse(own.get("cpuset", ""))
    except ValueError as error:
        raise UserError(f"{path}: vcpupin of vCPU {own.get('vcpu', '')[:20]}: {error}") from error
    if virtual is None or not cpus:
        raise UserError(f"{path}: a vcpupin needs a vcpu and a cpuset; this one has {own}"[:300])
    return virtual, cpus
