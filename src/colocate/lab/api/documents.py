"""Documents at paths that are not resources: discovery, openapi, version and health. Pure: a path in, a document
out."""

import platform
from collections.abc import Mapping

import msgspec

from colocate.lab.api import discovery, openapi
from colocate.lab.api.objects import Object, encode
from colocate.lab.api.representation import JSON, negotiate
from colocate.lab.api.status import method_not_allowed

VERSION = "v1.34.0+colocate-lab"
"""The Kubernetes version that this server reports, with its own name."""

_HEALTH = ("/healthz", "/livez", "/readyz")
_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PROTOBUF_OF_OLD = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""The Accept header of clients up to 1.26. It is not a valid media type, so they cannot read it in an answer."""


class ApiDocument(msgspec.Struct, frozen=True):
    """A document and its content type."""

    content_type: str
    body: bytes


def find(method: str, path: str, accept: str, address: str) -> ApiDocument | None:
    """The document at a path, or None."""
    path = path.rstrip("/") or "/"
    if path in _HEALTH or path.startswith(tuple(f"{root}/" for root in _HEALTH)):
        found: ApiDocument | None = ApiDocument("text/plain", b"ok")
    elif path == "/openapi/v2" and (_PROTOBUF in accept or _PROTOBUF_OF_OLD in accept):
        found = ApiDocument(_PROTOBUF, openapi.version_2_protobuf(VERSION))
    else:
        shown = _json(path, address)
        found = ApiDocument(JSON, encode(shown)) if shown is not None else None
        if found is not None:
            negotiate(accept)
    if found is not None and method not in ("GET", "HEAD"):
        raise method_not_allowed()
    return found


def _json(path: str, address: str) -> Object | None:
    match path.strip("/").split("/"):
        case ["version"]:
            return version()
        case ["api"]:
            return discovery.core_versions(address)
        case ["apis"]:
            return discovery.group_list()
        case ["api", served]:
            return discovery.resource_list("", served)
        case ["apis", group]:
            return discovery.group(group)
        case ["apis", group, served]:
            return discovery.resource_list(group, served)
        case ["openapi", "v2"]:
            return openapi.version_2(VERSION)
        case ["openapi", "v3"]:
            return openapi.version_3_index()
        case ["openapi", "v3", *root]:
            return openapi.version_3("/".join(root), VERSION)
        case [""]:
            return {"paths": ["/api", "/api/v1", "/apis", *_HEALTH, "/openapi/v2", "/openapi/v3", "/version"]}
    return None


def version() -> Object:
    """/version, with the fields of a real one."""
    major, minor, _ = VERSION.removeprefix("v").split(".", 2)
    shown: Mapping[str, str] = {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": VERSION,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none: this is Python",
        "compiler": platform.python_implementation(),
        "platform": "linux/amd64" if platform.machine() == "x86_64" else f"linux/{platform.machine()}",
    }
    return dict(shown)
