"""Lists and watches: versions, selections, bookmarks, time-outs, expiry, pages."""

import asyncio
from typing import Any

import pytest

from colocate.clock import ManualClock
from colocate.lab.api.resources import CONFIG_MAPS, PODS
from colocate.lab.api.server import ApiServer
from colocate.lab.api.watch import BOOKMARK_SECONDS

from .asking import TABLE, Http
from .samples import CONFIG_MAPS as CM
from .samples import PODS as POD_PATH
from .samples import config_map, pod


def make(server: ApiServer, *names: str) -> None:
    for name in names:
        server.registry.create(CONFIG_MAPS, "default", {"metadata": {"name": name}})


@pytest.mark.parametrize("version", ["", "resourceVersion=0", "resourceVersion="])
async def test_without_a_version_a_watch_begins_with_what_is_there(
    api: Http, server: ApiServer, version: str
) -> None:
    make(server, "b", "a")
    async with api.watch(f"{CM}?{version}") as watching:
        assert await watching.take(2) == [("ADDED", "a"), ("ADDED", "b")]
        make(server, "c")
        assert await watching.take(1) == [("ADDED", "c")]


async def test_with_a_version_a_watch_goes_on_from_there(api: Http, server: ApiServer) -> None:
    make(server, "a")
    version = (await api.get(CM)).body["metadata"]["resourceVersion"]
    make(server, "b")
    await api.patch(f"{CM}/a", {"data": {"x": "1"}})
    await api.delete(f"{CM}/b")
    async with api.watch(f"{CM}?resourceVersion={version}") as watching:
        assert await watching.take(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_with_a_version_of_the_future_a_watch_waits_for_it(api: Http, server: ApiServer) -> None:
    future = server.store.revision + 2
    async with api.watch(f"{CM}?resourceVersion={future}") as watching:
        make(server, "a", "b", "c")
        assert await watching.take(1) == [("ADDED", "c")]


async def test_versions_rise_along_a_watch_and_across_resources(api: Http, server: ApiServer) -> None:
    async with api.watch(CM) as watching:
        make(server, "a")
        await api.post(POD_PATH, pod("p"))
        make(server, "b")
        lines = [await watching.next() for _ in range(2)]
    first, second = (int(line["object"]["metadata"]["resourceVersion"]) for line in lines)
    assert second == first + 2


async def test_a_version_that_is_gone_is_410_in_the_stream(api: Http, server: ApiServer) -> None:
    make(server, "a", "b")
    server.store.expire()
    async with api.watch(f"{CM}?resourceVersion=1") as watching:
        line = await watching.next()
        assert line["type"] == "ERROR"
        assert (line["object"]["code"], line["object"]["reason"]) == (410, "Expired")
        assert line["object"]["message"].startswith("too old resource version: 1 (")
        assert await watching.next() is None
    version = (await api.get(CM)).body["metadata"]["resourceVersion"]
    async with api.watch(f"{CM}?resourceVersion={version}") as watching:
        make(server, "c")
        assert await watching.take(1) == [("ADDED", "c")]


async def test_expiry_ends_the_watches_that_run(api: Http, server: ApiServer) -> None:
    make(server, "a")
    async with api.watch(CM) as watching:
        await watching.take(1)
        server.store.expire()
        assert (await watching.next())["object"]["code"] == 410
        assert await watching.next() is None


async def test_what_enters_and_leaves_a_selection_is_added_and_deleted(api: Http, server: ApiServer) -> None:
    async with api.watch(f"{CM}?labelSelector=on%3Dyes") as watching:
        make(server, "a")
        await api.patch(f"{CM}/a", {"metadata": {"labels": {"on": "yes"}}})
        await api.patch(f"{CM}/a", {"data": {"x": "1"}})
        await api.patch(f"{CM}/a", {"metadata": {"labels": {"on": "no"}}})
        await api.delete(f"{CM}/a")
        lines = [await watching.next() for _ in range(3)]
        assert [line["type"] for line in lines] == ["ADDED", "MODIFIED", "DELETED"]
        # It is told of as it was when it still belonged, at the version at which it left.
        left = lines[2]["object"]["metadata"]
        assert left["labels"] == {"on": "yes"}
        assert int(left["resourceVersion"]) == server.store.revision - 1
        make(server, "b")
        await api.patch(f"{CM}/b", {"metadata": {"labels": {"on": "yes"}}})
        assert await watching.take(1) == [("ADDED", "b")]


async def test_a_kubelet_sees_a_pod_when_it_is_bound(api: Http) -> None:
    async with api.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dvm") as watching:
        await api.post(POD_PATH, pod("p"))
        await api.post(
            f"{POD_PATH}/p/binding", {"kind": "Binding", "apiVersion": "v1", "target": {"name": "vm"}}
        )
        assert await watching.take(1) == [("ADDED", "p")]


async def test_bookmarks_come_with_the_clock(api: Http, server: ApiServer, clock: ManualClock) -> None:
    make(server, "a")
    async with api.watch(f"{CM}?allowWatchBookmarks=true") as watching:
        await watching.take(1)
        await api.post(POD_PATH, pod("p"))
        await clock.until_someone_sleeps()
        for _ in range(2):
            await clock.advance(BOOKMARK_SECONDS)
            line = await watching.next()
            assert line["type"] == "BOOKMARK"
            assert line["object"]["kind"] == "ConfigMap"
            assert line["object"]["metadata"]["resourceVersion"] == str(server.store.revision)


async def test_without_the_wish_there_are_no_bookmarks(
    api: Http, server: ApiServer, clock: ManualClock
) -> None:
    make(server, "a")
    async with api.watch(f"{CM}?timeoutSeconds=600") as watching:
        await watching.take(1)
        await clock.until_someone_sleeps()
        await clock.advance(599)
        make(server, "b")
        assert await watching.take(1) == [("ADDED", "b")]
        await clock.advance(1)
        assert await watching.next() is None


async def test_initial_events_end_with_a_bookmark(api: Http, server: ApiServer) -> None:
    make(server, "a")
    wish = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    async with api.watch(f"{CM}?{wish}") as watching:
        await watching.take(1)
        line = await watching.next()
        assert line["type"] == "BOOKMARK"
        assert line["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        make(server, "b")
        assert await watching.take(1) == [("ADDED", "b")]


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ("sendInitialEvents=true", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("resourceVersionMatch=Newest&resourceVersion=1", 422),
        ("resourceVersion=abc", 422),
        ("resourceVersion=-1", 422),
        ("timeoutSeconds=soon", 400),
        ("labelSelector=%3D%3D", 400),
        ("fieldSelector=spec.color%3Dred", 400),
    ],
)
async def test_a_watch_that_makes_no_sense(api: Http, wish: str, code: int) -> None:
    answer = await api.get(f"{CM}?watch=1&{wish}")
    assert (answer.code, answer.body["kind"]) == (code, "Status")


async def test_a_watch_of_tables_has_its_columns_once(api: Http, server: ApiServer) -> None:
    make(server, "a")
    async with api.watch(CM, accept=TABLE) as watching:
        first = await watching.next()
        assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert first["object"]["rows"][0]["cells"] == ["a", 0, "0s"]
        make(server, "b")
        second = await watching.next()
        assert second["object"]["columnDefinitions"] == []
        assert second["object"]["rows"][0]["cells"][0] == "b"


async def test_metadata_alone(api: Http, server: ApiServer) -> None:
    await api.post(CM, config_map("a", x="1"))
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    listed = (await api.get(CM, accept=accept)).body
    assert listed["kind"] == "PartialObjectMetadataList"
    assert [list(item) for item in listed["items"]] == [["kind", "apiVersion", "metadata"]]
    async with api.watch(CM, accept=accept.replace("List", "")) as watching:
        line = await watching.next()
        assert line["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize("include", ["None", "Metadata", "Object"])
async def test_how_much_of_an_object_a_table_carries(api: Http, include: str) -> None:
    await api.post(CM, config_map("a", x="1"))
    table = (await api.get(f"{CM}/a?includeObject={include}", accept=TABLE)).body
    shown: Any = table["rows"][0]["object"]
    expected = {"None": None, "Metadata": "PartialObjectMetadata", "Object": "ConfigMap"}[include]
    assert (shown and shown["kind"]) == expected


async def test_pages_show_the_cluster_as_it_was_at_the_first(api: Http, server: ApiServer) -> None:
    make(server, *(f"c{number}" for number in range(7)))
    first = (await api.get(f"{CM}?limit=3")).body
    assert first["metadata"]["remainingItemCount"] == 4
    await api.delete(f"{CM}/c5")
    make(server, "c50")
    names, token = [item["metadata"]["name"] for item in first["items"]], first["metadata"]["continue"]
    while token:
        page = (await api.get(f"{CM}?limit=3&continue={token}")).body
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        names += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue")
    assert names == [f"c{number}" for number in range(7)]


async def test_a_page_that_is_no_longer_known_is_gone(api: Http, server: ApiServer) -> None:
    make(server, "a", "b")
    token = (await api.get(f"{CM}?limit=1")).body["metadata"]["continue"]
    server.store.expire()
    answer = await api.get(f"{CM}?limit=1&continue={token}")
    assert (answer.code, answer.body["reason"]) == (410, "Expired")
    assert (await api.get(f"{CM}?continue=nonsense")).code == 400


async def test_lists_and_versions(api: Http, server: ApiServer) -> None:
    make(server, "a")
    now = server.store.revision
    assert (await api.get(f"{CM}?resourceVersion=0")).body["metadata"]["resourceVersion"] == str(now)
    ahead = await api.get(f"{CM}?resourceVersion={now + 5}")
    assert (ahead.code, ahead.body["reason"]) == (504, "Timeout")
    assert (await api.get(f"{CM}?resourceVersion={now}&resourceVersionMatch=Exact")).code == 200
    make(server, "b")
    exact = await api.get(f"{CM}?resourceVersion={now}&resourceVersionMatch=Exact")
    assert (exact.code, exact.body["reason"]) == (410, "Expired")
    newer = await api.get(f"{CM}?resourceVersion={now}&resourceVersionMatch=NotOlderThan")
    assert [item["metadata"]["name"] for item in newer.body["items"]] == ["a", "b"]


async def test_a_client_that_leaves_is_forgotten(api: Http, server: ApiServer) -> None:
    idle = len(asyncio.all_tasks())
    async with api.watch(CM) as watching:
        watching.response.close()
    while len(asyncio.all_tasks()) > idle:  # noqa: ASYNC110 -- the other side of a socket cannot be awaited
        await asyncio.sleep(0)


async def test_stopping_ends_every_watch(server: ApiServer) -> None:
    from .conftest import serving

    async with serving(server) as http, http.watch(CM) as first, http.watch("/api/v1/pods") as second:
        await server.stop()
        assert await first.next() is None
        assert await second.next() is None
    assert server.store.count(PODS.storage) == 0
