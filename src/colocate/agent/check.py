"""Checks ranges, names and combinations of fields, which types cannot express. Pure.

Raises the first `Problem`, with the path of its field.
"""

import os
import re
from collections.abc import Sequence

from colocate.agent.schema import Config
from colocate.config.words import Problem, show
from colocate.cpus.placer import section as cpus_check
from colocate.devices.mock import devices as mock_devices
from colocate.devices.mock import inject as mock_inject
from colocate.devices.mock.section import MockResource
from colocate.gpus.agent.section import check_gpus
from colocate.kubelet import Registration, sockets
from colocate.memory.agent.section import check_memory
from colocate.model.resource_name import why_not_allowed
from colocate.wire.rpc import MAX_SOCKET_PATH

_MAX_TIMEOUT = 3600
_MAX_NODE = 1023
_BAD_ID = re.compile(r"[\s,\x00-\x1f\x7f]")


def check(config: Config) -> None:
    """Raise a Problem if an agent could not run with this configuration."""
    _check_kubelet(config)
    address = config.metrics.address.split_host()
    if address and address[1] > 65535:
        raise Problem("metrics.address", f"{address[1]} is not a port; choose one up to 65535")
    socket = config.control.socket
    if not socket.is_absolute():
        raise Problem("control.socket", f"{show(str(socket))} is not an absolute path; begin it with '/'")
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
        raise Problem("control.socket", _too_long(len(os.fsencode(socket)), "choose a shorter path"))
    seen: dict[str, int] = {}
    for index, resource in enumerate(config.mock.resources):
        path = f"mock.resources[{index}]"
        _check_resource(resource, path)
        if resource.name in seen:
            raise Problem(
                f"{path}.name",
                f"{resource.name!r} is already declared in mock.resources[{seen[resource.name]}]; merge the "
                "two or rename one",
            )
        seen[resource.name] = index
    check_memory(config.memory)
    cpus_check.check_cpus(config.cpus)
    if config.memory.enabled and config.memory.resource in seen:
        raise Problem(
            "memory.resource",
            f"{config.memory.resource!r} is already declared in "
            f"mock.resources[{seen[config.memory.resource]}]; rename one of them",
        )
    check_gpus(config.gpus)
    others = {name: f"mock.resources[{index}]" for name, index in seen.items()}
    if config.memory.enabled:
        others[config.memory.resource] = "memory.resource"
    for index, name in enumerate(config.gpus.resources):
        if name in others:
            raise Problem(
                f"gpus.dialects[{index}]", f"it serves {name!r}, which {others[name]} has; rename that one"
            )


def _check_kubelet(config: Config) -> None:
    kubelet = config.kubelet
    if not kubelet.root.is_absolute():
        raise Problem("kubelet.root", f"{show(str(kubelet.root))} is not an absolute path; begin it with '/'")
    if not 0 < kubelet.allocate_timeout <= _MAX_TIMEOUT:
        raise Problem(
            "kubelet.allocateTimeout",
            f"{kubelet.allocate_timeout:g}s is out of range; choose more than 0s and at most 1h",
        )
    paths = kubelet.settings().paths
    by_call = kubelet.registration is Registration.REGISTER
    folder = paths.device_plugins if by_call else paths.plugins_registry
    names = [resource.name for resource in config.mock.resources]
    names += [config.memory.resource] if config.memory.enabled else []
    for name in names:
        length = len(os.fsencode(sockets.fresh(folder, name)))
        if length > MAX_SOCKET_PATH:
            raise Problem(
                "kubelet.root", _too_long(length, "choose a shorter one", f"the socket for {name!r}")
            )


def _too_long(length: int, remedy: str, what: str = "this path") -> str:
    return f"{what} would have {length} bytes, but a unix socket allows {MAX_SOCKET_PATH}; {remedy}"


def _check_resource(resource: MockResource, path: str) -> None:
    reason = why_not_allowed(resource.name)
    if reason:
        raise Problem(f"{path}.name", f"{show(resource.name)} is not allowed as a resource name: {reason}")
    if resource.numa is not None:
        _check_nodes(resource.numa.nodes, f"{path}.numa.nodes")
    if resource.count is not None and resource.ids is not None:
        raise Problem(f"{path}.ids", "count is also given; remove one of them")
    if resource.ids is not None:
        if resource.id_prefix is not None:
            raise Problem(f"{path}.idPrefix", "this belongs to count, but ids is given; remove one of them")
        _check_ids(resource, resource.ids, f"{path}.ids")
    elif resource.count is not None:
        _check_count(resource, resource.count, path)
    else:
        raise Problem(f"{path}.count", "neither count nor ids is given; set count to the number of devices")
    for where, what in mock_inject.problems(resource.inject):
        raise Problem(f"{path}.inject.{where}", what)


def _check_nodes(nodes: Sequence[int], path: str) -> None:
    if not nodes:
        raise Problem(path, "the list is empty; give at least one NUMA node, or remove numa")
    for index, node in enumerate(nodes):
        if not 0 <= node <= _MAX_NODE:
            raise Problem(f"{path}[{index}]", f"{show(node)} is not a NUMA node; choose 0 to {_MAX_NODE}")


def _check_count(resource: MockResource, count: int, path: str) -> None:
    prefix = mock_devices.prefix_of(resource)
    if _BAD_ID.search(prefix):
        raise Problem(
            f"{path}.idPrefix", f"{show(prefix)} has a blank, comma or control character; remove it"
        )
    if count < 0:
        raise Problem(f"{path}.count", f"{show(count)} is below 0; set the number of devices")
    fit = mock_devices.how_many_fit(resource)
    if count > fit:
        raise Problem(
            f"{path}.count",
            f"{show(count)} devices do not fit into the 4 MiB that a kubelet takes in one message; lower it "
            f"to at most {fit}, or split the devices over several resources",
        )


def _check_ids(resource: MockResource, ids: Sequence[str], path: str) -> None:
    seen: dict[str, int] = {}
    for index, id in enumerate(ids):
        if not id or _BAD_ID.search(id):
            what = f"{show(id)} has a blank, comma or control character" if id else "this id is empty"
            raise Problem(f"{path}[{index}]", f"{what}; write ids like 'gpu-0000'")
        if id in seen:
            raise Problem(
                f"{path}[{index}]", f"{show(id)} is already in the list, at [{seen[id]}]; remove one of them"
            )
        seen[id] = index
    fit = mock_devices.how_many_fit(resource)
    if len(ids) > fit:
        raise Problem(
            path,
            f"{len(ids)} devices do not fit into the 4 MiB that a kubelet takes in one message; keep the "
            f"first {fit}, shorten the ids, or split them over several resources",
        )
