"""What events and lists change in the objects that are held, and how it is told."""

from collections.abc import Sequence

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from colocate.cluster.cached_objects import CachedObjects, ObjectMarks, marks_of
from colocate.cluster.changes import Added, Change, Deleted, Key, Modified
from tests.support.nesting import DEEP


class Pod(msgspec.Struct, frozen=True):
    """What these tests read of a pod."""

    node: str


def raw(name: str, node: object, uid: str = "u1") -> bytes:
    return msgspec.json.encode({"metadata": {"name": name, "namespace": "n", "uid": uid}, "node": node})


def put(objects: CachedObjects[Pod], name: str, node: object, uid: str = "u1") -> list[Change[Pod]]:
    data = raw(name, node, uid)
    return objects.put(marks_of(data), data)


def remove(objects: CachedObjects[Pod], name: str, node: object, uid: str = "u1") -> list[Change[Pod]]:
    data = raw(name, node, uid)
    return objects.remove(marks_of(data), data)


A = Key("n", "a")


def test_an_object_comes_changes_and_goes() -> None:
    objects = CachedObjects(Pod)
    assert put(objects, "a", "x") == [Added(A, Pod("x"))]
    assert put(objects, "a", "y") == [Modified(A, Pod("x"), Pod("y"))]
    assert remove(objects, "a", "z") == [Deleted(A, Pod("z"))]
    assert remove(objects, "a", "z") == []


def test_what_the_shape_does_not_show_is_no_change() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x")
    assert put(objects, "a", "x") == []


def test_another_object_under_the_name_is_a_deletion_and_an_addition() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x", "u1")
    assert put(objects, "a", "x", "u2") == [Deleted(A, Pod("x")), Added(A, Pod("x"))]
    assert remove(objects, "a", "x", "u1") == []
    assert objects.get(A) == Pod("x")


def test_an_object_that_cannot_be_read_is_skipped_and_its_last_state_kept() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x")
    assert put(objects, "a", 5) == []
    assert put(objects, "b", 5) == []
    assert list(objects.skipped) == [A, Key("n", "b")]
    assert [key for key, _ in objects.items()] == [A]
    assert objects.keep_only({A, Key("n", "b")}) == []
    assert remove(objects, "a", 6) == [Deleted(A, Pod("x"))]
    assert put(objects, "b", "y") == [Added(Key("n", "b"), Pod("y"))]
    assert not objects.skipped


def test_an_object_nested_beyond_all_measure_is_skipped_too() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x")
    marks = marks_of(raw("a", "x"))
    deep = raw("a", 0).replace(b'"node":0', b'"node":"x","more":' + DEEP)
    assert objects.put(marks, deep) == []
    assert list(objects.skipped) == [A]
    assert objects.agrees(marks, deep)
    assert objects.remove(marks, deep) == [Deleted(A, Pod("x"))]


def test_an_unreadable_successor_takes_the_place_of_the_old_object() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x", "u1")
    assert put(objects, "a", 5, "u2") == [Deleted(A, Pod("x"))]
    assert objects.get(A) is None


def test_what_a_list_no_longer_has_is_told_as_deleted_with_its_last_state() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x")
    put(objects, "b", "y")
    assert objects.keep_only({Key("n", "b")}) == [Deleted(A, Pod("x"))]


def test_an_index_made_late_has_what_was_there() -> None:
    objects = CachedObjects(Pod)
    put(objects, "a", "x")
    index = objects.add_index(lambda pod: pod.node or None)
    put(objects, "b", "x")
    put(objects, "c", "")
    assert index.keys("x") == [A, Key("n", "b")]
    assert index.values() == ["x"]
    assert index.get("nowhere") == []


names, nodes, uids = st.sampled_from("abc"), st.sampled_from(["x", "y", 5]), st.sampled_from(["u1", "u2"])
deeds = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names, nodes, uids),
        st.tuples(st.just("remove"), names, nodes, uids),
        st.tuples(st.just("list"), st.sets(names), nodes, uids),
    ),
    max_size=30,
)


@given(deeds)
def test_changes_add_up_to_what_is_held_and_indexes_agree(
    deeds: Sequence[tuple[str, str | set[str], object, str]],
) -> None:
    objects = CachedObjects(Pod)
    index = objects.add_index(lambda pod: pod.node)
    told: dict[Key, Pod] = {}
    for deed, name, node, uid in deeds:
        if deed == "list":
            changes = objects.keep_only({Key("n", one) for one in name})
        else:
            assert isinstance(name, str)
            changes = (put if deed == "put" else remove)(objects, name, node, uid)
        for change in changes:
            match change:
                case Added():
                    assert change.key not in told
                    told[change.key] = change.new
                case Modified():
                    assert told[change.key] == change.old != change.new
                    told[change.key] = change.new
                case Deleted():
                    del told[change.key]
    assert dict(objects.items()) == told
    for node in ("x", "y"):
        assert set(index.keys(node)) == {key for key, pod in told.items() if pod.node == node}


def test_namespaces_are_kept_once() -> None:
    objects = CachedObjects(Pod)
    one, other = (objects.key_of(ObjectMarks(name, "".join(["na", "me"]))) for name in "ab")
    assert one.namespace is other.namespace
