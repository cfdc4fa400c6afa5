"""The kubelet of this node: its folders, sockets and answers."""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.doctor.check import DoctorSection, Patient, check, is_there
from colocate.doctor.report import CheckResult, absent, bad, good, no_right, warn
from colocate.errors import Unavailable, system_reason
from colocate.kubelet.podresources import list_pods
from colocate.kubelet.sockets import fresh
from colocate.model.figures import count
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import MAX_SOCKET_PATH, Method, call, connect, is_served

_ANSWER = 5.0
"""Seconds for one call. The kubelet gives a plugin 10 s for its first call, and a plugin may block it that long."""
_API = "v1beta1"
_NO_SUCH_API = "colocate-doctor"
_LONGEST_NAME = "x" * 60

T = TypeVar("T")


@check(DoctorSection.KUBELET, "folders")
async def folders(patient: Patient) -> AsyncIterator[CheckResult]:
    """The folders exist, and a plugin can make its socket in them."""
    paths = patient.paths
    for folder, without in (
        (paths.device_plugins, "device plugins cannot register"),
        (
            paths.plugins_registry,
            "device plugins cannot register through the plugin watcher; the other way works",
        ),
    ):
        yield next(_faults_of(folder, without), good(f"{folder} is usable"))


def _faults_of(folder: Path, without: str) -> Iterator[CheckResult]:
    try:
        folder.stat()
    except PermissionError:
        yield no_right()
        return
    except OSError:
        yield warn(f"{folder} does not exist: {without}", "start the kubelet, which creates it")
        return
    if not folder.is_dir():
        yield bad(f"{folder} is not a folder: {without}", "remove it and start the kubelet, which creates it")
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        as_root = os.geteuid() == 0
        yield bad(f"{folder} cannot be written: {without}", "mount it writable") if as_root else no_right()
    longest = len(os.fsencode(fresh(folder.absolute(), _LONGEST_NAME)))
    if longest > MAX_SOCKET_PATH:
        yield warn(
            f"a socket in {folder} can have a path of {longest} bytes, but a unix socket allows "
            f"{MAX_SOCKET_PATH}",
            "use a kubelet folder with a shorter path (--root-dir of the kubelet)",
        )


@check(DoctorSection.KUBELET, "registration")
async def registration(patient: Patient) -> AsyncIterator[CheckResult]:
    """The kubelet answers plugins and knows their API version.

    The check registers with a version that no kubelet knows: the kubelet refuses, names its versions, and changes
    nothing.
    """
    socket = patient.paths.kubelet_socket
    if fault := _why_silent(socket):
        stopped = "the kubelet is stopped, or has the device manager switched off"
        yield bad(f"{fault}: {stopped}", "start the kubelet and read its log: journalctl -u kubelet")
        return
    question = dp.RegisterRequest(version=_NO_SUCH_API, resource_name="colocate.dev/doctor")
    code, details = await _ask(patient.clock, socket, methods.REGISTER, question)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        yield bad(
            f"{socket} is open, but does not answer: {details}",
            "a plugin that is slow to answer stalls the kubelet; see the plugins below, or restart the kubelet",
        )
    elif "version" in details and _API not in details:
        yield bad(
            f"this kubelet does not know {_API}: {details}", "update the kubelet: 1.10 is the first with it"
        )
    else:
        yield good(f"the kubelet answers on {socket} and speaks {_API}")


@check(DoctorSection.KUBELET, "device plugins")
async def plugins(patient: Patient) -> AsyncIterator[CheckResult]:
    """Every socket in the device-plugins folder has a plugin that answers in time."""
    folder = patient.paths.device_plugins
    try:
        found = sorted(path for path in folder.iterdir() if path.is_socket() and path.name != "kubelet.sock")
    except PermissionError:
        yield no_right()
        return
    except OSError as error:
        yield warn(f"cannot list {folder}: {system_reason(error)}", "see folders, above")
        return
    answering = []
    for socket in found:
        if not is_served(socket):
            yield warn(
                f"nothing listens on {socket.name}: its plugin was killed, or never removes its socket",
                f"start the plugin again, or remove its socket: rm {socket}",
            )
            continue
        code, details = await _ask(patient.clock, socket, methods.OPTIONS, dp.Empty())
        if code in (None, grpc.StatusCode.UNIMPLEMENTED):
            answering.append(socket.name)
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            yield bad(
                f"{socket.name} accepts connections but does not answer within {_ANSWER:g} s; that can stall "
                "the admission of every pod on this node",
                "restart this plugin",
            )
        else:
            yield warn(f"{socket.name} answers with {details}", "read the log of this plugin")
    if answering:
        yield good(f"{len(answering)} of {len(found)} answer: {', '.join(answering)}")
    elif not found:
        yield good("no plugin has a socket here")


@check(DoctorSection.KUBELET, "podresources")
async def podresources(patient: Patient) -> AsyncIterator[CheckResult]:
    """podresources says which pods hold which devices; agents ask it before they drop a device."""
    socket = patient.paths.pod_resources_socket
    effect = "Colocate then reads holders of devices from the checkpoint, which may still list ended pods"
    remedy = f"mount {socket.parent} into the agent's pod; kubelets from 1.13 on serve it"
    if fault := _why_silent(socket):
        yield warn(f"{fault}; {effect}", remedy)
        return
    try:
        pods = (await list_pods(patient.paths, patient.clock)).pod_resources
    except Unavailable as error:
        yield warn(f"{error}; {effect}", remedy)
        return
    holding = sum(any(container.devices for container in pod.containers) for pod in pods)
    yield good(f"the kubelet knows {count(len(pods), 'pod')}; {holding} with devices")


@check(DoctorSection.MACHINE, "agent")
async def agent(patient: Patient) -> AsyncIterator[CheckResult]:
    """If there is a control socket, an agent listens on it."""
    socket = patient.control_socket
    if not is_there(socket):
        yield absent(f"no agent runs here ({socket} does not exist)")
    elif not os.access(socket, os.W_OK):
        yield no_right()
    elif is_served(socket):
        yield good(f"an agent listens on {socket}")
    else:
        yield bad(
            f"an agent was killed: nothing listens on {socket}",
            "start it again; it removes the socket itself",
        )


def _why_silent(socket: Path) -> str:
    """Why nothing answers on a socket; empty if something may. PermissionError if this user cannot tell."""
    if not socket.is_socket():
        return f"{socket} is {'no socket' if socket.exists() else 'not there'}"
    if not os.access(socket, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(socket))
    return "" if is_served(socket) else f"nothing listens on {socket}"


async def _ask(
    clock: Clock, socket: Path, method: Method[T, Any], request: T
) -> tuple[grpc.StatusCode | None, str]:
    """The status of an answer, None if the call succeeded, and its message."""
    try:
        async with deadline(clock, _ANSWER), connect(socket) as channel:
            await call(channel, method, request)
    except TimeoutError:
        return grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {_ANSWER:g} s"
    except grpc.RpcError as error:
        return error.code(), error.details() or error.code().name
    return None, ""
