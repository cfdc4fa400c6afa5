"""An extended resource is taken off a node of the embedded cluster for good, on a clock that the test owns."""

import pytest
from tests.resources.lab_resources import Deed, ResourceLab, dead_plugin
from tests.support.plugins import FAN, Fans

from colocate.cluster.json_patch import Remove, Test
from colocate.devices.extended_resources import ResourceState
from colocate.devices.resources.refusal import RemovalRefused
from colocate.devices.resources.removal import PATIENCE, NotRemoved
from colocate.devices.resources.steps import Patching, PutBack, Step, Trouble, WaitingStep
from colocate.errors import UserError
from colocate.kubelet import Device
from colocate.lab.api import deletion
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import NODES
from colocate.lab.cluster import MACHINE
from colocate.model.device import Health

# The story


async def test_the_resource_of_a_killed_plugin_is_shown_as_stale_and_counts_down(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    first = (await lab.look()).find(FAN)
    assert first is not None
    assert (first.state, first.certain) == (ResourceState.STALE, False)
    assert first.remaining == pytest.approx(300, abs=1)
    await lab.clock.advance(100)
    later = (await lab.look()).find(FAN)
    assert later is not None
    assert later.remaining == pytest.approx(200, abs=1)
    await lab.clock.advance(210)
    ended = (await lab.look()).find(FAN)
    assert ended is not None
    assert (ended.state, ended.capacity) == (ResourceState.REMOVABLE, 0)


async def test_it_is_removed_once_the_kubelet_lets_go_and_stays_away(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    begun = lab.clock.monotonic()
    steps = await lab.remove(FAN)
    assert 290 <= lab.clock.monotonic() - begun <= 340
    assert lab.told() == ["WaitingStep", "Patching", "Watching"]
    lefts = [step.resource.remaining or 0.0 for step in steps if isinstance(step, WaitingStep)]
    assert lefts == sorted(lefts, reverse=True), "it counts down"
    (patching,) = (step for step in steps if isinstance(step, Patching))
    path = "/status/capacity/example.com~1fan"
    assert patching == Patching((Test(path, "0"), Remove(path)), early=False)
    await lab.clock.advance(700)
    assert lab.capacity(FAN) == (None, None)


async def test_done_too_early_the_kubelet_puts_it_back_and_that_is_said(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    with pytest.raises(
        NotRemoved, match=r"put example.com/fan on node this-machine back, at 2.*without --now"
    ):
        await lab.remove(FAN, now=True)
    assert lab.told() == ["Patching", "Watching", "PutBack"]
    first = lab.steps[0]
    assert isinstance(first, Patching)
    assert first.early
    assert lab.capacity(FAN) == ("2", "0")


async def test_a_hand_patched_one_is_removed_at_once(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()
    found = (await lab.look()).find(FAN)
    assert found is not None
    assert (found.state, found.allocatable) == (ResourceState.HAND_PATCHED, 7)
    begun = lab.clock.monotonic()
    await lab.remove(FAN)
    assert lab.clock.monotonic() - begun <= 20
    assert lab.capacity(FAN) == (None, None)


async def test_a_key_that_another_has_patched_away_is_only_watched(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()
    lab.patch_by_hand(FAN, None)
    await lab.remove(FAN)
    assert lab.told() == ["Watching"]


# What it refuses


async def test_pods_that_hold_it_are_named(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    lab.pod("train", FAN, 2)
    lab.pod("serve", FAN, 1)
    with pytest.raises(
        RemovalRefused, match=r"held by default/serve \(1\), default/train \(2\) and stays until"
    ):
        await lab.remove(FAN, now=True)
    assert lab.capacity(FAN)[0] == "7"


async def test_a_plugin_that_is_alive_is_told(lab: ResourceLab) -> None:
    await lab.node.serve(Fans("fan-0"))
    await lab.node.devices(FAN, 1)
    await lab.sync()
    with pytest.raises(RemovalRefused, match=r"a running plugin .* stop the plugin"):
        await lab.remove(FAN, now=True)


async def test_a_plugin_that_comes_back_while_it_waits_is_told(lab: ResourceLab) -> None:
    await dead_plugin(lab)

    async def start() -> None:
        await lab.node.serve(Fans("fan-0"))
        await lab.node.devices(FAN, 1)

    lab.pacer.at(60, start)
    with pytest.raises(RemovalRefused, match="a running plugin"):
        await lab.remove(FAN)
    assert lab.told() == ["WaitingStep"]


async def test_a_plugin_without_a_healthy_device_is_found_out_by_waiting(lab: ResourceLab) -> None:
    await lab.node.serve(Fans(Device("fan-0", Health.UNHEALTHY)))
    await lab.node.kubelet.until(lambda: FAN in lab.cluster.kubelet.devices.table.devices, "the list")
    await lab.sync()
    begun = lab.clock.monotonic()
    with pytest.raises(RemovalRefused, match="a plugin without healthy devices is running"):
        await lab.remove(FAN)
    assert lab.clock.monotonic() - begun == pytest.approx(PATIENCE, abs=15)
    assert lab.capacity(FAN) == ("1", "0")


async def test_a_plugin_without_devices_is_found_out_by_what_is_put_back(lab: ResourceLab) -> None:
    plugin = Fans()
    await lab.node.serve(plugin)
    plugin.show()
    await lab.node.kubelet.until(lambda: FAN in lab.cluster.kubelet.devices.table.devices, "the plugin")
    await lab.sync()
    assert lab.capacity(FAN) == ("0", "0")
    with pytest.raises(
        NotRemoved, match="back twice, five minutes apart: a plugin without devices is running"
    ):
        await lab.remove(FAN)


@pytest.mark.parametrize("name", [FAN, "cpu", "no such thing"])
async def test_what_is_not_there_is_the_users_mistake(lab: ResourceLab, name: str) -> None:
    with pytest.raises(UserError, match=r"node this-machine has no extended resource .* shows what it has"):
        await lab.remove(name)
    with pytest.raises(UserError, match="there is no node 'nowhere'"):
        await lab.remove(name, node="nowhere")


async def test_of_a_silent_kubelet_nothing_is_removed_unless_it_is_insisted_on(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()
    await lab.cluster.kubelet.stop()

    def lost(body: Object) -> None:
        for one in body["status"]["conditions"]:
            one["status"] = "Unknown"

    lab.cluster.registry.force(NODES, lab.cluster.registry.get(NODES, "", MACHINE), lost)
    try:
        with pytest.raises(RemovalRefused, match="the kubelet of node this-machine is silent"):
            await lab.remove(FAN)
        with pytest.raises(NotRemoved, match=r"out of the capacity .* has not synced within"):
            await lab.remove(FAN, now=True)
        assert lab.capacity(FAN) == (None, "7")
    finally:
        await lab.cluster.kubelet.start()


# What happens meanwhile


async def test_a_kubelet_that_restarts_begins_the_grace_anew_and_it_is_waited_for(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    await lab.clock.advance(200)
    await lab.cluster.kubelet.restart()
    await lab.sync()
    assert lab.capacity(FAN) == ("0", "0"), "as if the kubelet had let go"
    steps = await lab.remove(FAN)
    assert lab.told() == ["Patching", "Watching", "PutBack", "WaitingStep", "Patching", "Watching"]
    assert any(isinstance(step, PutBack) for step in steps)
    await lab.clock.advance(700)
    assert lab.capacity(FAN) == (None, None)


async def test_on_the_node_itself_its_checkpoint_tells_that_it_would_be_put_back(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    await lab.cluster.kubelet.restart()
    await lab.sync()
    found = (await lab.look(on_node=True)).find(FAN)
    assert found is not None
    assert found.state is ResourceState.STALE
    await lab.remove(FAN, on_node=True)
    assert lab.told() == ["WaitingStep", "Patching", "Watching"]
    assert lab.capacity(FAN) == (None, None)


async def test_an_api_server_that_is_away_for_a_while_is_asked_again(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    server = lab.cluster.server
    port = int(server.url.rpartition(":")[2])

    async def start() -> None:
        await server.start("127.0.0.1", port)

    lab.pacer.at(100, server.stop)
    lab.pacer.at(130, start)
    steps = await lab.remove(FAN)
    assert any(isinstance(step, Trouble) for step in steps)
    assert lab.told()[-3:] == ["WaitingStep", "Patching", "Watching"]
    assert lab.capacity(FAN) == (None, None)


async def test_a_number_that_somebody_else_changes_at_the_last_moment_is_looked_at_again(
    lab: ResourceLab,
) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()

    async with lab.client() as client:

        def report(step: Step) -> None:
            lab.steps.append(step)
            if isinstance(step, Patching) and len(lab.steps) == 1:
                lab.patch_by_hand(FAN, "8")

        await lab.removal(client, FAN, report=report).run()
    assert lab.told() == ["Patching", "Changed", "Patching", "Watching"]
    assert lab.capacity(FAN) == (None, None)


async def test_one_that_is_written_again_by_hand_is_not_fought_over(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()

    async def again() -> None:
        lab.patch_by_hand(FAN, "7")

    lab.pacer.at(4, again)
    with pytest.raises(NotRemoved, match=r"was written again \(kubectl-patch"):
        await lab.remove(FAN)
    assert lab.capacity(FAN)[0] == "7"


async def test_a_timeout_says_what_was_done_by_then(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    with pytest.raises(NotRemoved, match=r"within 60 s: nothing was changed"):
        await lab.remove(FAN, timeout=60)
    assert lab.capacity(FAN) == ("2", "0")
    await lab.clock.advance(300)
    with pytest.raises(NotRemoved, match=r"it was removed \(it is not known whether it stays away\)"):
        await lab.remove(FAN, timeout=5)


@pytest.mark.parametrize("verb", ["get", "list"])
async def test_a_look_in_flight_is_cut_at_the_deadline_and_nothing_is_written_after_it(
    lab: ResourceLab, verb: str
) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()
    begun = lab.clock.monotonic()
    async with lab.slow_client(verb, after=120) as client:
        with pytest.raises(NotRemoved, match=r"60 s: nothing was changed \(the API server has not answered"):
            await lab.removal(client, FAN, timeout=60).run()
    assert lab.clock.monotonic() - begun == 60
    assert lab.capacity(FAN)[0] == "7"
    assert lab.steps == []


@pytest.mark.parametrize("verb", ["get", "list", "patch"])
async def test_the_plan_is_within_the_time_too(lab: ResourceLab, verb: str) -> None:
    lab.patch_by_hand(FAN, "7")
    begun = lab.clock.monotonic()
    async with lab.slow_client(verb, before=120) as client:
        with pytest.raises(NotRemoved, match=r"within 60 s: nothing was changed"):
            await lab.removal(client, FAN, timeout=60).plan()
    assert lab.clock.monotonic() - begun == 60


async def test_what_the_plan_has_spent_is_not_there_for_the_rest(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    begun = lab.clock.monotonic()
    async with lab.slow_client("get", after=7) as client:
        planned = lab.removal(client, FAN)
        await planned.plan()
        assert planned.spent == 7
        with pytest.raises(NotRemoved, match="within 60 s"):
            await lab.removal(client, FAN, spent=planned.spent, timeout=60).run()
    assert lab.clock.monotonic() - begun == 60


@pytest.mark.parametrize(("slow", "left"), [({"before": 120.0}, "7"), ({"after": 120.0}, None)])
async def test_a_patch_in_flight_at_the_deadline_is_one_of_which_nothing_is_known(
    lab: ResourceLab, slow: dict[str, float], left: str | None
) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()
    async with lab.slow_client("patch", **slow) as client:
        with pytest.raises(NotRemoved, match="was asked to remove it, but has not answered"):
            await lab.removal(client, FAN, timeout=60).run()
    assert lab.capacity(FAN)[0] == left


async def test_a_process_that_was_held_up_beyond_its_time_writes_nothing(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    await lab.sync()

    def report(step: Step) -> None:
        lab.pacer.held_up = 1000.0

    async with lab.client() as client:
        with pytest.raises(NotRemoved, match="nothing was changed"):
            await lab.removal(client, FAN, report=report).run()
    assert lab.capacity(FAN)[0] == "7"


async def test_a_timeout_after_it_was_put_back_says_so(lab: ResourceLab) -> None:
    await dead_plugin(lab)
    await lab.clock.advance(200)
    await lab.cluster.kubelet.restart()
    await lab.sync()
    with pytest.raises(
        NotRemoved, match=r"it was removed, but put back \(the kubelet has not forgotten it\)"
    ):
        await lab.remove(FAN, timeout=100)
    assert lab.capacity(FAN) == ("0", "0")


async def test_a_node_that_is_deleted_meanwhile_is_told_with_what_was_done(lab: ResourceLab) -> None:
    def delete(node: str) -> Deed:
        async def deed() -> None:
            deletion.delete(lab.cluster.registry, NODES, "", node)

        return deed

    await dead_plugin(lab)
    lab.patch_by_hand(FAN, "7", "other")
    lab.pacer.at(3, delete("other"))
    with pytest.raises(
        NotRemoved,
        match=r"node other was deleted in the meantime: it was removed \(it is not known whether it stays",
    ):
        await lab.remove(FAN, node="other", now=True)
    lab.pacer.at(3, delete(MACHINE))
    with pytest.raises(
        NotRemoved, match="node this-machine was deleted in the meantime: nothing was changed"
    ):
        await lab.remove(FAN)


async def test_what_another_removes_while_it_waits_is_watched_and_gone(lab: ResourceLab) -> None:
    await dead_plugin(lab)

    async def remove() -> None:
        await lab.clock.advance(310)
        lab.patch_by_hand(FAN, None)
        await lab.sync()
        assert lab.capacity(FAN) == (None, None)

    lab.pacer.at(9, remove)
    await lab.remove(FAN)
    assert lab.told() == ["WaitingStep", "Watching"]
    assert lab.capacity(FAN) == (None, None)


@pytest.mark.parametrize("moment", [10, 150, 285, 299, 301, 303, 310, 318])
async def test_whenever_the_kubelet_restarts_meanwhile_it_is_gone_for_good_in_the_end(
    lab: ResourceLab, moment: int
) -> None:
    await dead_plugin(lab)
    lab.pacer.at(moment, lab.cluster.kubelet.restart)
    await lab.remove(FAN)
    assert lab.told()[-2:] == ["Patching", "Watching"]
    await lab.clock.advance(700)
    assert lab.capacity(FAN) == (None, None)


async def test_a_plan_changes_nothing(lab: ResourceLab) -> None:
    lab.patch_by_hand(FAN, "7")
    async with lab.client() as client:
        found, patch = await lab.removal(client, FAN).plan()
    assert found.state is ResourceState.HAND_PATCHED
    assert len(patch) == 2
    assert lab.capacity(FAN)[0] == "7"
    assert lab.steps == []
