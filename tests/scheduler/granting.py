"""A scheduler with the rights of the example, or with all of them but one; what it is refused is written down."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login
from colocate.cluster.errors import Forbidden
from colocate.cluster.secret import Secret
from colocate.cluster.transport import Request
from colocate.lab.api.users import known
from tests.scheduler.pretending import NAMES, ONE_HOT, pretending
from tests.scheduler.story import Story, telling
from tests.support.rights import bind_role, user

RBAC = Path(__file__).parents[2] / "examples" / "scheduler" / "rbac.yaml"

Right = tuple[int, str, str]
"""The number of its rule, the resource and the verb."""


def rules() -> list[dict[str, Any]]:
    """Every rule of the example, with where it holds."""
    found = [one for one in yaml.safe_load_all(RBAC.read_text()) if one["kind"] in ("Role", "ClusterRole")]
    return [
        {"kind": role["kind"], "namespace": role["metadata"].get("namespace", ""), "rule": rule}
        for role in found
        for rule in role["rules"]
    ]


def single_rights() -> list[Right]:
    return [
        (number, resource, verb)
        for number, one in enumerate(rules())
        for resource in one["rule"]["resources"]
        for verb in one["rule"]["verbs"]
    ]


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
async def granted(story: Story, without: Right | None = None) -> AsyncIterator[Recording]:
    """A client that may do what the example allows, but for one thing."""
    for number, one in enumerate(rules()):
        name, rule = f"sched-{number}", one["rule"]
        given = [
            {**rule, "resources": [resource], "verbs": [verb]}
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if (number, resource, verb) != without
        ]
        bind_role(story.cluster.registry, name, given, user("sched"), one["namespace"])
    story.cluster.server.authenticator.add_token("sched-token", known("sched"))
    connection = Connection(
        story.cluster.server.url, "the test", insecure=True, login=Login(token=Secret("sched-token"))
    )
    client = Recording(connection)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def one_hot(without: Right | None = None) -> AsyncIterator[tuple[Story, Recording]]:
    """A cluster of which one node is hot, and the client of its scheduler."""
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        granted(story, without) as client,
    ):
        yield story, client
