"""Follows the pods of certain nodes in the store, like a kubelet's watch."""

from collections.abc import Callable

from colocate.lab.api.changes import Stored, Type
from colocate.lab.api.objects import at
from colocate.lab.api.resources import PODS
from colocate.lab.api.store import NODE, ObjectStore


class FollowedPods:
    """Calls `seen` for every state of a pod on one of these nodes, and `gone` when it was removed from the
    store."""

    def __init__(
        self,
        store: ObjectStore,
        mine: Callable[[str], bool],
        nodes: Callable[[], list[str]],
        seen: Callable[[Stored], None],
        gone: Callable[[Stored], None],
    ) -> None:
        self._store = store
        self._mine = mine
        self._nodes = nodes
        self._seen = seen
        self._gone = gone
        self._known: dict[str, Stored] = {}

    async def run(self) -> None:
        changes = self._store.changes(PODS.storage)
        position: int | None = None
        while True:
            turn = self._store.changed.count
            batch = changes.since(position) if position is not None else None
            position = changes.end
            if batch is None:
                self._look_at_all()
            else:
                for change in batch:
                    if self._mine(at(change.now.body, "spec", "nodeName") or ""):
                        self._tell(change.now, gone=change.type is Type.DELETED)
            await self._store.changed.beyond(turn)

    def _look_at_all(self) -> None:
        """Read all pods: at the start, and when the store's history is too short."""
        now = {
            stored.body["metadata"]["uid"]: stored
            for node in self._nodes()
            for stored in self._store.lookup(PODS.storage, NODE, node)
        }
        for uid, stored in list(self._known.items()):
            if uid not in now:
                self._tell(stored, gone=True)
        for stored in now.values():
            self._tell(stored, gone=False)

    def _tell(self, stored: Stored, *, gone: bool) -> None:
        uid = stored.body["metadata"]["uid"]
        if gone:
            self._known.pop(uid, None)
            self._gone(stored)
        else:
            self._known[uid] = stored
            self._seen(stored)
