"""Lists the objects of a selection, whole or page by page.

All pages of a list show the cluster as it was at the first page: the rest is kept until it is read. If newer lists
displace it, the client has to list again.
"""

import base64

import msgspec

from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.objects import Object
from colocate.lab.api.query import ListQuery
from colocate.lab.api.resources import ServedResource
from colocate.lab.api.selectors import ObjectSelection
from colocate.lab.api.status import bad_request, expired, too_large_version
from colocate.lab.api.store import NODE, ObjectStore

_KEPT_LISTS = 32
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter."
)


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


class ListPage(msgspec.Struct, frozen=True):
    """Objects, and the list's metadata."""

    found: list[Stored]
    metadata: Object


def select(
    store: ObjectStore, resource: ServedResource, namespace: str, selection: ObjectSelection
) -> list[Stored]:
    """The objects of a selection, in order; uses an index where there is one."""
    storage = resource.storage
    if selection.is_everything:
        return store.items(storage, namespace)
    name = selection.fields.required("metadata.name")
    node = selection.fields.required("spec.nodeName")
    if name is not None and (namespace or not resource.namespaced):
        one = store.get(StoreKey(storage, namespace, name))
        candidates = [one] if one else []
    elif node and storage == "pods":
        held = store.lookup(storage, NODE, node)
        candidates = [
            one for one in sorted(held, key=_key) if not namespace or one.key.namespace == namespace
        ]
    else:
        candidates = store.items(storage, namespace)
    return [stored for stored in candidates if selection.matches(stored.body)]


class Lister:
    """Answers list requests, page by page."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._rests: dict[tuple[int, str], list[Stored]] = {}
        self._generation = store.generation

    def page(
        self, resource: ServedResource, namespace: str, selection: ObjectSelection, query: ListQuery
    ) -> ListPage:
        query.check_list()
        revision = query.revision()
        limit = query.number("limit") or 0
        if token := query.text("continue"):
            if revision is not None:
                raise bad_request("specifying resource version is not allowed when using continue")
            return self._continue(resource, namespace, token, limit)
        current = self._store.revision
        if revision is not None and revision > current:
            raise too_large_version(revision, current)
        newest = self._store.changes(resource.storage).newest
        if revision is not None and revision < newest and query.text("resourceVersionMatch") == "Exact":
            raise expired(f"The resourceVersion for the provided list is too old: {revision}")
        found = select(self._store, resource, namespace, selection)
        return self._page(resource, namespace, found, limit, current, selection.is_everything)

    def _page(
        self,
        resource: ServedResource,
        namespace: str,
        found: list[Stored],
        limit: int,
        revision: int,
        counted: bool,
    ) -> ListPage:
        listed: Object = {"resourceVersion": str(revision)}
        if not limit or len(found) <= limit:
            return ListPage(found, listed)
        shown, rest = found[:limit], found[limit:]
        last = shown[-1].key
        # The position is the key below the requested path: a name, or namespace and name.
        place = last.name if namespace or not resource.namespaced else f"{last.namespace}/{last.name}"
        token = _encode(_Token("meta.k8s.io/v1", revision, f"{place}\0"))
        self._keep(token, rest)
        listed["continue"] = token
        if counted:
            listed["remainingItemCount"] = len(rest)
        return ListPage(shown, listed)

    def _keep(self, token: str, rest: list[Stored]) -> None:
        self._rests[self._store.generation, token] = rest
        while len(self._rests) > _KEPT_LISTS:
            del self._rests[next(iter(self._rests))]

    def _continue(self, resource: ServedResource, namespace: str, token: str, limit: int) -> ListPage:
        read = _decode(token)
        rest = self._rests.get((self._store.generation, token))
        if rest is None:
            raise expired(_TOO_OLD)
        return self._page(resource, namespace, rest, limit, read.rv, counted=True)


def _key(stored: Stored) -> StoreKey:
    return stored.key


def _encode(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=").decode()


def _decode(token: str) -> _Token:
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return msgspec.json.decode(data, type=_Token)
    except ValueError:
        raise bad_request("continue key is not valid") from None
