"""The bound on devices that every plugin of an agent is checked by."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colocate.agent.configuration import build
from colocate.agent.device_bound import DeviceBound
from colocate.agent.process import Agent
from colocate.agent.schema import Config
from colocate.clock import SystemClock
from colocate.errors import Unavailable, UserError
from colocate.gpus import COLOCATE, DOSLAB
from colocate.model.device_cost import NodeKubelet
from colocate.model.gpu import Gpu, GpuInventory

MEMORY = "memory: {enabled: true, resource: example.com/block, blockSize: 1Mi, node: n}"


def read(*lines: str, root: Path = Path("/nowhere")) -> Config:
    text = "\n".join(("version: 1", f"kubelet: {{root: {root}}}", *lines))
    return build(text.encode(), "agent.yaml").config


def mocks(count: int) -> str:
    return f"mock: {{resources: [{{name: mock/many, count: {count}}}]}}"


class Node:
    """A node whose status says this of its kubelet."""

    def __init__(self, version: tuple[int, int] | None, heartbeat: float = 0.0) -> None:
        self.said: NodeKubelet | None = NodeKubelet(version, heartbeat)
        self.asked = 0

    async def __call__(self) -> NodeKubelet | None:
        self.asked += 1
        return self.said


def bound(config: Config, node: Node | None) -> DeviceBound:
    made = DeviceBound(config)
    made.ask = node
    return made


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 TiB of memory."""
    sizes = {"SC_PHYS_PAGES": 1 << 28, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("colocate.agent.device_bound.os.sysconf", sizes.__getitem__)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder)


async def test_blocks_of_memory_alone_are_refused_from_1_36_on() -> None:
    with pytest.raises(UserError) as raised:
        await bound(read(MEMORY), Node((1, 36))).check()
    assert str(raised.value).startswith(
        "example.com/block in blocks of 1 MiB: 50000 devices, of which pods could hold 50000, would keep a kubelet "
        "from 1.36 on busy for up to 325 s at every restart"
    )
    assert str(raised.value).endswith("; set a larger memory.blockSize in the whole cluster")


async def test_an_older_kubelet_is_offered_them_with_a_warning() -> None:
    checked = bound(read(MEMORY), Node((1, 35)))
    await checked.check()
    assert checked.warning.startswith("before this node's kubelet becomes 1.36 or newer: example.com/block")


async def test_blocks_of_the_default_size_are_no_question() -> None:
    node = Node((1, 36))
    await bound(read("memory: {enabled: true, node: n}"), node).check()
    assert not node.asked


async def test_a_node_that_names_no_version_is_taken_for_a_new_one() -> None:
    with pytest.raises(UserError, match=r"from 1\.36 on"):
        await bound(read(mocks(20_000)), Node(None)).check()


async def test_an_agent_without_a_cluster_is_warned() -> None:
    checked = bound(read(mocks(20_000)), None)
    await checked.check()
    assert "lower the count of mock/many" in checked.warning


async def test_the_kubelet_counts_that_wrote_the_status_itself(short: Path) -> None:
    config = read(MEMORY, root=short)
    socket = config.kubelet.settings().paths.kubelet_socket
    socket.parent.mkdir(parents=True)
    socket.touch()
    node = Node((1, 35), time.time() - 60)
    checked = bound(config, node)
    with pytest.raises(Unavailable, match="has not written its version"):
        await checked.check()
    node.said = NodeKubelet((1, 35), time.time() + 1)
    await checked.check()
    node.said = None
    with pytest.raises(Unavailable, match="no such node"):
        await checked.check()


async def test_gpus_count_beside_the_rest_and_fewer_are_always_taken() -> None:
    node = Node((1, 35))
    checked = bound(read(mocks(9_000)), node)
    checked.dialects = (COLOCATE, DOSLAB)
    many = GpuInventory((Gpu(uuid="GPU-a", index=0, memory=16384), Gpu(uuid="GPU-b", index=1, memory=16384)))
    await checked.admit(many)
    assert (checked.cost.devices, checked.cost.held) == (9000 + 128 + 32768, 9000 + 32768)
    node.said = NodeKubelet((1, 36))
    with pytest.raises(UserError):
        await checked.check()
    await checked.admit(GpuInventory(many.gpus[:1]))
    with pytest.raises(UserError):
        await checked.admit(many)
    assert checked.cost.devices == 9000 + 64 + 16384


async def test_a_configuration_that_offers_too_much_changes_nothing() -> None:
    checked = bound(read(mocks(100)), Node((1, 36)))
    with pytest.raises(UserError, match="mock/many: 20000 devices"):
        await checked.judge(read(mocks(20_000)))
    assert checked.cost.devices == 100
    await checked.judge(read(mocks(200)))
    checked.take(read(mocks(200)))
    assert checked.cost.devices == 200


async def test_every_plugin_of_an_agent_is_checked_before_it_registers(short: Path) -> None:
    """Mock devices have no part of the agent that could check them."""
    config = read(
        mocks(20_000), "metrics: {address: off}", f"control: {{socket: {short}/agent.sock}}", root=short
    )
    agent = Agent(config, lambda: config, SystemClock())
    agent._bound.ask = Node((1, 36), time.time() + 3600)
    socket = config.kubelet.settings().paths.kubelet_socket
    socket.parent.mkdir(parents=True)
    socket.touch()
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(agent.run(), 30)
    assert raised.group_contains(UserError, match="lower the count of mock/many")
