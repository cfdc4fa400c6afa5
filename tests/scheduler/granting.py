"""A scheduler with the rights of the example, or with all of them but one; what it is refused is written down."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login
from colocate.cluster.errors import Forbidden
from colocate.cluster.secret import Secret
from colocate.cluster.transport import Request
from tests.scheduler.pretending import NAMES, ONE_HOT, pretending
from tests.scheduler.story import Story, telling
from tests.support.rights import Right, account_token, apply

FILES = ("scheduler/rbac.yaml", "scheduler/taints-rbac.yaml", "scheduler/metrics-api-rbac.yaml")
ACCOUNT = "colocate-scheduler"


class Recording(Client):
    """Writes down what it is refused."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, settings=ClientSettings(attempts=1))
        self.refused: list[str] = []

    async def ask_once(self, request: Request) -> bytes:
        try:
            return await super().ask_once(request)
        except Forbidden as error:
            self.refused.append(str(error))
            raise

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with super().stream(request) as pieces:
                yield pieces
        except Forbidden as error:
            self.refused.append(str(error))
            raise


@asynccontextmanager
async def granted(
    story: Story, without: Right | None = None, files: Sequence[str] = FILES
) -> AsyncIterator[Recording]:
    """A client that may do what the examples allow, but for one thing."""
    server = story.cluster.server
    apply(server, *files, without=without)
    token = Secret(account_token(server, ACCOUNT))
    connection = Connection(server.url, "the test", insecure=True, login=Login(token=token))
    client = Recording(connection)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def one_hot(
    without: Right | None = None, files: Sequence[str] = FILES
) -> AsyncIterator[tuple[Story, Recording]]:
    """A cluster of which one node is hot, and the client of its scheduler."""
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        granted(story, without, files) as client,
    ):
        yield story, client
