"""What goes wrong around the memory part: each fault with what goes on, what waits, and what is said."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.errors import UserError
from colocate.host.memory_group import MemoryGroup
from colocate.host.memory_limits import GroupLimits, set_limits
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import NODES
from colocate.lab.cluster import MACHINE
from colocate.memory.actions import ActionResult, Evict, MovePages, SetLimit
from colocate.memory.agent.machine import Machine, MachineReading
from colocate.model.memory import NodeMemory, NumaMemory
from colocate.model.pod import Phase
from tests.memory_agent.driving import BLOCK, MIB, SETTINGS, Driven, driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import MemoryLab, memory_lab
from tests.memory_agent.small_machine import SmallMachine
from tests.support.waiting import until


async def with_batch(node: Driven, blocks: int = 8) -> Eater:
    await node.listed(await node.turn())
    batch = await Eater(node.lab, "batch", blocks).ready()
    await node.until_known("batch")
    await node.turn()
    return batch


def loosen(group: MemoryGroup) -> None:
    """As a systemd reload does."""
    set_limits(group, GroupLimits())


async def test_while_the_api_server_is_away_limits_and_withdrawal_go_on_and_evictions_wait() -> None:
    async with driven() as node:
        lab = node.lab
        batch = await with_batch(node)
        server = lab.cluster.server
        port = int(server.url.rpartition(":")[2])
        await batch.anon(100 * MIB)
        await server.stop()
        await until(lambda: not node.cluster.answers, "the silence to be noticed")
        loosen(lab.group("batch"))
        await node.turn()
        assert lab.limit("batch") == 8 * BLOCK, "limits are asserted without the API"

        node.small.system += 200 * MIB
        actions = await node.turns(60)  # ten minutes
        last = await node.turn()
        await node.listed(last)
        assert last.offered == 0, "blocks are withdrawn without the API"
        assert not any(isinstance(action, Evict) for action in actions)
        report = node.part.report
        assert any("the API server does not answer" in why for why in report.silent)
        assert any("as soon as the API server answers" in said for said in report.sentences)
        assert lab.phase("batch") == Phase.RUNNING
        assert last.state.holders == {batch.uid: tuple(f"CM-{n:04d}" for n in range(8))}

        await server.start("127.0.0.1", port)
        await node.until_the_api_answers()
        assert any(isinstance(action, Evict) for action in await node.turns(1))
        await lab.until_gone("batch")


async def test_after_a_restart_of_the_kubelet_ids_holders_and_limits_are_the_same() -> None:
    async with driven() as node:
        lab = node.lab
        batch = await with_batch(node)
        listed, held = lab.healthy(), lab.held()
        await lab.cluster.kubelet.restart()
        await until(lambda: lab.healthy() == listed, "the same list")
        decision = await node.turn()
        assert lab.held() == held
        assert decision.state.holders[batch.uid] == tuple(sorted(held[batch.uid]))
        assert lab.limit("batch") == 8 * BLOCK


async def test_where_podresources_refuses_the_checkpoint_says_who_holds_what() -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        lab.cluster.kubelet.faults.podresources_refusal = "rate limit exceeded"
        batch = await Eater(lab, "batch", 8).ready()
        assert "limit 134217728" in lab.said("batch"), "it was limited before it started"
        await node.until_known("batch")
        decision = await node.turn()
        assert set(decision.state.holders) == {batch.uid}
        assert any("rate limit exceeded" in why for why in node.part.report.silent)
        await lab.delete_pod("batch")
        await until(lambda: not node.cluster.pods, "the watch to know")
        decision = await node.turn()
        assert decision.state.holders == {}, "the entry that lingers in the checkpoint is of no pod"


@pytest.mark.parametrize("damage", ["spoilt", "removed"])
async def test_where_holders_are_unknown_the_last_known_count_and_no_block_is_added(
    damage: str,
) -> None:
    async with driven() as node:
        lab = node.lab
        batch = await with_batch(node)
        before = await node.turn()
        lab.cluster.kubelet.faults.podresources_refusal = "rate limit exceeded"
        paths = lab.cluster.kubelet.paths
        if damage == "spoilt":
            paths.checkpoint.write_bytes(b"not a checkpoint")
        else:
            paths.checkpoint.unlink()
        node.small.system -= 200 * MIB
        for _ in range(10):
            decision = await node.turn()
        assert set(decision.state.holders) == {batch.uid}
        assert decision.offered == before.offered
        assert any("neither podresources nor the checkpoint" in why for why in node.part.report.silent)


@pytest.mark.parametrize(
    ("changed", "what"), [({"resource": "other.dev/memory"}, "name"), ({"block_size": 2 * BLOCK}, "size")]
)
@pytest.mark.parametrize("silent", [False, True], ids=["the kubelet answers", "no source answers"])
async def test_blocks_that_are_held_get_no_new_name_or_size_by_a_restart(
    changed: dict[str, Any], what: str, silent: bool
) -> None:
    async with memory_lab() as lab:
        async with Driven(lab).running() as node:
            await with_batch(node)
        faults, checkpoint = lab.cluster.kubelet.faults, lab.cluster.kubelet.paths.checkpoint
        written = checkpoint.read_bytes()
        if silent:
            faults.podresources_refusal = "rate limit exceeded"
            checkpoint.write_bytes(b"not a checkpoint")
        async with Driven(lab, msgspec.structs.replace(SETTINGS, **changed)).running() as node:
            await node.until_known("batch")
            with pytest.raises(UserError, match=rf"the {what} of blocks cannot become .* hold 8 blocks"):
                await node.turn()
            faults.podresources_refusal = ""
            checkpoint.write_bytes(written)
            await lab.delete_pod("batch")
            await until(lambda: not node.cluster.pods, "the watch to know")
            assert (await node.turn()).state.blocks.resource == node.part.settings.resource


async def test_a_control_group_that_vanishes_between_looking_and_acting_is_a_pod_that_ended() -> None:
    async with driven() as node:
        lab = node.lab
        await with_batch(node)
        loosen(lab.group("batch"))
        machine = node.part._machine
        read = machine.read

        async def and_then_it_ends() -> MachineReading:
            reading = await read()
            await lab.delete_pod("batch")
            return reading

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "read", and_then_it_ends)
            decision = await node.part.turn()
        assert [type(action) for action in decision.plan.actions] == [SetLimit]
        assert [outcome.result for outcome in node.part.executor.take_outcomes()] == [ActionResult.GONE]
        assert (await node.turn()).state.holders == {}


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
async def test_a_jump_of_the_wall_clock_changes_nothing(jump: float) -> None:
    async with driven() as node:
        await with_batch(node)
        before = await node.turn()
        node.clock.jump(jump)
        after = await node.turn()
        assert after.offered == before.offered
        assert not after.plan.actions
        assert after.state.clock - before.state.clock == 10


async def test_a_machine_that_slept_has_not_used_up_any_deadline() -> None:
    async with driven() as node:
        batch = await with_batch(node)
        await batch.anon(100 * MIB)
        node.small.system += 150 * MIB
        first = await node.turn()
        assert first.balance.due > 0
        after = await node.turn(seconds=12 * 3600)
        assert after.state.clock - first.state.clock == SETTINGS.longest_gap


class FarMachine(Machine):
    """This machine, with a far NUMA node that it says it has: number 7, which the kernel does not know."""

    def __init__(self, small: SmallMachine, below: Path) -> None:
        self.small = small
        self.far_free = 512 * MIB
        super().__init__(below, read_node=self._node)

    def _node(self) -> NodeMemory:
        node = self.small.read()
        near = NumaMemory(id=0, total=node.total, free=node.free, inactive_file=node.inactive_file)
        far = NumaMemory(id=7, total=512 * MIB, free=self.far_free, has_cpus=False)
        total = node.total + far.total
        return msgspec.structs.replace(
            node,
            total=total,
            free=node.free + far.free,
            available=node.available + far.free,
            numa=(near, far),
        )

    def _controls(self) -> Any:
        return msgspec.structs.replace(super()._controls(), migrate=True)


@pytest.mark.parametrize("case", ["detached", "full"])
async def test_a_far_node_that_is_detached_or_full_is_passed_over_for_the_next_rung(case: str) -> None:
    async with memory_lab() as lab:
        small = SmallMachine(lab.runtime.cgroup_root)
        machine = FarMachine(small, lab.runtime.cgroup_root)
        async with Driven(lab, machine=machine).running() as node:
            batch = await with_batch(node)
            await batch.anon(110 * MIB)
            if case == "full":
                machine.far_free = 10 * MIB
            small.system += 150 * MIB
            actions = await node.turns(8)
            moves = [action for action in actions if isinstance(action, MovePages)]
            assert bool(moves) == (case == "detached")
            assert any(isinstance(action, Evict) for action in actions)
            if case == "detached":
                said = " ".join(reason for _, reason in lab.events("batch"))
                await until(
                    lambda: "NUMA node does not exist" in " ".join(m for _, m in lab.events("batch")), said
                )


async def test_read_only_control_groups_start_no_pod_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & os.O_WRONLY and isinstance(path, Path) and path.name.startswith("memory."):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **others)

    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        monkeypatch.setattr("colocate.host.memory_group.os.open", refuse)
        lab.create_pod("batch", 2)
        await until(
            lambda: any("mounted read-only" in message for _, message in lab.events("batch")), "the reason"
        )
        assert lab.phase("batch") == Phase.PENDING


@asynccontextmanager
async def without_the_api(lab: MemoryLab, clock: ManualClock) -> AsyncIterator[Driven]:
    """A part that starts while the API server is away."""
    await lab.cluster.server.stop()
    again = Driven(lab, clock=clock)
    async with again.following():
        await until(lambda: "has not answered" not in again.cluster.trouble, "a refused connection")
        yield again


async def test_an_agent_that_starts_while_the_api_server_is_away_holds_pods_as_it_knew_them() -> None:
    async with memory_lab() as lab:
        async with Driven(lab).running() as before:
            batch = await with_batch(before)
        loosen(lab.group("batch"))
        async with without_the_api(lab, before.clock) as again:
            decision = await again.part.turn()
            assert decision.state.holders[batch.uid] == tuple(f"CM-{n:04d}" for n in range(8))
            assert lab.limit("batch") == 8 * BLOCK
            assert not again.cluster.answers


@pytest.mark.parametrize("cordoned", [True, False])
async def test_an_agent_that_starts_while_the_api_server_is_away_takes_the_node_as_it_knew_it(
    cordoned: bool,
) -> None:
    async with memory_lab() as lab:

        def cordon(body: Object) -> None:
            body.setdefault("spec", {})["unschedulable"] = cordoned

        lab.cluster.registry.modify(NODES, "", MACHINE, cordon)
        async with Driven(lab).running() as before:
            offered = (await before.turn()).offered
            assert bool(offered) is not cordoned
        async with without_the_api(lab, before.clock) as again:
            assert (await again.part.turn()).offered == offered
            said = again.part.report.sentences[0]
            assert "has not answered since the agent started" in said
            assert f"then the node was {'cordoned' if cordoned else 'not cordoned'}" in said
