"""The cache equals the server after every quiet moment, whatever happened to server and wire before it.

The server restarts with its state, or without it so that versions begin again; it forgets its history,
refuses the credential, goes away; connections are cut at any moment; time passes. It reorders nothing.
"""

import asyncio

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from colocate.clock import ManualClock
from colocate.cluster.watch_cache import WatchSettings
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore

from .following import Following, drop, held, put
from .serving import ADMIN, TOKEN, Wire, connect, new_server

HISTORY = 6
"""Changes that the server remembers: a client that is away for long finds its version expired."""

names = st.sampled_from("abcd")
values = st.sampled_from(["1", "2", "3"])


class Follow(RuleBasedStateMachine):
    """A cache on one side of a wire, a server with a hard life on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.lives = 0
        self.stopping: list[asyncio.Task[None]] = []

    def do(self, seconds: float = 0.0) -> None:
        """Let some time pass for everybody, and sockets be read."""

        async def pass_time() -> None:
            await self.clock.advance(seconds)
            await asyncio.sleep(0.0005)

        self.loop.run_until_complete(pass_time())

    @initialize(page=st.sampled_from([1, 2, 500]))
    def begin(self, page: int) -> None:
        self.loop.run_until_complete(self._begin(page))

    async def _begin(self, page: int) -> None:
        self.clock = ManualClock()
        self.wire = Wire()
        await self.wire.start()
        self.server = self._new_server(ObjectStore(history=HISTORY))
        await self._serve()
        self.client = connect(self.wire.url, self.clock)
        self.following = Following(self.client, WatchSettings(page=page))
        self.running = asyncio.create_task(self.following.cache.run())

    def _new_server(self, store: ObjectStore) -> ApiServer:
        self.lives += 1
        return new_server(self.clock, store, seed=self.lives)

    async def _serve(self) -> None:
        await self.server.start(tls=False)
        self.wire.lead_to(self.server)

    async def _restart(self, store: ObjectStore) -> None:
        # What the old one has open it ends at once; that it waits for the ends need not hold us up.
        self.stopping.append(asyncio.create_task(self.server.stop()))
        await asyncio.sleep(0)
        self.server = self._new_server(store)
        await self._serve()

    @rule(name=names, value=values)
    def write(self, name: str, value: str) -> None:
        put(self.server, name, value)

    @rule(name=names, value=values)
    def replace(self, name: str, value: str) -> None:
        if any(key.name == name for key in held(self.server)):
            drop(self.server, name)
        put(self.server, name, value)

    @rule(name=names)
    def remove(self, name: str) -> None:
        if any(key.name == name for key in held(self.server)):
            drop(self.server, name)

    @rule()
    def compact(self) -> None:
        self.server.store.expire()

    @rule()
    def cut(self) -> None:
        self.wire.cut()

    @rule()
    def go_away(self) -> None:
        self.wire.target = 0
        self.wire.cut()

    @rule()
    def come_back(self) -> None:
        self.wire.lead_to(self.server)

    @rule()
    def restart(self) -> None:
        self.loop.run_until_complete(self._restart(self.server.store))

    @rule(writes=st.integers(0, 40))
    def restart_without_state(self, writes: int) -> None:
        self.loop.run_until_complete(self._restart(ObjectStore(history=HISTORY)))
        for number in range(writes):
            put(self.server, "z", str(number))

    @rule(known=st.booleans())
    def credential(self, known: bool) -> None:
        if known:
            self.server.authenticator.add_token(TOKEN, ADMIN)
        else:
            self.server.authenticator.remove_token(TOKEN)
            self.wire.cut()

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 61.0, 301.0]))
    def wait(self, seconds: float) -> None:
        self.do(seconds)

    @rule()
    def settle(self) -> None:
        """A while without changes, with a healthy server."""
        self.come_back()
        self.credential(known=True)
        for _ in range(400):
            self.do(2.0)
            if self.following.cache.health.synced and self.is_right():
                break
        # And so it stays.
        for seconds in (1.0, 62.0, 1.0):
            self.do(seconds)
            assert self.is_right(), (dict(self.following.cache.items()), held(self.server))
        assert not self.running.done()

    def is_right(self) -> bool:
        cache = self.following.cache
        found = dict(cache.items())
        assert self.following.listener.objects == found
        for value in ("1", "2", "3"):
            indexed = set(self.following.by_value.keys(value))
            assert indexed == {key for key, one in found.items() if one.data["value"] == value}
        return found == held(self.server)

    def teardown(self) -> None:
        async def leave() -> None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
            await self.client.close()
            await asyncio.gather(self.server.stop(), *self.stopping)
            await self.wire.stop()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left behind: {left}"

        if hasattr(self, "running"):
            self.settle()
            self.loop.run_until_complete(leave())
        self.loop.close()


TestFollow = Follow.TestCase
TestFollow.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
