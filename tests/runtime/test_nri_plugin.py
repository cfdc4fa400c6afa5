"""The NRI plugin and a runtime that does what runtimes do: refuses, is slow, restarts, hangs up, stops."""

import asyncio
from pathlib import Path

from tests.runtime.nri_pairs import NriPair, nri_pair
from tests.support.noted_events import NotedEvents
from tests.support.nri_runtime import NriRuntime
from tests.support.waiting import until

from colocate.clock import ManualClock
from colocate.model.container import CpuPin
from colocate.model.cpuset import CpuSet
from colocate.runtime.events import PlacementRefused, Placing
from colocate.runtime.nri_plugin import NriPlugin
from colocate.wire import nri_pb2 as nri
from colocate.wire import ttrpc_pb2 as ttrpc

CREATE = nri.CreateContainerRequest(
    pod=nri.PodSandbox(id="s", pid=7), container=nri.Container(id="c", pod_sandbox_id="s", name="main")
)


def pins(count: int) -> list[CpuPin]:
    return [CpuPin(container_id=f"c{number}", cpus=CpuSet.parse("0-3")) for number in range(count)]


class TestAnswers:
    async def test_a_refusal_is_an_error_with_its_sentence(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        pair.events.error = PlacementRefused("no CCX has 8 CPUs free; ask for fewer\n")
        answer = await plugin.ask("CreateContainer", CREATE)
        assert answer.status.code == 9
        assert answer.status.message == "no CCX has 8 CPUs free; ask for fewer\\n"

    async def test_no_answer_of_the_placer_leaves_the_container_as_it_is(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        assert (await plugin.ask("CreateContainer", CREATE)).payload == b""
        update = nri.UpdateContainerRequest(container=nri.Container(id="c"))
        assert (await plugin.ask("UpdateContainer", update)).payload == b""

    async def test_memory_nodes_are_left_alone_where_the_pin_names_none(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        pair.events.placing = Placing(CpuPin(cpus=CpuSet.parse("8-15")))
        answer = await plugin.ask("CreateContainer", CREATE)
        cpu = nri.CreateContainerResponse.FromString(answer.payload).adjust.linux.resources.cpu
        assert (cpu.cpus, cpu.mems) == ("8-15", "")

    async def test_a_fault_of_the_placer_lets_the_container_go_on(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        pair.told()
        pair.events.error = RuntimeError("a fault")
        assert (await plugin.ask("CreateContainer", CREATE)) == ttrpc.Response()
        assert pair.told() == ["nri.request_failed"]

    async def test_a_slow_placer_lets_the_container_go_on_in_time(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        pair.told()
        pair.events.free.clear()
        assert (await plugin.ask("CreateContainer", CREATE, timeout=0.02)) == ttrpc.Response()
        stop = nri.StopContainerRequest(container=nri.Container(id="c"))
        assert (await plugin.ask("StopContainer", stop, timeout=0.02)) == ttrpc.Response()
        assert pair.told() == ["nri.let_go"]
        pair.events.free.set()
        await plugin.ask("RemoveContainer", nri.RemoveContainerRequest(container=nri.Container(id="c")))
        names = [event[0] for event in pair.events.heard]
        assert names == ["synchronize", "create", "stopped", "removed"], "late, but in their order"

    async def test_the_time_of_the_configuration_counts_where_a_request_names_none(
        self, pair: NriPair
    ) -> None:
        plugin = await pair.runtime.connection()
        await plugin.introduce(request_timeout=20)
        pair.events.free.clear()
        assert (await plugin.ask("CreateContainer", CREATE, timeout=0)) == ttrpc.Response()
        pair.events.free.set()

    async def test_events_come_by_methods_of_their_own_from_the_newest_runtimes(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        container = nri.Container(id="c")
        await plugin.ask("PostStartContainer", nri.PostStartContainerRequest(container=container))
        await plugin.ask("RemoveContainer", nri.RemoveContainerRequest(container=container))
        await plugin.ask("StopPodSandbox", nri.StopPodSandboxRequest(pod=nri.PodSandbox(id="s")))
        await plugin.ask("RemovePodSandbox", nri.RemovePodSandboxRequest(pod=nri.PodSandbox(id="s")))
        assert pair.events.heard[1:] == [
            ("started", "c"),
            ("removed", "c"),
            ("sandbox_stopped", "s"),
            ("sandbox_removed", "s"),
        ]

    async def test_pieces_are_short_enough_for_the_buffers_of_runtimes(self, pair: NriPair) -> None:
        pair.events.corrections = pins(5000)
        plugin = await pair.runtime.connection()
        await plugin.introduce()
        answer = await plugin.ask("Synchronize", nri.SynchronizeRequest())
        assert len(nri.SynchronizeResponse.FromString(answer.payload).update) == 5000
        assert plugin.longest_piece <= 4096

    async def test_an_answer_stays_below_what_runtimes_can_hold(self, pair: NriPair) -> None:
        pair.events.corrections = pins(50_000)
        plugin = await pair.runtime.connection()
        await plugin.introduce()
        assert (
            len((await plugin.ask("Synchronize", nri.SynchronizeRequest())).payload)
            <= (512 << 10) + 50_000 * 3
        )


class TestWrites:
    async def test_a_few_containers_are_changed_at_a_time(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        assert pair.events.writer is not None
        writing = asyncio.create_task(pair.events.writer.write(pins(20)))
        sizes: list[int] = []
        while sum(sizes) < 20:
            stream, request = await plugin.called("UpdateContainers")
            sizes.append(len(nri.UpdateContainersRequest.FromString(request.payload).update))
            plugin.answer(stream)
        assert (sizes, await writing) == ([8, 8, 4], [])

    async def test_those_that_failed_are_named(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        assert pair.events.writer is not None
        writing = asyncio.create_task(pair.events.writer.write(pins(10)))
        failed = nri.UpdateContainersResponse(failed=[nri.ContainerUpdate(container_id="c3")])
        status = ttrpc.Status(code=2, message="some failed")
        stream, _ = await plugin.called("UpdateContainers")
        plugin.answer(stream, ttrpc.Response(status=status, payload=failed.SerializeToString()))
        stream, _ = await plugin.called("UpdateContainers")
        plugin.answer(stream, ttrpc.Response(status=status))
        assert await writing == ["c3", "c8", "c9"], "where none is named, all have failed"

    async def test_all_have_failed_where_the_runtime_hangs_up(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        assert pair.events.writer is not None
        writing = asyncio.create_task(pair.events.writer.write(pins(10)))
        await plugin.called("UpdateContainers")
        await plugin.hang_up()
        assert await writing == [pin.container_id for pin in pins(10)]


class TestConnections:
    async def test_a_runtime_that_hangs_up_is_told_once_and_found_again(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        pair.told()
        await plugin.hang_up()
        await pair.synchronized()
        assert pair.told() == ["nri.disconnected", "nri.synchronized"]
        names = [event[0] for event in pair.events.heard]
        assert names == ["synchronize", "detached", "synchronize"]

    async def test_a_runtime_that_is_not_there_is_told_once_and_awaited(self, tmp_path: Path) -> None:
        clock = ManualClock()
        async with nri_pair(tmp_path, clock) as pair:
            plugin = await pair.synchronized()
            await plugin.hang_up()
            pair.runtime.socket.unlink()
            for _ in range(5):
                await clock.until_someone_sleeps()
                await clock.advance(4)
            assert pair.told() == ["nri.synchronized", "nri.disconnected", "nri.awaited"]

    async def test_a_runtime_that_refuses_the_plugin_is_asked_again(self, pair: NriPair) -> None:
        plugin = await pair.runtime.connection()
        stream, _ = await plugin.called("RegisterPlugin")
        plugin.answer(stream, ttrpc.Response(status=ttrpc.Status(code=3, message="invalid plugin index")))
        await plugin.end()
        await pair.synchronized()
        assert pair.told() == ["nri.disconnected", "nri.synchronized"]

    async def test_a_placer_that_could_not_take_it_in_is_told_again(self, pair: NriPair) -> None:
        pair.events.error = RuntimeError("a fault")
        plugin = await pair.runtime.connection()
        await plugin.introduce()
        plugin.send(plugin.request("Synchronize", nri.SynchronizeRequest()))
        await plugin.end()
        pair.events.error = None
        await pair.synchronized()
        assert pair.told() == ["nri.request_failed", "nri.disconnected", "nri.synchronized"]

    async def test_a_request_under_way_is_seen_through_when_the_runtime_hangs_up(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        pair.events.free.clear()
        plugin.send(plugin.request("CreateContainer", CREATE))
        plugin.send(plugin.request("StopContainer", nri.StopContainerRequest()))
        await plugin.drain()
        await plugin.hang_up()
        pair.events.free.set()
        await pair.synchronized()
        names = [event[0] for event in pair.events.heard]
        assert names in (
            ["synchronize", "create", "detached", "synchronize"],
            ["synchronize", "detached", "synchronize"],  # it had not arrived yet
        )

    async def test_shutdown_is_answered(self, pair: NriPair) -> None:
        plugin = await pair.synchronized()
        assert await plugin.ask("Shutdown") == ttrpc.Response()

    async def test_the_plugin_stops_with_a_request_under_way(self, tmp_path: Path) -> None:
        events = NotedEvents()
        async with NriRuntime(tmp_path / "nri.sock").listening() as runtime:
            plugin = NriPlugin(events, ManualClock(), socket=runtime.socket)
            running = asyncio.create_task(plugin.run())
            connection = await runtime.connection()
            await connection.introduce()
            await connection.ask("Synchronize", nri.SynchronizeRequest())
            events.free.clear()
            connection.send(connection.request("CreateContainer", CREATE))
            await connection.drain()
            running.cancel()
            await connection.end()
            events.free.set()
            await asyncio.gather(running, return_exceptions=True)
        await until(lambda: len(asyncio.all_tasks()) == 1, "no task is left")
        assert events.heard[-1] == ("detached",)
