"""Pods that move: no pod leaves that could not be created again, no move lasts for ever, none comes back unwanted."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.cluster.errors import ApiError, ApiStatus, Doing, Forbidden, Invalid, NotFound
from colocate.cluster.resources import Object
from colocate.cluster.transport import Request
from colocate.memory.actions import ActionResult, PodRef, Recreate
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.objects import HOSTNAME
from colocate.memory.agent.pod_moves import PodMoves
from colocate.memory.agent.recreation import NoteFate, verdict
from colocate.memory.agent.store import MemoryStore, PodNote

REF = PodRef("u", "default", "mover")
MOVE = Recreate(pod=REF, avoid="node-1", reason="")
DELETION = "2026-01-01T00:00:30Z"
DOING = Doing("create", "pods", "default", "mover")


def refusal(kind: type[ApiError], message: str) -> ApiError:
    return kind(DOING, ApiStatus(message, "", 0))


class Server(Client):
    """An API server with one pod, that refuses to create as a test wants."""

    def __init__(self, **spec: Any) -> None:
        self.time = ManualClock()
        super().__init__(Connection("http://127.0.0.1:9", "the test"), self.time)
        self.pod: dict[str, Any] | None = {
            "metadata": {"name": "mover", "namespace": "default", "uid": "u"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **spec},
        }
        self.namespace: Object | None = {"metadata": {"name": "default", "uid": "ns"}}
        self.refusal: ApiError | None = None
        self.eviction: ApiError | None = None
        self.stays = False
        """Whether an evicted pod takes its time to end."""
        self.created: list[tuple[dict[str, Any], bool]] = []

    async def ask_once(self, request: Request) -> bytes:
        match request.doing.verb, request.doing.resource:
            case "get", "pods":
                if self.pod is None:
                    raise refusal(NotFound, "no such pod")
                return msgspec.json.encode(self.pod)
            case "get", "namespaces":
                if self.namespace is None:
                    raise refusal(NotFound, "no such namespace")
                return msgspec.json.encode(self.namespace)
            case "create", "pods":
                self.created.append(
                    (msgspec.json.decode(request.body or b""), "dryRun" in request.parameters)
                )
                if self.refusal is not None:
                    raise self.refusal
                return request.body or b""
            case "create", "pods/eviction":
                if self.eviction is not None:
                    raise self.eviction
                self.end(DELETION if self.stays else "")
                return b"{}"
        raise AssertionError(f"no pod departs by {request.doing}")

    def end(self, deletion: str = "", grace: int = 30) -> None:
        """The pod is gone, or on its way out."""
        if not deletion:
            self.pod = None
            return
        assert self.pod is not None
        marks = {**self.pod["metadata"], "deletionTimestamp": deletion, "deletionGracePeriodSeconds": grace}
        self.pod = {**self.pod, "metadata": marks}

    @property
    def creations(self) -> int:
        return sum(not dry_run for _, dry_run in self.created)


class View(ClusterView):
    """Of a cluster that has said nothing yet, with the events that were told to it."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, "node-1")
        self.told: list[tuple[str, str, str]] = []

    def tell_pod(self, pod: PodRef, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append((str(pod), reason, message))

    def tell_node(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append(("node", reason, message))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    made = MemoryStore(tmp_path / "state")
    made.prepare()
    yield made
    made.close()


def moving(server: Server, store: MemoryStore) -> PodMoves:
    """The moves of one life of the agent."""
    return PodMoves(View(server), store, server.clock)


def no_job(uid: str) -> bool:
    return False


@pytest.mark.parametrize(
    "error",
    [
        refusal(Forbidden, 'pods is forbidden: User "x" cannot create'),
        refusal(Invalid, "spec: Invalid value"),
    ],
    ids=["forbidden", "invalid"],
)
async def test_a_pod_that_could_not_be_created_again_is_not_asked_to_go(
    store: MemoryStore, error: ApiError
) -> None:
    server = Server()
    server.refusal = error
    outcome = await moving(server, store).begin(MOVE)
    assert outcome.result is ActionResult.FAILED
    assert "could not be created again" in outcome.message
    assert server.pod is not None
    assert store.moves().manifests == ()
    ((body, dry_run),) = server.created
    assert dry_run
    assert body["metadata"] == {"namespace": "default", "generateName": "mover-"}


async def test_a_full_quota_is_no_obstacle_for_the_pod_itself_makes_room(store: MemoryStore) -> None:
    server = Server()
    server.refusal = refusal(Forbidden, "pods is forbidden: exceeded quota: pods")
    outcome = await moving(server, store).begin(MOVE)
    assert outcome.result is ActionResult.DONE
    assert len(store.moves().manifests) == 1


def required(*terms: Object) -> Object:
    rules = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": rules}}


def only(key: str, *values: str) -> Object:
    return {"key": key, "operator": "In", "values": list(values)}


@pytest.mark.parametrize(
    ("spec", "pinned"),
    [
        ({"nodeSelector": {HOSTNAME: "node-1"}}, True),
        ({"nodeSelector": {"zone": "a"}}, False),
        (required({"matchExpressions": [only(HOSTNAME, "node-1")]}), True),
        (required({"matchFields": [only("metadata.name", "node-1")]}), True),
        (required({"matchExpressions": [only(HOSTNAME, "node-1", "node-2")]}), False),
        (required({"matchExpressions": [only(HOSTNAME, "node-1")]}, {"matchExpressions": []}), False),
        ({}, False),
    ],
)
async def test_a_pod_that_is_pinned_to_this_node_is_not_moved(
    store: MemoryStore, spec: Object, pinned: bool
) -> None:
    server = Server(**spec)
    outcome = await moving(server, store).begin(MOVE)
    assert outcome.result is (ActionResult.FAILED if pinned else ActionResult.DONE)
    assert (server.pod is not None) == pinned


async def test_a_creation_that_fails_later_is_told_once_and_tried_again(store: MemoryStore) -> None:
    server = Server()
    view = View(server)
    moves = PodMoves(view, store, server.clock)
    await moves.begin(MOVE)
    server.refusal = refusal(Forbidden, "exceeded quota")
    for _ in range(3):
        await moves.finish(no_job)
    assert [(about, reason) for about, reason, _ in view.told] == [
        ("default/mover", "ColocationMemoryMoveElsewhereFailed"),
        ("node", "ColocationMemoryMoveElsewhereFailed"),
    ]
    assert "exceeded quota" in view.told[0][2]
    server.refusal = None
    await moves.finish(no_job)
    assert store.moves().manifests == ()


async def test_a_namespace_that_came_back_gets_no_pod_of_its_former_life(store: MemoryStore) -> None:
    server = Server()
    await moving(server, store).begin(MOVE)
    server.namespace = None
    moves = moving(server, store)
    server.namespace = {"metadata": {"name": "default", "uid": "another"}}
    await moves.finish(no_job)
    assert server.creations == 0
    assert store.moves().manifests == ()


async def test_a_namespace_that_is_deleted_ends_the_move_before_it_can_come_back(store: MemoryStore) -> None:
    server = Server()
    moves = moving(server, store)
    await moves.begin(MOVE)
    was, server.namespace = server.namespace, None
    await moves.finish(no_job)
    server.namespace = was
    await moves.finish(no_job)
    assert server.creations == 0
    assert store.moves().manifests == ()


@pytest.mark.parametrize("restarts", [False, True], ids=["one life", "a new life each time"])
async def test_a_move_that_fails_for_an_hour_is_given_up_told_and_kept_for_people(
    store: MemoryStore, tmp_path: Path, restarts: bool
) -> None:
    server = Server()
    moves = moving(server, store)
    await moves.begin(MOVE)
    server.refusal = refusal(Forbidden, "exceeded quota")
    for _ in range(59):
        await server.time.advance(60)
        moves = moving(server, store) if restarts else moves
        await moves.finish(no_job)
    assert server.creations == 59
    await server.time.advance(61)
    await moves.finish(no_job)
    view = moves._cluster
    assert isinstance(view, View)
    assert "is not created again; create it if you still want it" in view.told[-1][2]
    server.refusal = None
    await moves.finish(no_job)
    await moving(server, store).finish(no_job)
    assert server.creations == 59, "room in the quota comes too late"
    aside = tmp_path / "state" / "memory-recreate-u.json.expired"
    assert msgspec.json.decode(aside.read_bytes(), type=PodNote).name == "mover"
    assert any(str(aside) in lost for lost in store.moves().lost)


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
async def test_a_jump_of_the_clock_makes_no_note_last_for_ever(store: MemoryStore, jump: float) -> None:
    server = Server()
    moves = moving(server, store)
    await moves.begin(MOVE)
    server.refusal = refusal(Forbidden, "exceeded quota")
    await moves.finish(no_job)
    server.time.jump(jump)
    await server.time.advance(3601)
    await moves.finish(no_job)
    assert store.moves().manifests == ()


async def test_an_api_server_that_refuses_everything_for_an_hour_ends_the_move_too(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    moves = moving(server, store)
    await moves.begin(MOVE)
    await server.time.advance(3601)

    async def broken(request: Request) -> bytes:
        raise refusal(Forbidden, "no")

    monkeypatch.setattr(server, "ask_once", broken)
    await moves.finish(no_job)
    assert store.moves().manifests == ()


def test_only_so_many_expired_notes_are_kept(store: MemoryStore, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for number in range(25):
        uid = f"pod-{number:02}"
        store.remember(PodNote(uid, "default", uid, {}, noted=1.0))
        os.utime(folder / f"memory-recreate-{uid}.json", (number, number))
        store.expire(uid)
    kept = sorted(file.name for file in folder.glob("*.expired"))
    assert kept == [f"memory-recreate-pod-{number:02}.json.expired" for number in range(5, 25)]


async def test_a_pod_that_its_owner_deletes_is_neither_evicted_nor_written_down(store: MemoryStore) -> None:
    server = Server()
    server.end(DELETION)
    outcome = await moving(server, store).begin(MOVE)
    assert outcome.result is ActionResult.GONE
    assert store.moves().manifests == ()


async def test_a_pod_that_its_owner_deleted_just_before_the_eviction_is_not_created_again(
    store: MemoryStore,
) -> None:
    server = Server()
    server.eviction = refusal(NotFound, "no such pod")
    moves = moving(server, store)
    outcome = await moves.begin(MOVE)
    assert outcome.result is ActionResult.GONE
    server.pod = None
    await moves.finish(no_job)
    assert server.creations == 0
    assert store.moves().manifests == ()


@pytest.mark.parametrize("life", ["same", "new"])
async def test_a_pod_that_its_owner_deletes_while_it_ends_is_not_created_again(
    store: MemoryStore, life: str
) -> None:
    server = Server()
    server.stays = True
    moves = moving(server, store)
    await moves.begin(MOVE)
    moves = moves if life == "same" else moving(server, store)
    await moves.finish(no_job)
    assert len(store.moves().manifests) == 1, "it still ends"
    server.end("2026-01-01T00:00:02Z", grace=1)
    await moves.finish(no_job)
    server.end()
    await moves.finish(no_job)
    assert server.creations == 0
    assert store.moves().manifests == ()


async def test_the_kubelets_last_word_on_an_evicted_pod_is_not_its_owners(store: MemoryStore) -> None:
    server = Server()
    server.stays = True
    moves = moving(server, store)
    await moves.begin(MOVE)
    server.end("2026-01-01T00:00:20Z", grace=0)
    await moves.finish(no_job)
    server.end()
    await moves.finish(no_job)
    assert server.creations == 1


async def test_an_agent_killed_before_the_eviction_was_answered_is_followed_by_one_that_creates_the_pod(
    store: MemoryStore,
) -> None:
    server = Server()
    await moving(server, store).begin(MOVE)
    (note,) = store.moves().manifests
    store.remember(msgspec.structs.replace(note, accepted=False, deletion=""))
    await moving(server, store).finish(no_job)
    assert server.creations == 1


async def test_an_agent_killed_before_the_eviction_and_back_much_later_creates_nothing(
    store: MemoryStore,
) -> None:
    server = Server()
    await moving(server, store).begin(MOVE)
    (note,) = store.moves().manifests
    store.remember(msgspec.structs.replace(note, accepted=False, deletion=""))
    await server.time.advance(600)
    moves = moving(server, store)
    await moves.finish(no_job)
    assert server.creations == 0, "its owner may have deleted it since"
    assert len(list(store._folder.glob("*.expired"))) == 1


class Full(MemoryStore):
    """A folder on a disk that takes nothing any more from some moment on."""

    broken = False

    def _fail(self) -> None:
        if self.broken:
            raise OSError(
                errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self._folder}/.tmp{os.urandom(4).hex()}"
            )

    def remember(self, manifest: PodNote) -> None:
        self._fail()
        super().remember(manifest)

    def forget(self, uid: str) -> None:
        self._fail()
        super().forget(uid)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    made = Full(tmp_path / "full")
    made.prepare()
    yield made
    made.close()


async def test_a_pod_that_cannot_be_written_down_is_not_asked_to_go_and_asked_again_later(full: Full) -> None:
    server = Server()
    full.broken = True
    outcome = await moving(server, full).begin(MOVE)
    assert outcome.result is ActionResult.BLOCKED, "a failure would have it evicted instead, and lost"
    assert "cannot be recorded" in outcome.message
    assert server.pod is not None


async def test_a_note_that_cannot_be_removed_after_a_refused_eviction_is_no_failure_of_the_move(
    full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    server.eviction = refusal(Forbidden, "no")
    moves = moving(server, full)
    monkeypatch.setattr(full, "forget", lambda uid: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    outcome = await moves.begin(MOVE)
    assert outcome.result is ActionResult.REFUSED
    server.pod = None
    await moves.finish(no_job)
    assert server.creations == 0, "the owner deleted it"


async def test_a_note_that_cannot_be_removed_creates_no_second_pod_and_holds_up_no_other(full: Full) -> None:
    server = Server()
    moves = moving(server, full)
    await moves.begin(MOVE)
    other = PodNote("v", "default", "other", {"metadata": {"name": "other"}}, server.clock.time(), "ns", True)
    full.remember(other)
    full.broken = True
    for _ in range(3):
        await moves.finish(no_job)
    assert [body["metadata"]["name"] for body, dry_run in server.created if not dry_run] == ["mover", "other"]
    full.broken = False
    await moves.finish(no_job)
    assert full.moves().manifests == ()
    assert server.creations == 2


async def test_trouble_with_a_note_is_one_event_though_the_temporary_file_has_another_name_each_time(
    full: Full,
) -> None:
    server = Server()
    server.stays = True
    view = View(server)
    moves = PodMoves(view, full, server.clock)
    await moves.begin(MOVE)
    (note,) = full.moves().manifests
    full.remember(msgspec.structs.replace(note, accepted=False))
    full.broken = True
    for _ in range(3):
        await moves.finish(no_job)
    assert len(view.told) == 2, "one on the pod, one on the node"


POD = {"metadata": {"name": "mover", "uid": "u"}}
LEAVING = {"metadata": {**POD["metadata"], "deletionTimestamp": DELETION, "deletionGracePeriodSeconds": 30}}
EVICTED = {
    **LEAVING,
    "status": {"conditions": [{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}]},
}
PREEMPTED = {
    **LEAVING,
    "status": {"conditions": [{"type": "DisruptionTarget", "reason": "PreemptionByScheduler"}]},
}
OTHER = {"metadata": {"name": "mover", "uid": "another"}}
SPACE = {"metadata": {"uid": "ns", "creationTimestamp": "2026-01-01T00:00:00Z"}}
ENDING_SPACE = {"metadata": {**SPACE["metadata"], "deletionTimestamp": DELETION}}
ANOTHER_SPACE = {"metadata": {**SPACE["metadata"], "uid": "another"}}
NOTE = PodNote("u", "default", "mover", {}, noted=1.0, namespace_uid="ns", accepted=True)
UNSURE = msgspec.structs.replace(NOTE, accepted=False)
OLD = PodNote("u", "default", "mover", {}, noted=1767225600.0, accepted=True)  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("note", "pod", "namespace", "age", "fate"),
    [
        (NOTE, None, SPACE, 0, NoteFate.CREATE),
        (NOTE, None, SPACE, 3601, NoteFate.EXPIRE),
        (NOTE, None, None, 0, NoteFate.DROP),
        (NOTE, None, ENDING_SPACE, 0, NoteFate.DROP),
        (NOTE, None, ANOTHER_SPACE, 0, NoteFate.DROP),
        (NOTE, None, ANOTHER_SPACE, 3601, NoteFate.DROP),
        (OLD, None, SPACE, 0, NoteFate.CREATE),
        (msgspec.structs.replace(OLD, noted=OLD.noted - 1), None, SPACE, 0, NoteFate.DROP),
        (UNSURE, None, SPACE, 299, NoteFate.CREATE),
        (UNSURE, None, SPACE, 301, NoteFate.EXPIRE),
        (NOTE, POD, None, 0, NoteFate.DROP),
        (NOTE, OTHER, None, 0, NoteFate.DROP),
        (NOTE, LEAVING, None, 0, NoteFate.WAIT),
        (NOTE, LEAVING, None, 3601, NoteFate.EXPIRE),
        (UNSURE, LEAVING, None, 0, NoteFate.DROP),
        (UNSURE, PREEMPTED, None, 0, NoteFate.DROP),
        (UNSURE, EVICTED, None, 0, NoteFate.WAIT),
        (msgspec.structs.replace(NOTE, deletion="2026-01-01T00:00:31Z"), LEAVING, None, 0, NoteFate.DROP),
        (msgspec.structs.replace(NOTE, deletion=DELETION), LEAVING, None, 0, NoteFate.WAIT),
    ],
)
def test_what_becomes_of_a_note(
    note: PodNote, pod: Object | None, namespace: Object | None, age: float, fate: NoteFate
) -> None:
    assert verdict(note, pod, namespace, age, 3600.0).fate is fate
