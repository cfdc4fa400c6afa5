"""What makes placement blind in a virtual machine, and the lines of libvirt that mend it."""

from pathlib import Path

import msgspec
import pytest

from colocate.cpus import libvirt_lines, lint_vm
from colocate.errors import UserError
from colocate.host.libvirt_domain import read_domain
from colocate.model.cpu_shapes import HYGON, CpuShape, ThreadOrder, machine
from colocate.model.cpu_topology import CpuTopology, ProcessorKind, VirtualDomain

HOST = machine(HYGON)
GUEST = CpuShape(ccx_cores=(4, 4), thread_order=ThreadOrder.NEAR)
"""One NUMA node of the host, as QEMU numbers it."""


def codes(
    guest: CpuTopology, host: CpuTopology | None = None, domain: VirtualDomain | None = None
) -> list[str]:
    return [finding.code for finding in lint_vm(guest, host, domain)]


@pytest.fixture
def domain(tmp_path: Path) -> VirtualDomain:
    """The lines that are proposed, as a domain."""
    file = tmp_path / "domain.xml"
    file.write_text("\n".join(["<domain type='kvm'>", *libvirt_lines(16, HOST), "</domain>"]))
    return read_domain(file)


def test_the_proposed_lines_are_those_of_the_seed_and_have_no_fault(domain: VirtualDomain) -> None:
    lines = libvirt_lines(16, HOST)
    assert "  <vcpupin vcpu='0' cpuset='0'/>" in lines
    assert "  <vcpupin vcpu='1' cpuset='64'/>" in lines
    assert "  <vcpupin vcpu='5' cpuset='66'/>" in lines
    assert "  <topology sockets='1' dies='1' cores='8' threads='2'/>" in lines
    assert "  <feature policy='require' name='topoext'/>" in lines
    assert (domain.cores, domain.threads, len(domain.pins)) == (8, 2, 16)
    assert codes(machine(GUEST), HOST, domain) == []


def test_no_l3_or_one_per_core_is_found() -> None:
    assert codes(machine(msgspec.structs.replace(GUEST, tells_l3=False))) == ["no-l3"]
    assert codes(machine(msgspec.structs.replace(GUEST, ccx_cores=(1,) * 8))) == ["l3-not-shared"]
    assert codes(machine(msgspec.structs.replace(GUEST, ccx_cores=(1,)))) == []


def test_an_l3_wider_than_the_hosts_is_found() -> None:
    assert codes(machine(msgspec.structs.replace(GUEST, ccx_cores=(8,))), HOST) == ["l3-too-wide"]


def test_a_processor_without_topoext_is_found() -> None:
    for vendor, topoext, found in [
        ("HygonGenuine", False, ["no-topoext"]),
        ("AuthenticAMD", False, ["no-topoext"]),
        ("AuthenticAMD", True, []),
        ("GenuineIntel", False, []),
    ]:
        processor = ProcessorKind(vendor=vendor, virtual=True, topoext=topoext)
        assert codes(msgspec.structs.replace(machine(GUEST), processor=processor)) == found


def test_cores_and_threads_unlike_the_host_are_found() -> None:
    assert codes(machine(CpuShape(ccx_cores=(4, 4), threads=1)), HOST) == ["threads-per-core"]
    assert codes(machine(CpuShape(ccx_cores=(4, 3))), HOST) == ["cores-per-NUMA-node"]


def test_virtual_cpus_against_the_order_of_threads_are_found(domain: VirtualDomain) -> None:
    pins = dict(domain.pins)
    pins[1], pins[2] = pins[2], pins[1]
    crossed = msgspec.structs.replace(domain, pins=pins)
    assert codes(machine(GUEST), HOST, crossed) == ["vcpu-order"]
    (finding,) = lint_vm(machine(GUEST), HOST, crossed)
    assert "CPUs 0, 1 of the host are not" in finding.sentence
    assert finding.lines == libvirt_lines(16, HOST)


def test_virtual_cpus_of_one_ccx_on_two_of_the_host_are_found(domain: VirtualDomain) -> None:
    pins = dict(domain.pins)
    for one, other in ((0, 8), (1, 9)):
        pins[one], pins[other] = pins[other], pins[one]
    assert codes(machine(GUEST), HOST, msgspec.structs.replace(domain, pins=pins)) == ["ccx-order"]


def test_virtual_cpus_without_a_pin_are_found(domain: VirtualDomain) -> None:
    pins = {cpu: cpus for cpu, cpus in domain.pins.items() if cpu != 3}
    assert codes(machine(GUEST), HOST, msgspec.structs.replace(domain, pins=pins)) == ["not-pinned"]


def test_a_domain_that_hides_the_host_is_found(domain: VirtualDomain) -> None:
    hidden = msgspec.structs.replace(domain, mode="custom", cache="", required=frozenset())
    (finding,) = lint_vm(machine(GUEST), HOST, hidden)
    assert finding.code == "domain-cpu"
    for said in ("custom", "cache mode is not set", "topoext"):
        assert said in finding.sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "not a libvirt domain"),
        ("<domain><vcpupin vcpu='0' cpuset='x'/></domain>", "not a list of CPUs"),
        ("<domain><vcpupin cpuset='0'/></domain>", "needs a vcpu"),
        ("<domain>" + "x" * (5 << 20), "too large"),
    ],
)
def test_what_is_no_domain_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "domain.xml"
    file.write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        read_domain(file)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="no such file"):
        read_domain(tmp_path / "absent")


def test_comments_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "domain.xml"
    file.write_text("<domain><!-- <vcpupin vcpu='0' cpuset='1'/> --><cpu mode='custom'/></domain>")
    found = read_domain(file)
    assert found.pins == {}
    assert found.mode == "custom"


@pytest.mark.parametrize(
    "entities",
    [
        "<!ENTITY a 'aaaa'>",
        "<!ENTITY a SYSTEM 'file:///etc/passwd'>",
        "<!ENTITY b '" + "b" * 100_000 + "'><!ENTITY a '" + "&b;" * 10_000 + "'>",
    ],
)
def test_entities_are_refused_before_they_are_read(entities: str, tmp_path: Path) -> None:
    file = tmp_path / "domain.xml"
    file.write_text(f"<!DOCTYPE d [{entities}]><domain><name>&a;</name><cpu mode='&a;'/></domain>")
    with pytest.raises(UserError, match="not a libvirt domain"):
        read_domain(file)
