"""The discovery documents that clients request first, generated from the table of resources.

There is one document per group. A client that asks for aggregated discovery sees the plain content type of the
answer and falls back, as with an older server.
"""

from colocate.lab.api import resources
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import ServedResource, Subresource


def core_versions(server_address: str) -> Object:
    """The document at /api: the versions of the core group."""
    address = {"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}


def group_list() -> Object:
    """The document at /apis: the named groups."""
    groups = [_group(name, version) for name, version in resources.groups()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(name: str) -> Object | None:
    """/apis/<group>"""
    found = next(((group, version) for group, version in resources.groups() if group == name), None)
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(*found) if found else None


def resource_list(group: str, version: str) -> Object | None:
    """/api/v1 and /apis/<group>/<version>"""
    listed = [entry for resource in resources.in_group(group, version) for entry in _entries(resource)]
    if not listed:
        return None
    listed.sort(key=lambda entry: str(entry["name"]))
    group_version = f"{group}/{version}" if group else version
    # The core list still has no apiVersion, as it is older than that field.
    opening = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
    return opening | {"groupVersion": group_version, "resources": listed}


def _group(name: str, version: str) -> Object:
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def _entries(resource: ServedResource) -> list[Object]:
    return [_resource(resource), *(_subresource(resource, part) for part in resource.subresources)]


def _resource(resource: ServedResource) -> Object:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        entry["shortNames"] = list(resource.short)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.is_stored:
        entry["storageVersionHash"] = resource.storage_version_hash
    return entry


def _subresource(resource: ServedResource, part: Subresource) -> Object:
    entry: Object = {
        "name": f"{resource.plural}/{part.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
    }
    if part.group:
        entry |= {"group": part.group, "version": part.version}
    return entry | {"kind": part.kind or resource.kind, "verbs": list(part.verbs)}
