"""Whether containers can be placed on this node, whether NRI or the CRI proxy fits, and the state of the placer."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from colocate.cpus.placer.report import STATUS, AskPlacement
from colocate.cpus.placer.store import examine_state
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.report import CheckResult, absent, bad, good, no_right, warn
from colocate.errors import UserError
from colocate.kubelet.configuration import FLAG_FILES, RUNTIME_ENDPOINT, find
from colocate.kubelet.managers import static_managers
from colocate.model.figures import count
from colocate.wire import control_socket as control
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire.rpc import call, connect, is_served

_CONTAINERD = Path("/run/containerd/containerd.sock")
_ANSWER = 5.0
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})")


@check(DoctorSection.KUBELET, "cpu managers")
async def cpu_managers(patient: Patient) -> AsyncIterator[CheckResult]:
    """The kubelet's static CPU and memory managers, which write the same cpusets."""
    flags = [patient.paths.root / "kubeadm-flags.env", *FLAG_FILES[1:]]
    found = static_managers(patient.paths, flags, patient.paths.root / "config.yaml")
    for name, file in found.items():
        state = patient.paths.root / f"{name.split()[0].lower()}_manager_state"
        yield warn(
            f"the kubelet's {name} is static ({file}): Colocate places no container beside it",
            f"to have Colocate place containers, set its policy to none, remove {state} and restart the kubelet",
        )
    if not found:
        yield good("neither the CPU manager nor the memory manager of the kubelet is static")


@check(DoctorSection.KUBELET, "placement way")
async def placement_way(patient: Patient) -> AsyncIterator[CheckResult]:
    """Whether this node's runtime has NRI, or needs the CRI proxy."""
    flags = [patient.paths.root / "kubeadm-flags.env", *FLAG_FILES[1:]]
    place = find(RUNTIME_ENDPOINT, flags, patient.paths.root / "config.yaml")
    socket = Path(place.value.removeprefix("unix://")) if place else _CONTAINERD
    nri = patient.nri_socket
    try:
        served = is_served(socket)
        with_nri = nri.exists() and is_served(nri)
    except PermissionError:
        yield no_right()
        return
    if not served:
        yield absent(f"no container runtime listens on {socket}")
        return
    try:
        async with connect(socket) as channel:
            said = await call(channel, methods.VERSION, cri.VersionRequest(), timeout=_ANSWER)
    except grpc.RpcError as error:
        yield warn(f"the runtime on {socket} does not answer: {error.code().name}", "see its log")
        return
    yield fitting_way(said.runtime_name, said.runtime_version, nri=with_nri)


def fitting_way(name: str, version: str, *, nri: bool) -> CheckResult:
    """Which of NRI and the CRI proxy to use with a runtime."""
    runtime = f"{name[:40]} {version[:40]}"
    match = _VERSION.match(version)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    if nri:
        return good(f"{runtime} has NRI: 'colocate nri' fits this node")
    if name == "containerd" and number >= (1, 7):
        return good(
            f"{runtime} can have NRI, but it is off: switch it on in its configuration "
            "(plugins.'io.containerd.nri.v1.nri', disable = false) for 'colocate nri', or use 'colocate cri-proxy'"
        )
    return good(f"{runtime} has no NRI here: 'colocate cri-proxy' fits this node")


@check(DoctorSection.MACHINE, "placement")
async def placement(patient: Patient) -> AsyncIterator[CheckResult]:
    """The placer of this node runs, is connected to the runtime, and has stored its state."""
    try:
        for trouble in examine_state(patient.placement_state):
            yield warn(
                trouble, "nothing to do: the placer rebuilds it from what runs; you can remove the file"
            )
    except PermissionError:
        yield no_right()
        return
    try:
        report = await control.ask(patient.placement_socket, STATUS, AskPlacement())
    except UserError:
        yield absent(f"no placer answers on {patient.placement_socket}")
        return
    if report.blind:
        yield bad(
            f"containers start unplaced, because the CPU topology cannot be read: {report.blind}",
            "correct that; the placer tries again within a minute, and then places running containers too",
        )
    elif not report.connected:
        yield bad("the placer runs, but is not connected to the runtime", "see its log for the reason")
    elif report.off or not report.active:
        yield warn(
            "placement is off on this node",
            "'colocate cpus on' switches it on; or set cpus.policy",
        )
    else:
        yield good(
            f"{count(len(report.containers), 'container')} placed, {len(report.whole)} whole CCXs free"
        )
    for doubt in report.doubts:
        yield warn(doubt, "change cpus in the configuration, or the machine")
    if report.unstored:
        yield warn(f"the placer cannot store its state ({report.unstored})", "make room on that disk")
    if report.unwritten:
        yield warn(
            f"the runtime has not accepted new CPUs of {count(report.unwritten, 'container')} yet",
            "wait a minute; if it stays, see the runtime's log",
        )
