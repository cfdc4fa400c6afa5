"""The example plugins do what they show, against the embedded kubelet."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from examples.plugins import cdi, health, numa
from examples.ten_lines import Fans as TenLines
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plugins import ids

from colocate.kubelet import Health
from colocate.lab.topology_policy import TopologyPolicy
from colocate.testing import TestNode, embedded_kubelet

REPO = Path(__file__).parents[2]
INTERVAL = 5.0
FAN, CARD, DISK = "example.com/fan", "example.com/card", "example.com/disk"


async def test_ten_lines_can_be_imported_and_serves_a_pod(node: TestNode) -> None:
    await node.serve(TenLines())
    await node.devices(FAN, 2)
    assert node.env(await node.run_pod({FAN: 2})) == {"FANS": "fan-0,fan-1"}


# --- health from a background task


@pytest.fixture
def fans(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / f"fan-{number}").write_text("ok\n")
    return tmp_path


async def until_health(node: TestNode, **expected: Health) -> None:
    """Let time pass until the next look has found this."""
    wanted = {id.replace("_", "-"): health for id, health in expected.items()}
    while ids(node) != wanted:
        await node.clock.advance(INTERVAL)
        await asyncio.to_thread(lambda: None)  # The look itself is in a thread.


async def test_health_follows_what_the_background_task_finds(node: TestNode, fans: Path) -> None:
    plugin = health.Fans(fans, interval=INTERVAL)
    group = await node.serve(plugin)
    await node.devices(FAN, 3)
    assert plugin.clock is node.clock
    pod = await node.run_pod({FAN: 1})

    (fans / "fan-1").write_text("stuck\n")
    (fans / "fan-2").unlink()
    (fans / "fan-2").mkdir()  # cannot be read
    broken = {"fan_1": Health.UNHEALTHY, "fan_2": Health.UNHEALTHY}
    await until_health(node, fan_0=Health.HEALTHY, **broken)
    (fans / "fan-2").rmdir()
    (fans / "fan-2").write_text("ok")
    await until_health(node, fan_0=Health.HEALTHY, fan_1=Health.UNHEALTHY, fan_2=Health.HEALTHY)

    fans.rename(fans.with_name("away"))  # nothing can be seen any more
    await until_health(node, fan_0=Health.UNHEALTHY, fan_1=Health.UNHEALTHY, fan_2=Health.UNHEALTHY)
    fans.with_name("away").rename(fans)
    await until_health(node, fan_0=Health.HEALTHY, fan_1=Health.UNHEALTHY, fan_2=Health.HEALTHY)
    assert node.held(pod) == {"fan-0"}
    await node.stop(group)  # the fixture fails where the background task is left


async def test_a_folder_that_comes_late_is_waited_for(node: TestNode, fans: Path) -> None:
    plugin = health.Fans(fans / "later", interval=INTERVAL)
    await node.serve(plugin)
    await node.clock.until_someone_sleeps()
    (fans / "later").mkdir()
    (fans / "later" / "fan-9").write_text("ok")
    while not ids(node):
        await node.clock.advance(1)
    await until_health(node, fan_9=Health.HEALTHY)


# --- NUMA and preferred allocation


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    for number, (vendor, node) in enumerate([("0x1", 0), ("0x1", 1), ("0x1", 0), ("0x1", 1), ("0x2", 0)]):
        card = tmp_path / f"0000:{number:02}:00.0"
        card.mkdir()
        (card / "vendor").write_text(f"{vendor}\n")
        (card / "numa_node").write_text(f"{node}\n")
    return tmp_path


async def test_cards_of_one_node_go_together(cards: Path) -> None:
    async with embedded_kubelet(policy=TopologyPolicy.BEST_EFFORT) as node:
        await node.serve(numa.Cards("0x1", cards))
        await node.devices(CARD, 4)
        first = await node.run_pod({CARD: 2})
        second = await node.run_pod({CARD: 2})
        pairs = [{"0000:00:00.0", "0000:02:00.0"}, {"0000:01:00.0", "0000:03:00.0"}]
        assert sorted([node.held(first), node.held(second)], key=min) == pairs


async def test_without_a_topology_policy_the_plugins_preference_is_followed(
    node: TestNode, cards: Path
) -> None:
    await node.serve(numa.Cards("0x1", cards))
    await node.devices(CARD, 4)
    one = await node.run_pod({CARD: 1})
    two = await node.run_pod({CARD: 2})
    assert not {int(id[6]) % 2 for id in node.held(one)} & {int(id[6]) % 2 for id in node.held(two)}


def test_a_card_near_no_node_says_none(tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "vendor").write_text("0x1\n")
    (tmp_path / "card" / "numa_node").write_text("-1\n")
    plugin = numa.Cards("0x1", tmp_path)
    plugin.open()
    assert [device.numa for device in plugin.devices()] == [()]


@pytest.mark.parametrize(
    ("must", "size", "nodes"),
    [
        ([], 1, [1]),  # the smallest node that has enough
        ([], 2, [0, 0]),
        ([], 4, [1, 2, 2, 2]),  # none has enough: first the largest, then again the smallest that has enough
        (["c0"], 2, [2, 2]),  # a node that is begun is gone on with
        (["b0"], 3, [0, 0, 1]),
    ],
)
def test_which_nodes_a_preference_takes(must: list[str], size: int, nodes: list[int]) -> None:
    plugin = numa.Cards("0x1")
    plugin._nodes = {"a0": 0, "a1": 0, "b0": 1, "c0": 2, "c1": 2, "c2": 2}
    assert sorted(plugin._nodes[id] for id in plugin.prefer([*plugin._nodes], must, size)) == nodes


@given(st.lists(st.integers(-1, 3), max_size=12), st.data())
def test_a_preference_has_the_size_and_what_it_must_include(nodes: list[int], data: st.DataObject) -> None:
    plugin = numa.Cards("0x1")
    plugin._nodes = {f"card-{index}": node for index, node in enumerate(nodes)}
    available = data.draw(st.lists(st.sampled_from([*plugin._nodes]), unique=True) if nodes else st.just([]))
    must = data.draw(st.lists(st.sampled_from(available), unique=True) if available else st.just([]))
    size = data.draw(st.integers(len(must), len(available)))

    chosen = plugin.prefer(available, must, size)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    if not must:
        counts = [sum(plugin._nodes[id] == node for id in available) for node in set(nodes)]
        if size and max(counts, default=0) >= size:
            assert len({plugin._nodes[id] for id in chosen}) == 1


# --- CDI


async def test_a_pod_gets_names_that_the_file_explains(node: TestNode, tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    group = await node.serve(cdi.Disks(folder))
    await node.devices(DISK, 2)
    pod = await node.run_pod({DISK: 2})
    (answer,) = node.kubelet.devices.injected(pod.pod, pod.pod.containers[0])
    names = {device.name for device in answer.cdi_devices}
    assert names == {"example.com/disk=disk-0", "example.com/disk=disk-1"}
    await node.stop(group)

    (file,) = folder.iterdir()
    written = json.loads(file.read_text())
    assert {f"{written['kind']}={device['name']}" for device in written["devices"]} == names
    nodes = [one for device in written["devices"] for one in device["containerEdits"]["deviceNodes"]]
    assert [one["path"] for one in nodes] == ["/dev/loop0", "/dev/loop1"]


# --- as programs


@pytest.mark.parametrize("example", ["health", "cdi"])
async def test_an_example_runs_as_its_first_lines_say(node: TestNode, fans: Path, example: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(REPO / "examples" / "plugins" / f"{example}.py"), str(fans)],
        env={**os.environ, "COLOCATE_KUBELET_ROOT": str(node.paths.root)},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await node.devices(*{"health": (FAN, 3), "cdi": (DISK, 2)}[example])
    finally:
        process.terminate()
        assert await process.wait() == 0
