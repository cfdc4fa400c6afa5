"""Pods that leave: nobody is asked to go who could not be created again, and what fails later is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.departures import finish_moves, move_elsewhere
from colocate.apps.memory.objects import HOSTNAME
from colocate.apps.memory.store import Store
from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.cluster.errors import ApiError, Doing, Forbidden, Invalid, NotFound, Status
from colocate.cluster.resources import Object
from colocate.cluster.transport import Request
from colocate.memory.actions import PodRef, Recreate
from colocate.memory.facts import Result

REF = PodRef("u", "default", "mover")
MOVE = Recreate(pod=REF, avoid="node-1", reason="")
DOING = Doing("create", "pods", "default", "mover")


def refusal(kind: type[ApiError], message: str) -> ApiError:
    return kind(DOING, Status(message, "", 0))


class Server(Client):
    """An API server with one pod, that refuses to create as a test wants."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(Connection("http://127.0.0.1:9", "the test"), ManualClock())
        self.pod: Object | None = {
            "metadata": {"name": "mover", "namespace": "default", "uid": "u"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **spec},
        }
        self.refusal: ApiError | None = None
        self.created: list[tuple[Object, bool]] = []

    async def ask_once(self, request: Request) -> bytes:
        match request.doing.verb, request.doing.resource:
            case "get", "pods":
                if self.pod is None:
                    raise refusal(NotFound, "no such pod")
                return msgspec.json.encode(self.pod)
            case "create", "pods":
                self.created.append(
                    (msgspec.json.decode(request.body or b""), "dryRun" in request.parameters)
                )
                if self.refusal is not None:
                    raise self.refusal
                return request.body or b""
            case "create", "pods/eviction":
                self.pod = None
                return b"{}"
        raise AssertionError(f"nobody departs by {request.doing}")


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
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "state")
    made.prepare()
    yield made
    made.close()


@pytest.mark.parametrize(
    "error",
    [
        refusal(Forbidden, 'pods is forbidden: User "x" cannot create'),
        refusal(Invalid, "spec: Invalid value"),
    ],
    ids=["forbidden", "invalid"],
)
async def test_a_pod_that_could_not_be_created_again_is_not_asked_to_go(
    store: Store, error: ApiError
) -> None:
    server = Server()
    server.refusal = error
    outcome = await move_elsewhere(View(server), store, MOVE)
    assert outcome.result is Result.FAILED
    assert "could not be created again" in outcome.message
    assert server.pod is not None
    assert store.moves().manifests == ()
    ((body, dry_run),) = server.created
    assert dry_run
    assert body["metadata"] == {"namespace": "default", "generateName": "mover-"}


async def test_a_full_quota_is_no_obstacle_for_the_pod_itself_makes_room(store: Store) -> None:
    server = Server()
    server.refusal = refusal(Forbidden, "pods is forbidden: exceeded quota: pods")
    outcome = await move_elsewhere(View(server), store, MOVE)
    assert outcome.result is Result.DONE
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
    store: Store, spec: Object, pinned: bool
) -> None:
    server = Server(**spec)
    outcome = await move_elsewhere(View(server), store, MOVE)
    assert outcome.result is (Result.FAILED if pinned else Result.DONE)
    assert (server.pod is not None) == pinned


async def test_a_creation_that_fails_later_is_told_once_and_tried_again(store: Store) -> None:
    server = Server()
    view = View(server)
    await move_elsewhere(view, store, MOVE)
    server.refusal = refusal(Forbidden, "exceeded quota")
    told: dict[str, str] = {}
    for _ in range(3):
        await finish_moves(view, store, list(store.moves().manifests), told)
    assert [(about, reason) for about, reason, _ in view.told] == [
        ("default/mover", "ColocationMemoryMovedElsewhereNot"),
        ("node", "ColocationMemoryMovedElsewhereNot"),
    ]
    assert "exceeded quota" in view.told[0][2]
    server.refusal = None
    await finish_moves(view, store, list(store.moves().manifests), told)
    assert store.moves().manifests == ()
