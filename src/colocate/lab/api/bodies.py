"""Decodes the bodies of requests: JSON, YAML and some protobuf. Anything else gets the Status of a real server."""

from typing import Any

import msgspec
import yaml

from colocate.lab.api import protobuf
from colocate.lab.api.objects import Object, decode, encode, namespace_of
from colocate.lab.api.registry import wrong_namespace
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.status import bad_request, unsupported_media_type

ACCEPTED = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)
_DEEPEST_YAML = 200
_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml")


def media_type(content_type: str) -> str:
    """The media type of a body without its parameters; the default is JSON."""
    return content_type.partition(";")[0].strip().lower() or "application/json"


def read(content_type: str, data: bytes) -> Any:
    """Decode the body of a request by its content type."""
    media = media_type(content_type)
    if media == protobuf.MEDIA_TYPE:
        return protobuf.read(data)
    if media not in (*ACCEPTED, *_YAML):
        raise unsupported_media_type(ACCEPTED)
    return parse(data, as_yaml=media in _YAML)


def parse(data: bytes, as_yaml: bool) -> Any:
    """Decode data; raises the Status of data that cannot be decoded."""
    try:
        return _yaml(data) if as_yaml else decode(data)
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise bad_request(f"the request body cannot be read: {words}") from None
    except RecursionError:
        raise bad_request("the request body cannot be read: it is nested too deeply") from None


def read_object(resource: ServedResource, namespace: str, body: Any) -> Object:
    """The bare object of a body for a resource; its kind and namespace are checked."""
    check_kind(resource.kind, resource.api_version, body)
    if not isinstance(body.get("metadata") or {}, dict):
        raise bad_request("the object's metadata is not an object")
    if resource.namespaced and namespace_of(body) not in ("", namespace):
        raise wrong_namespace()
    return {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}


def check_kind(kind: str, api_version: str, body: Any) -> None:
    """Refuse a body of another kind; a body without a kind is accepted."""
    if not isinstance(body, dict):
        raise bad_request(f"couldn't get version/kind; the body is not an object but {type(body).__name__}")
    given_kind, given_version = body.get("kind") or kind, body.get("apiVersion") or api_version
    if given_version != api_version:
        raise bad_request(
            f"the API version in the data ({given_version}) does not match "
            f"the expected API version ({api_version})"
        )
    if given_kind != kind:
        version = api_version.rpartition("/")[2]
        raise bad_request(f'{given_kind} in version "{version}" cannot be handled as a {kind}')


class _Loader(yaml.CSafeLoader):
    """Loads plain data only; timestamps stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _yaml(data: bytes) -> Any:
    _check_yaml(data)
    try:
        # Encoded as JSON, so that values without a JSON form are found here.
        return decode(encode(yaml.load(data, Loader=_Loader)))
    except TypeError as error:
        raise ValueError(f"it has no form in JSON: {error}") from error


def _check_yaml(data: bytes) -> None:
    """Refuse aliases, which can make a small body a huge object, and nesting that would crash the parser."""
    depth = 0
    for event in yaml.parse(data, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not accepted")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST_YAML:
            raise ValueError("it is nested too deeply")
