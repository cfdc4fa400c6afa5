"""Carries out each verb: from an allowed request to an answer. Knows no HTTP server and no socket."""

from collections.abc import Iterable
from typing import Any

import msgspec

from colocate.lab.api import bodies, events, patch, pods, scale
from colocate.lab.api.changes import Stored
from colocate.lab.api.deletion import DeleteOptions, DeletionOutcome, delete, read_options
from colocate.lab.api.lists import Lister, select
from colocate.lab.api.managed_fields import FieldWriter
from colocate.lab.api.metrics import MetricsServer
from colocate.lab.api.objects import Object, encode, name_of, uid_of
from colocate.lab.api.patch import PatchType
from colocate.lab.api.paths import Target
from colocate.lab.api.query import ListQuery
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.representation import ObjectView, Renderer
from colocate.lab.api.resources import BINDINGS, EVENTS, EVENTS_V1, NAMESPACES, PODS, ServedResource
from colocate.lab.api.reviews import Reviews
from colocate.lab.api.status import bad_request, details_of, method_not_allowed, not_found, success
from colocate.lab.api.users import User


class Call(msgspec.Struct, frozen=True):
    """A request that was decoded and allowed."""

    target: Target
    query: ListQuery
    view: ObjectView
    user: User
    content_type: str = ""
    body: bytes = b""
    manager: str = ""
    """The field manager under which writes are recorded."""

    @property
    def writer(self) -> FieldWriter:
        return FieldWriter(self.manager, self.target.subresource)


class Answer(msgspec.Struct, frozen=True):
    """The answer to send, in one piece or several."""

    code: int
    pieces: Iterable[bytes]


class Actions:
    """Carries out the verbs of the API."""

    def __init__(
        self, registry: ObjectRegistry, lister: Lister, reviews: Reviews, metrics: MetricsServer
    ) -> None:
        self._registry = registry
        self._lister = lister
        self._reviews = reviews
        self._metrics = metrics

    def perform(self, call: Call) -> Answer:
        """Carry out a request; raises the Status of one that cannot be done."""
        target = call.target
        if target.subresource in ("binding", "eviction", "scale", "token"):
            return self._part(call)
        if target.resource.measured:
            return self._measured(call)
        match target.verb:
            case "get":
                found = self._registry.get(target.resource, target.namespace, target.name)
                return self._shown(call, found)
            case "list":
                return self._list(call)
            case "create":
                return self._create(call)
            case "update":
                return self._update(call)
            case "patch":
                return self._patch(call)
            case "delete":
                return self._delete(call)
            case "deletecollection":
                return self._delete_collection(call)
        raise method_not_allowed()

    def _list(self, call: Call) -> Answer:
        target = call.target
        selection = call.query.selection(target.resource.storage)
        page = self._lister.page(target.resource, target.namespace, selection, call.query)
        renderer = Renderer(target.resource, call.view, self._registry.clock.time())
        return Answer(200, renderer.listing(page.found, page.metadata))

    def _measured(self, call: Call) -> Answer:
        target = call.target
        if target.verb == "get":
            return self._shown(call, self._metrics.get(target.resource, target.namespace, target.name))
        selection = call.query.selection(target.resource.storage)
        found = self._metrics.select(target.resource, target.namespace, selection)
        renderer = Renderer(target.resource, call.view, self._registry.clock.time())
        return Answer(200, renderer.listing(found, {}))

    def _create(self, call: Call) -> Answer:
        target, body = call.target, bodies.read(call.content_type, call.body)
        if target.resource is BINDINGS:
            name = name_of(body) if isinstance(body, dict) else ""
            pods.bind(self._registry, target.namespace, name, body, call.query.dry_run)
            return _plain(201, success(code=201))
        if not target.resource.is_stored:
            answer = self._reviews.answer(target.resource, target.namespace, body, call.user)
            return _plain(201, answer)
        bare = _read(target.resource, target.namespace, body)
        stored = self._registry.create(
            target.resource, target.namespace, bare, call.query.dry_run, call.writer
        )
        return self._shown(call, stored, 201)

    def _update(self, call: Call) -> Answer:
        target = call.target
        bare = _read(target.resource, target.namespace, bodies.read(call.content_type, call.body))
        if not name_of(bare):
            raise bad_request("name must be provided")
        return self._shown(call, self._write(call, bare))

    def _write(self, call: Call, bare: Object) -> Stored:
        target = call.target
        return self._registry.update(
            target.resource,
            target.namespace,
            target.name,
            bare,
            target.subresource,
            call.query.dry_run,
            call.writer,
        )

    def _patch(self, call: Call) -> Answer:
        target, resource = call.target, call.target.resource
        form = patch.patch_type(bodies.media_type(call.content_type))
        given = bodies.parse(call.body, as_yaml=form is PatchType.APPLY)
        current = self._registry.find(resource, target.namespace, target.name)
        kind: Object = {"kind": resource.kind, "apiVersion": resource.api_version}
        if current is None:
            if form is not PatchType.APPLY or target.subresource:
                raise not_found(resource.qualified, target.name)
            bare = _read(resource, target.namespace, patch.apply(form, None, given))
            bare["metadata"] = (bare.get("metadata") or {}) | {"name": target.name}
            stored = self._registry.create(resource, target.namespace, bare, call.query.dry_run, call.writer)
            return self._shown(call, stored, 201)
        body = events.to_v1(current.body) if resource is EVENTS_V1 else current.body
        patched = patch.apply(form, kind | body, given)
        bare = _read(resource, target.namespace, patched)
        return self._shown(call, self._write(call, bare))

    def _delete(self, call: Call) -> Answer:
        target = call.target
        options = _delete_options(call)
        dry_run = call.query.dry_run or options.dryRun == ["All"]
        outcome = delete(self._registry, target.resource, target.namespace, target.name, options, dry_run)
        if outcome.gone and target.resource not in (PODS, NAMESPACES):
            return _plain(200, success(_deleted(target.resource, outcome)))
        return self._shown(call, outcome.stored)

    def _delete_collection(self, call: Call) -> Answer:
        target, options = call.target, _delete_options(call)
        selection = call.query.selection(target.resource.storage)
        found = select(self._registry.store, target.resource, target.namespace, selection)
        gone = [
            delete(
                self._registry,
                target.resource,
                stored.key.namespace,
                stored.key.name,
                options,
                call.query.dry_run or options.dryRun == ["All"],
            ).stored
            for stored in found
        ]
        renderer = Renderer(target.resource, call.view, self._registry.clock.time())
        revision = {"resourceVersion": str(self._registry.store.revision)}
        return Answer(200, renderer.listing(gone, revision))

    def _part(self, call: Call) -> Answer:
        """Serve the subresources that are not a part of the object itself."""
        target, registry = call.target, self._registry
        place = (target.namespace, target.name)
        if target.subresource == "scale":
            return self._scale(call)
        body = bodies.read(call.content_type, call.body)
        if target.subresource == "token":
            return _plain(201, self._reviews.token(*place, body))
        act = pods.bind if target.subresource == "binding" else pods.evict
        act(registry, *place, body, call.query.dry_run)
        return _plain(201, success(code=201))

    def _scale(self, call: Call) -> Answer:
        target = call.target
        place = (target.resource, target.namespace, target.name)
        current = self._registry.get(*place)
        if target.verb == "get":
            return _plain(200, scale.show(current))
        if target.verb == "patch":
            form = patch.patch_type(bodies.media_type(call.content_type))
            given = bodies.parse(call.body, as_yaml=form is PatchType.APPLY)
            body: Any = patch.apply(form, scale.show(current), given)
        else:
            body = bodies.read(call.content_type, call.body)
        changed = scale.update(self._registry, *place, body, call.query.dry_run)
        return _plain(200, scale.show(changed))

    def _shown(self, call: Call, stored: Stored, code: int = 200) -> Answer:
        renderer = Renderer(call.target.resource, call.view, self._registry.clock.time())
        return Answer(code, [renderer.single(stored)])


def _plain(code: int, body: Object) -> Answer:
    return Answer(code, [encode(body)])


def _read(resource: ServedResource, namespace: str, body: Any) -> Object:
    bare = bodies.read_object(resource, namespace, body)
    if resource is EVENTS_V1:
        bare = events.from_v1(bare)
    return events.completed(bare) if resource in (EVENTS, EVENTS_V1) else bare


def _delete_options(call: Call) -> DeleteOptions:
    """The options from the body if there is one, else from the parameters."""
    if call.body.strip():
        return read_options(bodies.read(call.content_type, call.body))
    given: Object = {}
    if (grace := call.query.number("gracePeriodSeconds")) is not None:
        given["gracePeriodSeconds"] = grace
    if policy := call.query.text("propagationPolicy"):
        given["propagationPolicy"] = policy
    return read_options(given)


def _deleted(resource: ServedResource, outcome: DeletionOutcome) -> Object:
    return details_of(resource.qualified, outcome.stored.key.name, uid=uid_of(outcome.stored.body))
