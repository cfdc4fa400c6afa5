"""What a container gets with mock devices: the configured values with their placeholders filled in. Pure.

Values may be secret, so no error message repeats one.
"""

import re
import string
from collections.abc import Iterator, Sequence

import msgspec

from colocate.config.words import dotted
from colocate.devices.mock.section import MockResource
from colocate.model.device import Allocation, DeviceNode, Mount

PLACEHOLDERS = ("ids", "count", "resource")
_KNOWN = "known are {ids}, {count} and {resource}; write {{ and }} for braces"

_ENV_NAME = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
_CDI_NAME = re.compile(r"[^/=\s]+/[^/=\s]+=\S+")


def filled(resource: MockResource, ids: Sequence[str]) -> Allocation:
    """What a container that gets exactly these devices is started with."""
    values = {"ids": ",".join(ids), "count": str(len(ids)), "resource": resource.name}

    def fill(template: str) -> str:
        return template.format_map(values)

    inject = resource.inject
    return Allocation(
        envs={name: fill(value) for name, value in (inject.envs or default_envs(resource)).items()},
        mounts=[
            msgspec.structs.replace(
                mount, container_path=fill(mount.container_path), host_path=fill(mount.host_path)
            )
            for mount in inject.mounts
        ],
        devices=[
            msgspec.structs.replace(
                node, container_path=fill(node.container_path), host_path=fill(node.host_path)
            )
            for node in inject.devices
        ],
        annotations={name: fill(value) for name, value in inject.annotations.items()},
        cdi=[fill(name) for name in inject.cdi],
    )


def default_envs(resource: MockResource) -> dict[str, str]:
    """The variable for a resource without configured variables: MOCK_GPU=gpu-0000,gpu-0003."""
    name = re.sub(r"[^A-Za-z0-9]", "_", resource.name).upper()
    return {f"_{name}" if name[0].isdigit() else name: "{ids}"}


def problems(inject: Allocation) -> Iterator[tuple[str, str]]:
    """The paths in `inject` that are invalid, each with the reason."""
    for name, value in inject.envs.items():
        path = dotted("envs", name)
        if not _ENV_NAME.fullmatch(name):
            yield path, "this cannot be the name of an environment variable; use letters, digits and '_'"
        yield from _template_problems(path, value)
    for name, value in inject.annotations.items():
        yield from _template_problems(dotted("annotations", name), value)
    for index, mount in enumerate(inject.mounts):
        yield from _path_problems(f"mounts[{index}]", mount)
    for index, node in enumerate(inject.devices):
        yield from _path_problems(f"devices[{index}]", node)
        if not node.permissions or set(node.permissions) - set("rwm"):
            yield f"devices[{index}].permissions", "use the letters r (read), w (write) and m (mknod)"
    for index, name in enumerate(inject.cdi):
        if not _CDI_NAME.fullmatch(name):
            yield f"cdi[{index}]", "write a CDI device like 'vendor.com/class=name'"
        yield from _template_problems(f"cdi[{index}]", name)


def _path_problems(path: str, of: Mount | DeviceNode) -> Iterator[tuple[str, str]]:
    may_be_absent = isinstance(of, DeviceNode)
    for field, value in (("hostPath", of.host_path), ("containerPath", of.container_path)):
        if field == "containerPath" and may_be_absent and not value:
            continue
        if not value.startswith("/"):
            yield f"{path}.{field}", "this is not an absolute path; begin it with '/'"
        yield from _template_problems(f"{path}.{field}", value)


def _template_problems(path: str, template: str) -> Iterator[tuple[str, str]]:
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        yield path, f"a brace has no partner; {_KNOWN}"
        return
    for _, name, spec, conversion in parts:
        if name is not None and (name not in PLACEHOLDERS or spec or conversion):
            yield path, f"a placeholder does not exist; {_KNOWN}"
            return
