"""Server-side tables, which kubectl requests in place of objects for printing. Pure."""

from collections.abc import Iterable

import msgspec

from colocate.lab.api.columns import LAYOUTS, PLAIN, Layout
from colocate.lab.api.objects import Object
from colocate.lab.api.pod_columns import row_conditions
from colocate.lab.api.resources import PODS

_VERSION = "meta.k8s.io/v1"


def layout(storage: str) -> Layout:
    return LAYOUTS.get(storage, PLAIN)


def table(storage: str, rows: list[Object], list_metadata: Object, with_columns: bool = True) -> Object:
    """A Table. In a watch, only the first has the columns."""
    columns = msgspec.to_builtins(layout(storage).columns) if with_columns else []
    return {
        "kind": "Table",
        "apiVersion": _VERSION,
        "metadata": list_metadata,
        "columnDefinitions": columns,
        "rows": rows,
    }


def rows(storage: str, bodies: Iterable[Object], now: float, include: str, opening: Object) -> list[Object]:
    """A row for each object, with the part of the object that the client wants: Metadata, Object or None.

    `opening` is the kind and apiVersion of the objects.
    """
    cells = layout(storage).cells
    return [
        {"cells": cells(body, now)} | _conditions(storage, body) | _object(body, include, opening)
        for body in bodies
    ]


def partial(body: Object) -> Object:
    """An object with only its metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _VERSION, "metadata": body["metadata"]}


def _conditions(storage: str, body: Object) -> Object:
    found = row_conditions(body) if storage == PODS.storage else []
    return {"conditions": found} if found else {}


def _object(body: Object, include: str, opening: Object) -> Object:
    if include == "None":
        return {"object": None}
    return {"object": opening | body if include == "Object" else partial(body)}
