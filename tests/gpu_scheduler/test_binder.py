"""One bind, and every way in which it fails: what is left in the API, and what in the book."""

import asyncio

import pytest

from colocate.clock import ManualClock
from colocate.cluster.errors import ApiStatus, Forbidden
from colocate.gpus import SEAL
from colocate.wire.extender_questions import BindingAsked
from tests.gpu_scheduler.clusters import gpus, uuid
from tests.gpu_scheduler.fake_api import DOING, Crashed, FakeApi, Fault, typed
from tests.gpu_scheduler.test_stateful import DOUBT, SIZE, Replica
from tests.support.waiting import until


class Scene:
    """One node with one GPU, a replica that binds, and a pod that takes the GPU's whole memory."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = ManualClock()
        self.api.put_node("a", gpus("a", 1, size=SIZE))
        for name in ("first", "second"):
            self.api.create(name, SIZE, 0, 1)
        self.replica = Replica(self.api, self.clock)

    async def lead(self) -> None:
        self.replica.lease.held = True
        await self.replica.binder.catch_up()

    async def bind(self, name: str, *faults: Fault) -> str:
        self.replica.client.faults = list(faults)
        uid = typed(self.api.pods[name]).uid
        return await self.replica.binder.bind(BindingAsked(name, "default", uid, "a"))

    def annotations(self, name: str) -> dict[str, str]:
        return dict(typed(self.api.pods[name]).annotations)

    def node(self, name: str) -> str:
        return typed(self.api.pods[name]).spec.node_name


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.lead()
    return scene


async def test_a_bind_writes_the_booking_and_its_seal(scene: Scene) -> None:
    assert await scene.bind("first") == ""
    assert scene.node("first") == "a"
    written = scene.annotations("first")
    assert written["doslab.io/gpu-uuid"] == uuid("a", 0)
    assert len(written[SEAL]) == len("1:") + 64


async def test_the_gpu_is_taken_before_the_api_shows_it(scene: Scene) -> None:
    assert await scene.bind("first") == ""
    assert "another pod was quicker" in await scene.bind("second")
    assert scene.annotations("second") == {}


async def test_a_pod_that_somebody_writes_meanwhile_is_read_again(scene: Scene) -> None:
    scene.api.change("first", lambda pod: pod["metadata"].setdefault("labels", {}).update(a="b"))
    assert await scene.bind("first", Fault.CONFLICT) == ""
    assert scene.node("first") == "a"


async def test_a_bind_that_is_refused_takes_its_annotations_back_and_frees_the_gpu(scene: Scene) -> None:
    assert "try again" in await scene.bind("first", Fault.NONE, Fault.CONFLICT)
    assert scene.annotations("first") == {}
    assert await scene.bind("second") == ""


async def test_a_bind_whose_answer_is_lost_keeps_the_gpu_from_others(scene: Scene) -> None:
    assert "lost" in await scene.bind("first", Fault.NONE, Fault.LOST)
    assert scene.node("first") == "a"
    assert "no GPU that fits is free" in await scene.bind("second")
    await scene.clock.advance(2 * DOUBT)
    scene.replica.book.expire(scene.clock.monotonic())
    assert await scene.bind("second") != "", "its time being over is not enough"
    await scene.replica.binder.resolve_doubts()
    assert await scene.bind("second") != "", "whoever looks finds it bound"
    assert scene.replica.book.booking(typed(scene.api.pods["first"]).uid) is not None


async def test_a_bind_that_never_came_through_frees_the_gpu_once_somebody_has_looked(scene: Scene) -> None:
    assert await scene.bind("first", Fault.NONE, Fault.BROKEN) != ""
    assert await scene.bind("second") != ""
    await scene.clock.advance(2 * DOUBT)
    await scene.replica.binder.resolve_doubts()
    assert await scene.bind("second") == ""


async def test_the_same_pod_may_be_tried_again_on_the_same_gpu_while_in_doubt(scene: Scene) -> None:
    assert await scene.bind("first", Fault.NONE, Fault.BROKEN) != ""
    assert await scene.bind("first") == ""
    assert scene.annotations("first")["doslab.io/gpu-uuid"] == uuid("a", 0)


@pytest.mark.parametrize("faults", [(Fault.CRASH_AFTER,), (Fault.NONE, Fault.CRASH_BEFORE)])
async def test_a_crash_between_annotations_and_bind_books_nothing(
    scene: Scene, faults: tuple[Fault, ...]
) -> None:
    with pytest.raises(Crashed):
        await scene.bind("first", *faults)
    assert scene.node("first") == ""
    scene.replica = Replica(scene.api, scene.clock)
    await scene.lead()
    assert await scene.bind("second") == ""
    assert scene.node("second") == "a"


async def test_a_crash_after_the_bind_is_found_by_the_next(scene: Scene) -> None:
    with pytest.raises(Crashed):
        await scene.bind("first", Fault.NONE, Fault.CRASH_AFTER)
    scene.replica = Replica(scene.api, scene.clock)
    await scene.lead()
    assert await scene.bind("second") != ""


async def test_who_takes_over_reads_what_its_watch_has_not_shown(scene: Scene) -> None:
    other = Replica(scene.api, scene.clock)
    assert await scene.bind("first") == ""
    scene.replica.lease.held = False
    scene.replica = other
    other.lease.held = True
    assert "still reading what was bound before" in await scene.bind("second")
    await scene.lead()
    assert "no GPU that fits is free" in await scene.bind("second")


async def test_without_the_right_to_patch_the_binding_alone_writes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: object) -> None:
        raise Forbidden(DOING, ApiStatus("no"))

    monkeypatch.setattr(scene.replica.client, "patch", forbidden)
    assert await scene.bind("first") == ""
    assert scene.annotations("first")["doslab.io/gpu-uuid"] == uuid("a", 0)


async def test_another_pod_of_the_same_name_is_not_bound_by_mistake(scene: Scene) -> None:
    uid = typed(scene.api.pods["first"]).uid
    scene.api.delete("first")
    scene.api.create("first", SIZE, 0, 1)
    told = await scene.replica.binder.bind(BindingAsked("first", "default", uid, "a"))
    assert scene.node("first") == ""
    assert told
    assert await scene.bind("second") == "", "nothing is kept for the one that is gone"


async def test_a_pod_that_is_where_it_should_be_is_no_failure(scene: Scene) -> None:
    assert await scene.bind("first") == ""
    scene.replica.feed.follow(100)
    assert await scene.bind("first") == ""


async def test_a_second_try_while_in_doubt_that_fails_keeps_the_gpu_from_others(scene: Scene) -> None:
    assert "lost" in await scene.bind("first", Fault.NONE, Fault.LOST)
    assert "on node a already" in await scene.bind("first"), "the watch has not shown it yet"
    assert await scene.bind("second") != ""
    assert scene.node("second") == ""


async def test_a_second_try_that_never_reached_the_server_leaves_the_first_in_doubt(scene: Scene) -> None:
    assert "lost" in await scene.bind("first", Fault.NONE, Fault.LOST)
    assert "no connection" in await scene.bind("first", Fault.UNSENT)
    assert await scene.bind("second") != ""
    assert scene.node("second") == ""


async def test_a_bind_that_is_cut_off_while_it_looks_what_became_of_it_leaks_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, looking = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> None:
        looking.set()
        await never.wait()

    with monkeypatch.context() as patched:
        patched.setattr(scene.replica.client, "get", slow)
        binding = asyncio.create_task(scene.bind("first", Fault.NONE, Fault.CONFLICT))
        await until(looking.is_set, "the look")
        await scene.clock.advance(DOUBT)
        assert "has not answered" in await binding
    await scene.clock.advance(2 * DOUBT)
    await scene.replica.binder.resolve_doubts()
    assert scene.replica.book.held == {}
    assert await scene.bind("second") == ""


async def test_a_look_that_is_older_than_the_bind_frees_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await scene.bind("first", Fault.NONE, Fault.BROKEN) != ""
    scene.replica.feed.follow(len(scene.api.log))
    await scene.clock.advance(2 * DOUBT)
    answered = asyncio.Event()
    seen = typed(scene.api.pods["first"])

    async def late(*_: object) -> object:
        await answered.wait()
        return seen

    with monkeypatch.context() as patched:
        patched.setattr(scene.replica.client, "get", late)
        looking = asyncio.create_task(scene.replica.binder.resolve_doubts())
        await asyncio.sleep(0)
        assert await scene.bind("first") == ""
        answered.set()
        await looking
    assert await scene.bind("second") != ""


async def test_what_the_watch_never_shows_is_asked_for_until_it_is_gone(scene: Scene) -> None:
    scene.api.create("third", SIZE, 0, 1)
    assert await scene.bind("third") == "", "the watch has not shown it, and the API server has it"
    await scene.lead()
    scene.api.delete("third")
    scene.replica.feed.relist()
    await scene.replica.binder.resolve_doubts()
    assert scene.replica.book.held == {}
    assert await scene.bind("second") == ""


async def test_annotations_that_are_not_read_outlive_a_bind(scene: Scene) -> None:
    scene.api.change("first", lambda pod: pod["metadata"].update(annotations={"example.com/mine": "kept"}))
    scene.replica.feed.follow(len(scene.api.log))
    assert await scene.bind("first") == ""
    written = scene.api.pods["first"]["metadata"]["annotations"]  # type: ignore[index]
    assert written["example.com/mine"] == "kept"
    assert SEAL in written


async def test_a_pod_that_ends_while_all_are_read_is_let_go_at_the_next_look(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await scene.bind("first") == ""
    listed = [typed(pod) for pod in scene.api.pods.values()]
    scene.api.change("first", lambda pod: pod["status"].update(phase="Succeeded"))
    scene.replica.feed.follow(len(scene.api.log))

    async def late(*_: object) -> object:
        return listed

    monkeypatch.setattr(scene.replica.client, "list", late)
    await scene.lead()
    await scene.replica.binder.resolve_doubts()
    assert scene.replica.book.held == {}


async def test_a_gpu_that_falls_ill_before_the_bind_is_replaced_by_another(scene: Scene) -> None:
    scene.api.put_node("a", gpus("a", 2, size=SIZE))
    scene.replica.feed.follow(len(scene.api.log))
    chosen = scene.replica.book.reserve(typed(scene.api.pods["first"]), "a", scene.clock.monotonic() + 10)
    assert chosen is not None
    ((kept,),) = chosen.given
    sick = [index for index in range(2) if uuid("a", index) == kept]
    scene.api.put_node("a", gpus("a", 2, size=SIZE, sick=sick))
    scene.replica.feed.follow(len(scene.api.log))
    assert await scene.bind("first") == ""
    assert scene.annotations("first")["doslab.io/gpu-uuid"] == uuid("a", 1 - sick[0])


async def test_who_changes_the_set_of_annotations_meanwhile_gets_the_booking_in_that_set(
    scene: Scene,
) -> None:
    wish = {"DOSLAB_IO_GPU_UUID": "GPU-none"}
    scene.api.change("first", lambda pod: pod["metadata"].update(annotations=dict(wish)))
    scene.replica.feed.follow(len(scene.api.log))
    wish = {"doslab.io/gpu-uuid": "GPU-none"}
    scene.api.change("first", lambda pod: pod["metadata"]["annotations"].update(wish))
    assert await scene.bind("first") == ""
    assert scene.annotations("first")["doslab.io/gpu-uuid"] == uuid("a", 0)


async def test_a_pod_whose_node_is_away_keeps_its_gpu_whoever_asks_about_it(scene: Scene) -> None:
    assert await scene.bind("first") == ""
    scene.api.put_node("b", gpus("b", 1, size=SIZE))
    scene.api.remove_node("a")
    book = scene.replica.book
    scene.replica.feed.follow(len(scene.api.log))
    book.reserve(typed(scene.api.pods["first"]), "b", scene.clock.monotonic())
    book.expire(scene.clock.monotonic() + DOUBT)
    scene.api.put_node("a", gpus("a", 1, size=SIZE))
    scene.replica.feed.follow(len(scene.api.log))
    assert await scene.bind("second") != ""
    assert list(book.books["a"].pods) == [typed(scene.api.pods["first"]).uid]
