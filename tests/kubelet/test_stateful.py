"""Any sequence of list updates, allocations, restarts, health changes and stops keeps the promises.

No device is held by two pods; no id that a pod holds leaves the list; no kubelet panics; and in the end every
plugin is registered again and shows just what it lists, and nothing is left behind.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.kubelet import Device, Health, OnStop, Plugins, Registration
from colocate.lab.device_table import DeviceTable
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase
from colocate.testing import embedded_kubelet
from colocate.wire import deviceplugin_pb2 as dp

Result = TypeVar("Result")

IDS = [f"fan-{n}" for n in range(5)]

device_lists = st.lists(
    st.builds(
        Device, st.sampled_from(IDS), st.sampled_from([Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY])
    ),
    unique_by=lambda device: device.id,
)


class Strict(DeviceTable):
    """A device table that complains about a list without an id that a living pod holds."""

    lost: list[str] = []  # noqa: RUF012 -- one list for all tables of a run
    records: dict[str, PodRecord] = {}  # noqa: RUF012

    def _lives(self, pod_uid: str) -> bool:
        return pod_uid in self.records and not self.records[pod_uid].finished

    def replace(self, resource: str, devices: Iterable[dp.Device]) -> None:
        listed = {device.ID for device in devices}
        for held in self.held.values():
            if held.ids - listed and self._lives(held.pod_uid):
                self.lost.append(f"{held.ids - listed} of {held.pod_uid}")
        super().replace(resource, devices)


class LifeOfAPlugin(RuleBasedStateMachine):
    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        Strict.lost.clear()
        self.runner = asyncio.Runner()
        self.listed: list[Device] = [Device(id) for id in IDS]
        self.group: Plugins | None = None
        self.way = Registration.REGISTER
        self.run(self._open())

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(coroutine)

    async def _open(self) -> None:
        self._context = embedded_kubelet()
        self.node = await self._context.__aenter__()
        # The table of a kubelet that starts again is a new one: all of them are strict.
        start = self.node.kubelet.start

        async def start_strictly() -> None:
            await start()
            self.node.kubelet.devices.table.__class__ = Strict

        self.node.kubelet.start = start_strictly  # type: ignore[method-assign]
        self.node.kubelet.devices.table.__class__ = Strict
        Strict.records = self.node.kubelet.records
        await self._start_plugin()

    async def _start_plugin(self) -> None:
        self.fans = Fans()
        self.fans.show(*self.listed)
        self.group = await self.node.serve(self.fans, registration=self.way)
        await self._shown()

    async def _shown(self) -> None:
        """Wait until the kubelet has just what the plugin lists, and perhaps ids on their way out."""

        def shown() -> bool:
            known = self.node.kubelet.devices.table.devices.get(FAN, {})
            return self.node.kubelet.devices.socket_of(FAN) is not None and all(
                known.get(device.id) == device for device in self.listed
            )

        try:
            async with asyncio.timeout(30):
                while not shown():
                    await self.node.clock.advance(0.2)
                    await asyncio.sleep(0.001)
        except TimeoutError:
            known = self.node.kubelet.devices.table.devices.get(FAN)
            connected = self.node.kubelet.devices.socket_of(FAN)
            raise AssertionError(
                f"the kubelet shows {known}, not {self.listed}; connected to {connected}; way {self.way}"
            ) from None

    @rule(devices=device_lists)
    def list_devices(self, devices: list[Device]) -> None:
        self.listed = devices
        self.fans.show(*devices)
        if self.group is not None:
            self.run(self._shown())

    @rule(target=pods, count=st.integers(1, 3))
    def run_pod(self, count: int) -> PodRecord:
        return self.run(self._run_pod(count))

    async def _run_pod(self, count: int) -> PodRecord:
        pod = asyncio.create_task(self.node.run_pod({FAN: count}, restartPolicy="Never"))
        try:
            record = None
            async with asyncio.timeout(30):
                while record is None or record.status.phase == Phase.PENDING:
                    await asyncio.sleep(0.001)
                    record = list(self.node.kubelet.records.values())[-1]
            return record
        finally:
            pod.cancel()
            await asyncio.gather(pod, return_exceptions=True)

    @rule(record=consumes(pods))
    def delete_pod(self, record: PodRecord) -> None:
        self.run(self.node.delete_pod(record))

    @rule()
    def restart_kubelet(self) -> None:
        self.run(self._restart_kubelet())

    async def _restart_kubelet(self) -> None:
        await self.node.kubelet.restart()
        if self.group is not None:
            await self._shown()

    @rule(how=st.sampled_from(["keep", "withdraw", "kill"]), way=st.sampled_from(list(Registration)))
    def stop_or_start_plugin(self, how: str, way: Registration) -> None:
        if self.group is None:
            self.way = way
            self.run(self._start_plugin())
            return
        if how == "kill":
            self.run(self.node.kill(self.group))
        else:
            for endpoint in self.group._endpoints:
                endpoint.stop(OnStop(how))
            self.run(self.node.stop(self.group))
        self.group = None

    @rule(seconds=st.sampled_from([1, 11, 61, 301]))
    def let_time_pass(self, seconds: int) -> None:
        self.run(self._pass(seconds))

    async def _pass(self, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            await self.node.clock.advance(min(seconds, 10))
            await asyncio.sleep(0.002)

    @rule(refusal=st.sampled_from(["", "out of order"]))
    def podresources_answers_or_not(self, refusal: str) -> None:
        self.node.kubelet.faults.podresources_refusal = refusal

    @invariant()
    def no_device_is_held_by_two_pods(self) -> None:
        kubelet = self.node.kubelet
        active = [uid for uid, record in kubelet.records.items() if not record.finished]
        held = [
            (e.pod_uid, id)
            for e in kubelet.devices.table.held.values()
            if e.pod_uid in active
            for id in e.ids
        ]
        assert len({id for _, id in held}) == len({(uid, id) for uid, id in held}), held

    @invariant()
    def no_held_id_was_dropped(self) -> None:
        assert not Strict.lost

    @invariant()
    def no_kubelet_panics(self) -> None:
        assert not self.node.kubelet.panics

    def teardown(self) -> None:
        self.run(self._close())
        self.runner.close()

    async def _close(self) -> None:
        self.node.kubelet.faults.podresources_refusal = ""
        if self.group is None:
            await self._start_plugin()
        await self.node.kubelet.restart()
        await self._shown()
        assert self.group is not None
        await self.node.stop(self.group)
        sockets = [*self.node.paths.root.rglob("colocate-*.sock")]
        await self._context.__aexit__(None, None, None)
        assert not sockets
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "no task to be left")


LifeOfAPlugin.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLifeOfAPlugin = LifeOfAPlugin.TestCase
