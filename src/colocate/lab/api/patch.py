"""Applies patches of every content type, and raises the Status of a bad one."""

from enum import StrEnum
from typing import Any

from colocate.lab.api import patch_strategic
from colocate.lab.api.objects import Object
from colocate.lab.api.status import StatusError, bad_request, rejected, unsupported_media_type
from colocate.model import json_patch


class PatchType(StrEnum):
    """The forms of a patch, by their media types."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


def patch_type(media_type: str) -> PatchType:
    try:
        return PatchType(media_type)
    except ValueError:
        raise unsupported_media_type([str(one) for one in PatchType]) from None


def apply(type: PatchType, document: Object | None, patch: Any) -> Object:
    """The patched object. `document` is None only for the first server-side apply of an object."""
    try:
        patched = _apply(type, document, patch)
    except json_patch.PatchFailed:
        raise rejected() from None
    except ValueError as error:
        raise bad_request(f"the patch cannot be applied: {error}") from error
    if not isinstance(patched, dict):
        raise rejected()
    return patched


def _apply(type: PatchType, document: Object | None, patch: Any) -> Any:
    if type is PatchType.JSON:
        if not isinstance(patch, list):
            raise ValueError("a JSON patch is a list of operations")
        if len(patch) > json_patch.MAX_OPERATIONS:
            limit = json_patch.MAX_OPERATIONS
            words = f"The allowed maximum operations in a JSON patch is {limit}, got {len(patch)}"
            raise StatusError(413, "RequestEntityTooLarge", words)
        return json_patch.apply(document, patch)
    if not isinstance(patch, dict):
        raise ValueError("a merge patch is an object")
    match type:
        case PatchType.MERGE:
            return merge(document, patch)
        case PatchType.STRATEGIC:
            return patch_strategic.apply(document or {}, patch)
        case _:
            return apply_configuration(document, patch)


def merge(document: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386) to a copy: null removes, an object is merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply_configuration(document: Object | None, configuration: Object) -> Object:
    """Server-side apply, simplified: merge the configuration into the object, or make a new object.

    A real server records which applier owns which field. Here fields have no owner: two appliers never conflict,
    and a field that an applier omits in its next version stays. Lists, also nested ones, merge by the keys of
    strategic merge; null means that a field is not applied.
    """
    return patch_strategic.apply(document or {}, _without_nulls(configuration))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value
