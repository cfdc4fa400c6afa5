"""Events: one for equal messages, limited per object; recording neither waits nor fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from colocate.clock import ManualClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.events import EventRecorder, EventSettings, EventType, Reference, _short
from colocate.cluster.resources import EVENTS
from colocate.lab.api.server import ApiServer

from .serving import Scripted, connect

POD = Reference("Pod", "too-much", "default", "u1")
NODE = Reference("Node", "n1")


@pytest.fixture
def recorder(client: Client) -> EventRecorder:
    return EventRecorder(client, "colocate", "n1")


async def shown(client: Client) -> list[Any]:
    return await client.list(EVENTS)


async def test_an_event_has_the_shape_of_the_kubelets_own(
    client: Client, recorder: EventRecorder, recordings: Path
) -> None:
    recorded = json.loads((recordings / "api" / "events-admission-error.json").read_text())["items"][0]
    recorder.record(POD, "UnexpectedAdmissionError", "no", EventType.WARNING)
    await recorder.flush()
    event = (await shown(client))[0]
    ours = {key for key in event if key not in ("kind", "apiVersion")}
    assert ours == set(recorded)
    assert set(event["involvedObject"]) == set(recorded["involvedObject"]) - {"resourceVersion"}
    assert event["source"] == {"component": "colocate", "host": "n1"}
    assert (event["count"], event["type"], event["eventTime"]) == (1, "Warning", None)
    name, _, stamp = event["metadata"]["name"].partition(".")
    assert name == "too-much"
    assert len(stamp) == len(recorded["metadata"]["name"].partition(".")[2])
    assert event["firstTimestamp"] == "2023-11-14T22:13:20Z"


async def test_the_same_words_are_counted(
    client: Client, recorder: EventRecorder, clock: ManualClock
) -> None:
    for _ in range(3):
        recorder.record(POD, "Reclaimed", "2 blocks")
    await recorder.flush()
    await clock.advance(60)
    recorder.record(POD, "Reclaimed", "2 blocks")
    await recorder.flush()
    recorder.record(POD, "Reclaimed", "3 blocks")
    await recorder.flush()
    events = sorted(await shown(client), key=lambda event: str(event["message"]))
    assert [(event["message"], event["count"]) for event in events] == [("2 blocks", 4), ("3 blocks", 1)]
    assert events[0]["firstTimestamp"] != events[0]["lastTimestamp"]


async def test_events_about_nodes_are_in_the_default_namespace(
    client: Client, recorder: EventRecorder
) -> None:
    recorder.record(NODE, "Pressed", "little is left")
    await recorder.flush()
    assert (await shown(client))[0]["metadata"]["namespace"] == "default"


async def test_an_event_that_the_cluster_has_forgotten_is_made_again(
    client: Client, recorder: EventRecorder
) -> None:
    recorder.record(POD, "A", "b")
    await recorder.flush()
    old = (await shown(client))[0]
    await client.delete(EVENTS, old["metadata"]["name"])
    recorder.record(POD, "A", "b")
    await recorder.flush()
    assert [event["count"] for event in await shown(client)] == [1]


async def test_one_object_cannot_flood_the_cluster(
    client: Client, recorder: EventRecorder, clock: ManualClock
) -> None:
    for number in range(40):
        recorder.record(POD, "Flood", f"{number}")
    recorder.record(NODE, "Calm", "once")
    assert recorder.dropped == 15
    await recorder.flush()
    assert len(await shown(client)) == 26
    await clock.advance(601)
    for number in range(4):
        recorder.record(POD, "Flood", f"later {number}")
    assert recorder.dropped == 17


async def test_recording_never_waits_and_never_fails(clock: ManualClock) -> None:
    settings = ClientSettings(attempts=1)
    async with connect("http://127.0.0.1:1", clock, settings=settings) as client:
        recorder = EventRecorder(client, "colocate", settings=EventSettings(waiting=3, burst=100))
        for number in range(5):
            recorder.record(POD, "A", f"{number}")
        recorder.record(POD, "A", "0")
        assert recorder.dropped == 2
        flushing = asyncio.create_task(recorder.flush())
        while not flushing.done():
            await clock.advance(10)
            await asyncio.sleep(0.001)
        assert recorder.dropped == 5


@pytest.fixture
async def asking(scripted: Scripted, clock: ManualClock) -> AsyncIterator[Client]:
    async with connect(scripted.url, clock, settings=ClientSettings(attempts=1)) as client:
        yield client


async def test_a_server_that_is_away_for_a_moment_loses_nothing(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.say(503)
    scripted.cut()
    scripted.say(201)
    recorder = EventRecorder(asking, "colocate")
    running = asyncio.create_task(recorder.run())
    recorder.record(POD, "A", "b")
    while len(scripted.seen) < 3:
        await clock.advance(1)
        await asyncio.sleep(0.001)
    assert recorder.dropped == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_event_that_is_refused_is_dropped_at_once(scripted: Scripted, asking: Client) -> None:
    scripted.say(403, b'{"message": "the namespace is being terminated"}')
    recorder = EventRecorder(asking, "colocate")
    recorder.record(POD, "A", "b")
    await recorder.flush()
    assert recorder.dropped == 1
    assert len(scripted.seen) == 1


async def test_what_is_remembered_is_bounded(client: Client, server: ApiServer) -> None:
    recorder = EventRecorder(client, "colocate", settings=EventSettings(remembered=5))
    for number in range(20):
        recorder.record(Reference("Pod", f"p{number}", "default"), "A", "b")
    await recorder.flush()
    assert len(recorder._sent) == len(recorder._buckets) == 5
    assert len(await shown(client)) == 20


@given(st.text(max_size=2000))
def test_a_message_fits_the_api(message: str) -> None:
    short = _short(message)
    assert len(short.encode()) <= 1024
    assert short == message or len(message.encode("utf-8", "replace")) > 1000 or "?" in short
