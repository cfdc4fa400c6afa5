"""Server-side apply, simplified: the applied fields are merged in. Pure.

A real server remembers who applied which field. Here nobody owns a field: two appliers never conflict, and a
field that an applier leaves out of its next version stays. Lists merge by the keys of strategic merge, and so
does what is inside them; null means that a field is not applied.
"""

from typing import Any

from colocate.lab.api import patch_strategic
from colocate.lab.api.objects import Object


def apply(document: Object | None, configuration: Object) -> Object:
    """The object with the configuration in it; a new object where there was none."""
    return patch_strategic.apply(document or {}, _without_nulls(configuration))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value
