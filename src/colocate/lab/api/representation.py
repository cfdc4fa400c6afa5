"""Renders objects for clients: whole, as metadata only, or as a table; one, many, or in a watch.

Whole objects were encoded when they were written: here their bytes are only joined.
"""

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from colocate.lab.api import events, tables
from colocate.lab.api.changes import Stored
from colocate.lab.api.objects import Object, encode
from colocate.lab.api.resources import EVENTS_V1, ServedResource
from colocate.lab.api.status import bad_request, not_acceptable

JSON = "application/json"
_META = "meta.k8s.io"
_CHUNK = 256


class Form(Enum):
    """The form in which a client wants objects."""

    OBJECT = "Object"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


class ObjectView(msgspec.Struct, frozen=True):
    """The form and details that a client wants."""

    form: Form = Form.OBJECT
    include: str = "Metadata"
    """How much of each object the rows of a table include."""


def negotiate(accept: str, include: str = "") -> ObjectView:
    """The first offered form that the client accepts. An empty header accepts all."""
    if include not in ("", "None", "Metadata", "Object"):
        raise bad_request(f'unrecognized includeObject value: "{include}"')
    for wish in accept.split(",") if accept.strip() else [JSON]:
        media, *options = [part.strip() for part in wish.split(";")]
        given = dict(option.partition("=")[::2] for option in options if "=" in option)
        if media not in (JSON, "application/*", "*/*"):
            continue
        form = given.get("as")
        if form is None or given.get("g") == "apidiscovery.k8s.io":
            return ObjectView()
        if given.get("g") == _META and given.get("v") == "v1":
            if form == "Table":
                return ObjectView(Form.TABLE, include or "Metadata")
            if form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return ObjectView(Form.METADATA)
    raise not_acceptable([JSON])


class Renderer:
    """Renders objects of one resource in one form."""

    def __init__(self, resource: ServedResource, view: ObjectView, now: float) -> None:
        self.resource = resource
        self.view = view
        self._now = now
        self._opening = resource.opening
        self._convert = resource is EVENTS_V1
        self._columns_sent = False

    def single(self, stored: Stored) -> bytes:
        """Render one object."""
        match self.view.form:
            case Form.TABLE:
                version: Object = {"resourceVersion": str(stored.revision)} if self.resource.is_stored else {}
                return encode(self._table([stored], version, True))
            case Form.METADATA:
                return encode(tables.partial(stored.body))
            case Form.OBJECT:
                return self._opening + self._bare(stored)[1:]

    def listing(self, found: Sequence[Stored], list_metadata: Object) -> Iterator[bytes]:
        """A list, in pieces of many objects each."""
        if self.view.form is Form.TABLE:
            yield encode(self._table(found, list_metadata, True))
            return
        if self.view.form is Form.METADATA:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        else:
            kind, version = f"{self.resource.kind}List", self.resource.api_version
        head = encode({"kind": kind, "apiVersion": version, "metadata": list_metadata})
        yield head[:-1] + b',"items":['
        for start in range(0, len(found), _CHUNK):
            piece = b",".join([self._item(stored) for stored in found[start : start + _CHUNK]])
            yield piece if start == 0 else b"," + piece
        yield b"]}"

    def event(self, type: str, stored: Stored, now: float) -> bytes:
        """One line of a watch."""
        if self.view.form is Form.OBJECT:
            whole = [
                b'{"type":"',
                type.encode(),
                b'","object":',
                self._opening,
                self._bare(stored)[1:],
                b"}\n",
            ]
            return b"".join(whole)
        self._now = now
        if self.view.form is Form.METADATA:
            shown = tables.partial(stored.body)
        else:
            first = not self._columns_sent
            self._columns_sent = True
            shown = self._table([stored], {"resourceVersion": str(stored.revision)}, first)
        return encode({"type": type, "object": shown}) + b"\n"

    def bookmark(self, revision: int, initial_end: bool) -> bytes:
        """A bookmark line, which has the revision of the watch and no object."""
        marks: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            marks["annotations"] = {"k8s.io/initial-events-end": "true"}
        shown: Object
        if self.view.form is Form.METADATA:
            shown = tables.partial({"metadata": marks})
        elif self.view.form is Form.TABLE:
            shown = tables.table(self.resource.storage, [], {"resourceVersion": str(revision)}, False)
            if initial_end:
                shown["rows"] = [{"cells": [], "object": tables.partial({"metadata": marks})}]
        else:
            shown = self._kind() | {"metadata": marks}
        return encode({"type": "BOOKMARK", "object": shown}) + b"\n"

    def _kind(self) -> Object:
        return {"kind": self.resource.kind, "apiVersion": self.resource.api_version}

    def _bare(self, stored: Stored) -> bytes:
        return encode(events.to_v1(stored.body)) if self._convert else stored.encoded

    def _item(self, stored: Stored) -> bytes:
        if self.view.form is Form.METADATA:
            return encode(tables.partial(stored.body))
        return self._bare(stored)

    def _table(self, found: Sequence[Stored], list_metadata: Object, with_columns: bool) -> Object:
        storage = self.resource.storage
        bodies = (stored.body for stored in found)
        listed = tables.rows(storage, bodies, self._now, self.view.include, self._kind())
        return tables.table(storage, listed, list_metadata, with_columns)
