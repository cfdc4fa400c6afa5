"""The parts of the openapi documents that kubectl reads: which kinds can be patched, with which parameters.

They hold no schemas: kubectl then lets the server check fields and merges by its built-in rules, and `kubectl
explain` has nothing to show.
"""

from collections.abc import Iterator

from colocate.lab.api import resources
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import ServedResource

PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")
_TITLE = "Kubernetes, as far as Colocate's lab serves it"
GVK = "x-kubernetes-group-version-kind"


def path_of(resource: ServedResource) -> str:
    """The path of one object."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}{scope}/{resource.plural}/{{name}}"


def gvk_of(resource: ServedResource) -> dict[str, str]:
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def patchable(group: str | None = None) -> Iterator[ServedResource]:
    """The resources that have a patch operation, of all groups or of one."""
    for resource in resources.RESOURCES:
        if resource.is_stored and group in (None, resource.group):
            yield resource


def version_2(version: str) -> Object:
    """/openapi/v2, as JSON."""
    return {
        "swagger": "2.0",
        "info": {"title": _TITLE, "version": version},
        "paths": {path_of(resource): {"patch": _operation_2(resource)} for resource in patchable()},
        "definitions": {},
    }


def version_2_protobuf(version: str) -> bytes:
    """/openapi/v2 as protobuf, the only form that kubectl accepts.

    The numbers are those of the fields of gnostic's openapi_v2.Document.
    """
    paths = b"".join(
        _field(2, _named(path_of(resource), _field(8, _operation_protobuf(resource))))
        for resource in patchable()
    )
    info = _text(1, _TITLE) + _text(2, version)
    return _text(1, "2.0") + _field(2, info) + _field(8, paths)


def version_3_index() -> Object:
    """/openapi/v3: the paths of the documents of each group."""
    roots = ["api/v1", *(f"apis/{group}/{version}" for group, version in resources.groups())]
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}


def version_3(root: str, version: str) -> Object | None:
    """/openapi/v3/<root>: the document of one group; None where there is no such group."""
    if root not in version_3_index()["paths"]:
        return None
    group = "" if root.startswith("api/") else root.split("/")[1]
    paths = {path_of(resource): {"patch": _operation_3(resource)} for resource in patchable(group)}
    return {"openapi": "3.0.0", "info": {"title": _TITLE, "version": version}, "paths": paths}


def _operation_2(resource: ServedResource) -> Object:
    listed = [{"name": name, "in": "query", "type": "string"} for name in PARAMETERS]
    return {"operationId": f"patch{resource.kind}", "parameters": listed, GVK: gvk_of(resource)}


def _operation_3(resource: ServedResource) -> Object:
    listed = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in PARAMETERS]
    return {"operationId": f"patch{resource.kind}", "parameters": listed, GVK: gvk_of(resource)}


def _operation_protobuf(resource: ServedResource) -> bytes:
    parameters = b"".join(_field(8, _query_parameter(name)) for name in PARAMETERS)
    shown = "".join(f"{key}: {value}\n" for key, value in gvk_of(resource).items() if value)
    extension = _named(GVK, _text(2, shown))
    return _text(5, f"patch{resource.kind}") + parameters + _field(13, extension)


def _query_parameter(name: str) -> bytes:
    query = _text(2, "query") + _text(4, name) + _text(6, "string")
    return _field(1, _field(2, _field(3, query)))


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _field(2, value)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
