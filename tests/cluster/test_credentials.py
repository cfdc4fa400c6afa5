"""Tokens that rotate and commands that print them."""

import asyncio
import os
import stat
import sys
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from colocate.clock import Clock, ManualClock, SystemClock
from colocate.cluster import exec_plugin
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection, Login
from colocate.cluster.credentials import Credentials
from colocate.cluster.errors import Unauthorized
from colocate.cluster.exec_plugin import Printed
from colocate.cluster.kubeconfig import ExecSpec, ExecVariable
from colocate.cluster.resources import PODS
from colocate.cluster.secret import Secret
from colocate.errors import UserError
from colocate.lab.api.server import ApiServer

from .serving import ADMIN

V1 = "client.authentication.k8s.io/v1"


async def header(credentials: Credentials) -> str:
    shown = await credentials.current()
    assert shown.authorization is not None
    return shown.authorization.reveal()


async def test_a_token_file_is_read_again_when_it_has_changed(tmp_path: Path, clock: ManualClock) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    credentials = Credentials(Login(token_file=token), clock)
    assert await header(credentials) == "Bearer one"
    # As the kubelet does it: a new folder, and a link that is moved to it.
    fresh = tmp_path / "fresh"
    fresh.write_text("two")
    fresh.replace(token)
    assert await header(credentials) == "Bearer two"
    token.unlink()
    assert await header(credentials) == "Bearer two"


async def test_a_token_file_that_gives_nothing_is_a_users_fault(tmp_path: Path, clock: ManualClock) -> None:
    token = tmp_path / "token"
    credentials = Credentials(Login(token_file=token), clock)
    with pytest.raises(UserError, match=r"the token file .* cannot be read: no such file"):
        await credentials.current()
    token.write_text("\n")
    with pytest.raises(UserError, match="is empty; put a token into it"):
        await credentials.current()


async def test_a_rotated_token_is_used_at_once(server: ApiServer, clock: ManualClock, tmp_path: Path) -> None:
    token = tmp_path / "token"
    server.authenticator.add_token("first", ADMIN)
    token.write_text("first")
    connection = Connection(server.url, "the test", login=Login(token_file=token))
    async with Client(connection, clock) as client:
        await client.list(PODS)
        server.authenticator.remove_token("first")
        with pytest.raises(Unauthorized):
            await client.list(PODS)
        server.authenticator.add_token("second", ADMIN)
        token.write_text("second")
        assert await client.list(PODS) == []


class Commands:
    """Stands in for a command: prints what the test says, and counts."""

    def __init__(self, *printed: Printed) -> None:
        self.printed = list(printed)
        self.runs = 0

    async def run(self, spec: ExecSpec, clock: Clock) -> Printed:
        self.runs += 1
        await asyncio.sleep(0)
        return self.printed.pop(0) if len(self.printed) > 1 else self.printed[0]


SPEC = ExecSpec("login", V1, place="kubeconfig: users[u].exec")


async def test_a_command_is_run_again_shortly_before_its_token_expires(clock: ManualClock) -> None:
    commands = Commands(Printed(Secret("a"), expires=clock.time() + 100), Printed(Secret("b")))
    credentials = Credentials(Login(exec=SPEC), clock, commands.run)
    assert await asyncio.gather(*(header(credentials) for _ in range(5))) == ["Bearer a"] * 5
    await clock.advance(89)
    assert await header(credentials) == "Bearer a"
    await clock.advance(2)
    assert await header(credentials) == "Bearer b"
    await clock.advance(10_000)
    assert await header(credentials) == "Bearer b"
    assert commands.runs == 2


async def test_of_many_refused_requests_one_renews(clock: ManualClock) -> None:
    commands = Commands(Printed(Secret("a")), Printed(Secret("b")))
    credentials = Credentials(Login(exec=SPEC), clock, commands.run)
    refused = await credentials.current()
    assert await asyncio.gather(*(credentials.renewed(refused) for _ in range(5))) == [True] * 5
    assert commands.runs == 2
    again = await credentials.current()
    assert not await credentials.renewed(again)


async def test_a_command_whose_token_is_refused_is_run_again(server: ApiServer, clock: ManualClock) -> None:
    commands = Commands(Printed(Secret("stale")), Printed(Secret("admin-token")))
    from colocate.cluster.transport import Transport

    connection = Connection(server.url, "the test", login=Login(exec=SPEC))
    transport = Transport(connection, clock, Credentials(connection.login, clock, commands.run))
    async with Client(connection, clock, transport=transport) as client:
        assert await client.list(PODS) == []
    assert commands.runs == 2


# Real commands.


def script(folder: Path, body: str) -> Path:
    path = folder / "login"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def spec(command: str, folder: Path = Path("/"), version: str = V1) -> ExecSpec:
    return ExecSpec(command, version, place="kubeconfig: users[u].exec", folder=folder)


PRINT = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": STATUS}))
"""


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_a_command_prints_a_token(tmp_path: Path, version: str) -> None:
    status = '{"token": sys.argv[1] + os.environ["MORE"], "expirationTimestamp": "2030-01-01T00:00:00Z"}'
    script(tmp_path, PRINT.replace("STATUS", status))
    given = msgspec.structs.replace(
        spec("./login", tmp_path, version), args=("a",), env=(ExecVariable("MORE", "b"),)
    )
    printed = await exec_plugin.run(given, SystemClock())
    assert printed == Printed(Secret("ab"), expires=1893456000.0)


async def test_a_command_is_found_on_the_path_and_told_of_the_cluster(tmp_path: Path) -> None:
    script(tmp_path, PRINT.replace("STATUS", '{"token": info["spec"]["cluster"]["server"]}'))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    given = msgspec.structs.replace(spec("login"), provide_cluster_info=True, cluster={"server": "https://x"})
    printed = await exec_plugin.run(given, SystemClock(), environ)
    assert printed.token == Secret("https://x")


async def test_a_command_may_print_a_certificate(tmp_path: Path) -> None:
    status = '{"clientCertificateData": "c", "clientKeyData": "k"}'
    script(tmp_path, PRINT.replace("STATUS", status))
    printed = await exec_plugin.run(spec("./login", tmp_path), SystemClock())
    assert (printed.certificate, printed.key) == ("c", Secret("k"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print('to log in\\nvisit', file=sys.stderr); sys.exit(3)", "ended with 3: to log in visit"),
        ("print('s3cr3t')", "printed no ExecCredential; check its arguments"),
        ("print('{\"more\": ' + '[' * 100000)", "printed no ExecCredential; check its arguments"),
        ("print('{}')", "printed nothing of no version, not ExecCredential of client"),
        (PRINT.replace("STATUS", "{}"), "printed neither a token nor a certificate with its key"),
    ],
)
async def test_a_command_that_prints_no_credential(tmp_path: Path, body: str, words: str) -> None:
    script(tmp_path, body)
    with pytest.raises(UserError) as raised:
        await exec_plugin.run(spec("./login", tmp_path), SystemClock())
    assert words in str(raised.value)
    assert str(raised.value).startswith("kubeconfig: users[u].exec: ./login ")
    assert "s3cr3t" not in str(raised.value)


async def test_a_command_that_hangs_is_killed(tmp_path: Path, clock: ManualClock) -> None:
    os.mkfifo(tmp_path / "pid")
    tell = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    script(tmp_path, f"import signal\n{tell}\nsignal.pause()")
    work = asyncio.create_task(exec_plugin.run(spec("./login", tmp_path), clock, seconds=5))
    pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    await clock.advance(5)
    with pytest.raises(UserError, match="has not ended within 5 s; find out why it hangs"):
        await work
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_command_that_is_not_there_comes_with_its_hint() -> None:
    given = msgspec.structs.replace(spec("no-such-login"), install_hint="get it\nfrom there")
    with pytest.raises(UserError, match=r"no such command; install it \(get it from there\)"):
        await exec_plugin.run(given, SystemClock())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"api_version": "client.authentication.k8s.io/v1alpha1"}, "update the plugin"),
        ({"interactive_mode": "Always"}, "there is no terminal here"),
    ],
)
async def test_commands_that_cannot_be_run_here(change: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        await exec_plugin.run(msgspec.structs.replace(spec("true"), **change), SystemClock())


@given(st.text(min_size=1))
def test_a_secret_shows_in_nothing_but_its_reveal(value: str) -> None:
    secret = Secret(value)
    assert repr(secret) == str(secret) == f"{secret}" == "Secret(…)"
    assert secret.reveal() == value
    assert secret == Secret(value)
    assert secret != value
