"""JSON merge patch (RFC 7386). Pure."""

from typing import Any


def apply(document: Any, patch: Any) -> Any:
    """A new document: null removes, an object is merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply(merged.get(key), value)
    return merged
