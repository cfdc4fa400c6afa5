"""The store: versions, conflicts, transactions, indexes, history, and a file that survives being killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.errors import UserError
from colocate.lab.api.changes import StoreKey, Type
from colocate.lab.api.disk import Disk
from colocate.lab.api.store import NODE, OWNER, AlreadyThere, NotThere, ObjectStore, Stale


def key(name: str, namespace: str = "default") -> StoreKey:
    return StoreKey("pods", namespace, name)


def body(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def test_every_write_has_a_revision_of_its_own() -> None:
    store = ObjectStore()
    first = store.create(key("a"), body("a"))
    second = store.replace(key("a"), body("a", nodeName="vm"))
    gone = store.remove(key("a"))
    assert [first.revision, second.revision, gone.revision] == [1, 2, 3]
    assert gone.body["metadata"]["resourceVersion"] == "3"
    assert second.body["metadata"]["resourceVersion"] == "2"


def test_conflicts() -> None:
    store = ObjectStore()
    stored = store.create(key("a"), body("a"))
    with pytest.raises(AlreadyThere):
        store.create(key("a"), body("a"))
    store.replace(key("a"), body("a"), expected=stored.revision)
    with pytest.raises(Stale):
        store.replace(key("a"), body("a"), expected=stored.revision)
    with pytest.raises(Stale):
        store.remove(key("a"), expected=stored.revision)
    with pytest.raises(NotThere):
        store.replace(key("b"), body("b"))


def test_pods_are_found_by_node_and_owner() -> None:
    store = ObjectStore()
    owned = body("a", nodeName="vm")
    owned["metadata"]["ownerReferences"] = [{"uid": "u1"}]
    store.create(key("a"), owned)
    store.create(key("b"), body("b", nodeName="vm"))
    assert {one.key.name for one in store.lookup("pods", NODE, "vm")} == {"a", "b"}
    assert [one.key.name for one in store.lookup("pods", OWNER, "u1")] == ["a"]
    store.replace(key("b"), body("b", nodeName="other"))
    store.remove(key("a"))
    assert store.lookup("pods", NODE, "vm") == []
    assert store.lookup("pods", OWNER, "u1") == []


def test_lists_are_in_order_and_by_namespace() -> None:
    store = ObjectStore()
    for namespace, name in (("b", "2"), ("a", "9"), ("b", "1"), ("a", "10")):
        store.create(key(name, namespace), body(name))
    assert [one.key[1:] for one in store.items("pods")] == [("a", "10"), ("a", "9"), ("b", "1"), ("b", "2")]
    assert [one.key.name for one in store.items("pods", "b")] == ["1", "2"]
    assert store.count("pods", "a") == 2


def _write_and_fail(store: ObjectStore) -> None:
    with store.transaction():
        store.create(key("b"), body("b"))
        store.replace(key("a"), body("a", nodeName="other"))
        store.remove(key("a"))
        store.create(key("b"), body("b"))


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    for disk in (None, Disk(tmp_path / "state")):
        store = ObjectStore(disk)
        store.create(key("a"), body("a", nodeName="vm"))
        with pytest.raises(AlreadyThere):
            _write_and_fail(store)
        assert [one.key.name for one in store.items("pods")] == ["a"]
        assert [one.key.name for one in store.lookup("pods", NODE, "vm")] == ["a"]
        assert store.revision == 1
        changes = store.changes("pods").since(0)
        assert changes is not None
        assert [change.type for change in changes] == [Type.ADDED]
        store.close()


async def test_no_reader_is_woken_before_the_end_of_a_transaction() -> None:
    store = ObjectStore()
    turn = store.changes("pods").turn()
    with store.transaction():
        store.create(key("a"), body("a"))
        assert not turn.done()
    assert turn.done()


def test_history_is_bounded() -> None:
    store = ObjectStore(history=100)
    for number in range(1000):
        store.create(key(f"p{number}"), body(f"p{number}"))
    changes = store.changes("pods")
    assert changes.after(1) is None
    assert changes.after(changes.horizon - 1) is None
    position = changes.after(changes.horizon)
    assert position is not None
    kept = changes.since(position)
    assert kept is not None
    assert 100 <= len(kept) <= 125
    assert kept[0].revision == changes.horizon + 1


def test_forced_expiry_forgets_everything() -> None:
    store = ObjectStore()
    store.create(key("a"), body("a"))
    store.create(key("b"), body("b"))
    store.expire()
    assert store.changes("pods").after(1) is None
    assert store.changes("pods").after(2) is not None
    assert store.changes("nodes").after(1) is None


def test_state_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = ObjectStore(Disk(path))
    store.create(key("a"), body("a", nodeName="vm"))
    store.create(key("b"), body("b"))
    store.remove(key("b"))
    secret = store.keep("ca", lambda: b"secret")
    store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = ObjectStore(Disk(path))
    assert again.revision == 3
    assert [one.key.name for one in again.lookup("pods", NODE, "vm")] == ["a"]
    assert again.keep("ca", lambda: b"another") == secret
    # Changes that were missed meanwhile are no longer known: such a client lists again.
    assert again.changes("pods").after(2) is None
    assert again.changes("pods").after(3) == 0
    again.close()


def test_a_state_file_is_for_one_process_and_of_one_kind(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "state")
    with pytest.raises(UserError, match="in use by another process"):
        Disk(tmp_path / "state")
    disk.close()
    (tmp_path / "text").write_text("this is no database, however long it is " * 50)
    with pytest.raises(UserError, match="is not a state file"):
        Disk(tmp_path / "text")
    import sqlite3

    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    with pytest.raises(UserError, match="database of another program"):
        Disk(tmp_path / "other")
    with pytest.raises(UserError, match="cannot be opened"):
        Disk(tmp_path / "missing" / "state")


WRITER = """
import itertools, sys
from pathlib import Path
from colocate.lab.api.changes import StoreKey
from colocate.lab.api.disk import Disk
from colocate.lab.api.store import ObjectStore
store = ObjectStore(Disk(Path(sys.argv[1])))
for number in itertools.count():
    with store.transaction():
        store.create(StoreKey("pods", "default", f"p{number}"), {"metadata": {"name": f"p{number}"}})
        store.create(StoreKey("events", "default", f"e{number}"), {"metadata": {"name": f"e{number}"}})
    print(store.revision, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "state"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout as out:
        acknowledged = [int(next(out)) for _ in range(200)]
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in out if line.endswith("\n")]
    writer.wait()
    store = ObjectStore(Disk(path))
    assert store.revision >= acknowledged[-1]
    assert store.revision % 2 == 0, "half of a transaction was kept"
    assert store.count("pods") == store.count("events") == store.revision // 2
    store.close()


names = st.sampled_from("abc")
steps = st.lists(
    st.tuples(st.sampled_from(["create", "replace", "remove"]), names, st.sampled_from(["", "vm"]))
)


@given(steps, st.integers(0, 8))
def test_replaying_the_history_gives_the_state(taken: list[tuple[str, str, str]], history: int) -> None:
    store = ObjectStore(history=max(1, history))
    for what, name, node in taken:
        try:
            if what == "remove":
                store.remove(key(name))
            else:
                getattr(store, what)(key(name), body(name, nodeName=node))
        except (AlreadyThere, NotThere):
            pass
    changes = store.changes("pods")
    replayed: dict[str, int] = {}
    kept = changes.since(changes.after(changes.horizon) or 0) or []
    for change in kept:
        if change.type is Type.DELETED:
            replayed.pop(change.now.key.name, None)
        else:
            replayed[change.now.key.name] = change.revision
    current = {one.key.name: one.revision for one in store.items("pods")}
    assert replayed.items() <= current.items()
    assert all(revision <= changes.horizon for name, revision in current.items() if name not in replayed)
    on_node = {one.key.name for one in store.items("pods") if one.body["spec"]["nodeName"] == "vm"}
    assert {one.key.name for one in store.lookup("pods", NODE, "vm")} == on_node


async def test_the_count_of_commits_can_be_waited_for() -> None:
    store = ObjectStore()
    waiting = asyncio.create_task(store.changed.beyond(0))
    await asyncio.sleep(0)
    store.create(key("a"), body("a"))
    assert await waiting == 1
