"""Patches by their content type: which form, how it is applied, and which Status a bad one gets."""

from enum import StrEnum
from typing import Any

from colocate.lab.api import patch_apply, patch_merge, patch_strategic
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
    """The patched object. There is no document only where something is applied for the first time."""
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
            return patch_merge.apply(document, patch)
        case PatchType.STRATEGIC:
            return patch_strategic.apply(document or {}, patch)
        case _:
            return patch_apply.apply(document, patch)
