"""In which namespaces an agent may evict: asked of the API server, seldom, and about no more than it has to know."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from colocate.clock import ManualClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection
from colocate.cluster.errors import Unreachable
from colocate.cluster.transport import Request
from colocate.memory.agent.namespace_rights import MOST, NamespaceRights
from tests.support.waiting import until

Question = tuple[str, str]
"""What, and where."""


class Server(Client):
    """Says who may do what, and remembers what it was asked."""

    def __init__(self) -> None:
        self.time = ManualClock()
        super().__init__(Connection("http://127.0.0.1:9", "the test"), self.time, ClientSettings(attempts=1))
        self.allowed: set[Question] = set()
        self.asked: list[Question] = []
        self.away = False

    async def ask_once(self, request: Request) -> bytes:
        assert request.doing.resource.startswith("selfsubjectaccessreviews")
        if self.away:
            raise Unreachable("no answer")
        spec = msgspec.json.decode(request.body or b"")["spec"]["resourceAttributes"]
        resource = "/".join(spec[part] for part in ("resource", "subresource") if part in spec)
        question = (f"{spec['verb']} {resource}", spec["namespace"])
        self.asked.append(question)
        return msgspec.json.encode({"status": {"allowed": question in self.allowed}})


EVICT, GET, CREATE = "create pods/eviction", "get pods", "create pods"
GET_NAMESPACE = "get namespaces"


@asynccontextmanager
async def asking(server: Server) -> AsyncIterator[NamespaceRights]:
    rights = NamespaceRights(server)
    running = asyncio.create_task(rights.run())
    try:
        yield rights
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_of_a_namespace_that_was_never_asked_about_nothing_is_known_and_nothing_forbidden() -> None:
    async with asking(Server()) as rights:
        assert rights.without_eviction == rights.without_creation == frozenset()


async def test_rights_are_told_apart_by_namespace() -> None:
    server = Server()
    server.allowed = {(EVICT, "a"), (EVICT, "d"), (CREATE, "d")}
    server.allowed |= {(right, "b") for right in (EVICT, GET, CREATE, GET_NAMESPACE)}
    server.allowed |= {(right, "e") for right in (EVICT, GET, CREATE)}
    async with asking(server) as rights:
        rights.want(["a", "b", "c", "d", "e", ""])
        await until(lambda: len(rights.without_creation) == 4, "all answers")
        assert rights.without_eviction == {"c"}
        assert rights.without_creation == {"a", "c", "d", "e"}, "who moves a pod reads it and its namespace"
        assert (CREATE, "c") not in server.asked, "without the right to evict, no pod moves"


async def test_answers_are_kept_and_asked_for_again_after_a_while_and_not_before() -> None:
    server = Server()
    async with asking(server) as rights:
        rights.want(["a"])
        await until(lambda: rights.without_eviction == {"a"}, "an answer")
        server.allowed = {(EVICT, "a")}
        for _ in range(29):
            await server.time.advance(10)
            rights.want(["a"])
        assert len(server.asked) == 1
        await server.time.advance(20)
        await until(lambda: rights.without_eviction == frozenset(), "another answer")


async def test_while_the_server_is_away_the_last_answer_holds_and_it_is_not_pressed() -> None:
    server = Server()
    async with asking(server) as rights:
        rights.want(["a"])
        await until(lambda: rights.without_eviction == {"a"}, "an answer")
        server.away = True
        await server.time.advance(3600)
        assert rights.without_eviction == {"a"}
        server.away, server.allowed = False, {(EVICT, "a")}
        await server.time.advance(60)
        await until(lambda: rights.without_eviction == frozenset(), "its word again")


async def test_a_tenant_with_many_namespaces_makes_an_agent_ask_about_so_many_at_most() -> None:
    server = Server()
    async with asking(server) as rights:
        rights.want(f"tenant-{number:04d}" for number in range(10 * MOST))
        await until(lambda: len(rights.without_eviction) == MOST, "answers")
        await server.time.advance(200)
        assert len(server.asked) == MOST


async def test_what_is_no_longer_wanted_is_forgotten() -> None:
    server = Server()
    async with asking(server) as rights:
        rights.want(["a", "b"])
        await until(lambda: rights.without_eviction == {"a", "b"}, "answers")
        rights.want(["b"])
        assert rights.without_eviction == {"b"}
