"""The objects of one resource by key, by namespace and by further indexes."""

from collections.abc import Callable, Mapping

from colocate.lab.api.changes import Stored, StoreKey
from colocate.lab.api.objects import Object, metadata


def by_node(body: Object) -> tuple[str, ...]:
    node = body["spec"].get("nodeName") if isinstance(body.get("spec"), dict) else None
    return (node,) if node else ()


def by_owner(body: Object) -> tuple[str, ...]:
    owners: list[Object] = metadata(body).get("ownerReferences") or []
    return tuple(str(owner.get("uid")) for owner in owners)


class Index:
    """Finds objects by values that are read from their bodies."""

    def __init__(self, values: Callable[[Object], tuple[str, ...]]) -> None:
        self._values = values
        self._found: dict[str, dict[StoreKey, Stored]] = {}

    def get(self, value: str) -> list[Stored]:
        return list(self._found.get(value, {}).values())

    def put(self, stored: Stored) -> None:
        for value in self._values(stored.body):
            self._found.setdefault(value, {})[stored.key] = stored

    def drop(self, stored: Stored) -> None:
        for value in self._values(stored.body):
            held = self._found.get(value)
            if held is not None:
                held.pop(stored.key, None)
                if not held:
                    del self._found[value]


class ObjectShelf:
    """The objects of one resource."""

    def __init__(self, indexes: Mapping[str, Index]) -> None:
        self._indexes = indexes
        self._all: dict[StoreKey, Stored] = {}
        self._namespaces: dict[str, dict[StoreKey, Stored]] = {}
        self._order: dict[str, list[StoreKey]] = {}
        """Sorted keys by namespace, cached until an object is added or removed; "" has all of them."""

    def get(self, key: StoreKey) -> Stored | None:
        return self._all.get(key)

    def count(self, namespace: str = "") -> int:
        return len(self._namespaces.get(namespace, {}) if namespace else self._all)

    def lookup(self, index: str, value: str) -> list[Stored]:
        return self._indexes[index].get(value)

    def sorted(self, namespace: str = "") -> list[Stored]:
        held = self._namespaces.get(namespace, {}) if namespace else self._all
        if (order := self._order.get(namespace)) is None:
            order = self._order[namespace] = sorted(held)
        return [held[key] for key in order]

    def put(self, stored: Stored) -> None:
        before = self._all.get(stored.key)
        if before is None:
            self._forget_order(stored.key)
        else:
            for index in self._indexes.values():
                index.drop(before)
        self._all[stored.key] = stored
        self._namespaces.setdefault(stored.key.namespace, {})[stored.key] = stored
        for index in self._indexes.values():
            index.put(stored)

    def drop(self, key: StoreKey) -> None:
        stored = self._all.pop(key)
        held = self._namespaces[key.namespace]
        del held[key]
        if not held:
            del self._namespaces[key.namespace]
        self._forget_order(key)
        for index in self._indexes.values():
            index.drop(stored)

    def _forget_order(self, key: StoreKey) -> None:
        self._order.pop("", None)
        self._order.pop(key.namespace, None)
