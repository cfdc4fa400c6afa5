"""The token that is made where nobody has made one: for its owner alone, whole or not at all, and never shown."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from colocate.clock import SystemClock
from colocate.cluster.secret import Secret
from colocate.errors import UserError
from colocate.scheduler import client as questions
from colocate.scheduler import settings as scheduler_settings
from colocate.scheduler.client import NotAnswered, Where
from colocate.scheduler.kube.configuration import is_local, with_token
from colocate.scheduler.server.extender import serving
from colocate.scheduler.server.tokens import make_token, own_token_file, tokens
from colocate.scheduler.settings import CallerSettings, Server
from tests.scheduler.asking import ANY_PORT, SteeredJudge, asking, question
from tests.support.logs import logged


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a token is made by default, in a test."""
    path = tmp_path / "state" / "scheduler-token"
    monkeypatch.setattr(scheduler_settings, "DEFAULT_TOKEN_FILE", path)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_where_nothing_is_said_a_local_user_who_cannot_read_the_file_is_not_let_in(file: Path) -> None:
    with logged() as events:
        async with asking(SteeredJudge(), Server(address=ANY_PORT)) as ask:
            assert (await ask.post("prioritize", question("a"))).status == 401
            assert (mode(file), mode(file.parent)) == (0o600, 0o700)
            [token] = tokens(file)
            shown = {"Authorization": f"Bearer {token.reveal()}"}
            assert (await ask.post("prioritize", question("a"), headers=shown)).status == 200
            url = with_token(ask.listening.url, token)
            assert (await ask.session.post(f"{url}/prioritize", data=question("a"))).status == 200
            assert (await ask.get("/healthz")).status == 200
    assert len(token.reveal()) >= 43, "256 bits"
    assert token.reveal() not in repr(events)
    assert any(event["event"] == "extender.token_made" for event in events)


async def test_it_stays_the_same_over_restarts(file: Path) -> None:
    for _ in range(2):
        async with asking(SteeredJudge(), Server(address=ANY_PORT)):
            pass
    first = file.read_text()
    async with asking(SteeredJudge(), Server(address=ANY_PORT)):
        assert file.read_text() == first
    assert [path.name for path in file.parent.iterdir()] == [file.name], "nothing else is left behind"


def test_of_several_that_begin_at_once_all_have_the_token_of_the_first(file: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from colocate.scheduler.server.tokens import make_token, tokens\n"
        "make_token(Path(sys.argv[1])); print(tokens(Path(sys.argv[1]))[0].reveal())\n"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE) for _ in range(4)
    ]
    said = [one.communicate()[0].decode() for one in begun]
    assert {each.splitlines()[-1] for each in said} == {file.read_text().strip()}


@pytest.mark.parametrize("kind", ["everybody may read it", "a link", "a folder"])
def test_a_file_that_others_could_have_put_there_is_not_believed(file: Path, kind: str) -> None:
    file.parent.mkdir()
    if kind == "a folder":
        file.mkdir()
    elif kind == "a link":
        other = file.parent / "other"
        other.write_text("known to all")
        other.chmod(0o600)
        file.symlink_to(other)
    else:
        file.write_text("known to all")
        file.chmod(0o644)
    with pytest.raises(UserError, match=r"is not a file that only its owner can read; remove that file"):
        make_token(file)


def test_a_local_user_who_may_write_to_its_folder_puts_no_token_of_his_own_there(file: Path) -> None:
    file.parent.mkdir()
    file.parent.chmod(0o777)
    with pytest.raises(UserError, match="let only the owner write there"):
        make_token(file)
    file.parent.chmod(0o1777)
    make_token(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["file", "folder"])
def test_a_local_user_who_owns_the_file_or_its_folder_has_no_token_of_his_own_believed(
    file: Path, whose: str
) -> None:
    make_token(file)
    make_token(file)
    os.chown(file if whose == "file" else file.parent, 4711, 4711)
    with pytest.raises(
        UserError, match="only its owner can read" if whose == "file" else "others can replace"
    ):
        make_token(file)


def test_where_none_can_be_made_the_remedy_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(
        UserError, match=r"server\.callers\.tokenFile: it is not set, .* cannot be created .*anyone"
    ):
        make_token(tmp_path / "state" / "token")


async def test_whoever_may_read_it_asks_without_a_flag_and_only_on_this_machine(file: Path) -> None:
    async def top(query: object) -> bytes:
        return b"[]"

    async with serving(Server(address=ANY_PORT), SteeredJudge(), SystemClock(), {"/top": top}) as listening:
        url = listening.url
        with pytest.raises(NotAnswered, match=f"asks for a token; .*{file}"):
            await questions.ask(Where(url=url), "/top")
        assert own_token_file(url) == file
        assert await questions.ask(Where(url=url, token_file=own_token_file(url)), "/top") == b"[]"
    assert own_token_file("http://elsewhere:8890") is None, "it is not shown to another machine"
    assert own_token_file("http://me:mine@127.0.0.1:8890") is None


async def test_where_anyone_is_let_in_the_log_says_so(file: Path) -> None:
    with logged() as events:
        async with asking(
            SteeredJudge(), Server(address=ANY_PORT, callers=CallerSettings(anyone=True))
        ) as ask:
            assert (await ask.post("prioritize", question("a"))).status == 200
    assert any(event["event"] == "extender.open" for event in events)
    assert not file.exists()


async def test_a_socket_file_needs_no_token(file: Path, tmp_path: Path) -> None:
    address = scheduler_settings.ServerEndpoint(f"unix:{tmp_path}/s")
    async with asking(SteeredJudge(), Server(address=address)) as ask:
        assert mode(tmp_path / "s") == 0o600
        assert (await ask.post("prioritize", question("a"))).status == 200
        assert (await ask.post("prioritize", question("a"))).status == 200
    assert not file.exists()


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8890", True),
        ("http://[::1]:8890", True),
        ("https://localhost", True),
        ("http://127.0.0.1.evil.example:8890", False),
        ("http://127.0.0.1@evil.example", False),
        ("http://10.0.0.1:8890", False),
        ("unix:/run/x", False),
    ],
)
def test_only_addresses_of_this_machine_are_its_own(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_a_token_in_an_address_is_quoted() -> None:
    assert with_token("http://h:1/x", Secret("a/b@c")) == "http://scheduler:a%2Fb%40c@h:1/x"
