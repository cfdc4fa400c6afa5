"""Whatever file, folder or socket a command is given that cannot be used: one sentence in words, and no more."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cli.test_cli_help import COMMANDS

from colocate.cli.examples import EXAMPLES
from colocate.scheduler.settings import DEFAULT_TOKEN_FILE

REPO = Path(__file__).parents[2]
PATHS = {"FILE", "PATH", "DIR", "FOLDER", "ENDPOINT", "DUMP", "XML"}
"""How the help calls what names a path."""

WAITS = {
    "colocate cri-proxy --runtime": "for a runtime that may come",
}
"""Commands that go on with a path of which nothing is there yet."""

INWARD = re.compile(r"\[Errno|Traceback|<[A-Z]\w*\.[A-Z_]+|\bE\d{4} \d\d:|\bobject at 0x|Error\(")
"""Words that are meant for who wrote the program: numbers of the system, traces, names of enums, gRPC's own log."""


class Attempt(msgspec.Struct, frozen=True):
    """A command line with a path that cannot be used."""

    command: str
    option: str
    words: list[str]


def attempts(wrong: str, folder: Path) -> Iterator[Attempt]:
    """The example of each command's help, with one path after the other wrong, and no other one of this machine."""
    for command, parser in COMMANDS.items():
        example = EXAMPLES[command][0].removeprefix("source <(").removesuffix(")").partition(" > ")[0]
        words = [word.replace("/etc/colocate", str(folder)) for word in shlex.split(example)[1:]]
        if "--root" in parser._option_string_actions:
            words += ["--root", str(folder / "root")]
        for action in parser._actions:
            if action.metavar in PATHS and f"{command} {name_of(action)}" not in WAITS:
                given = f"unix://{wrong}" if action.metavar == "ENDPOINT" else wrong
                yield Attempt(command, name_of(action), with_path(words, action, given))


def name_of(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def with_path(words: list[str], action: argparse.Action, path: str) -> list[str]:
    if action.option_strings:
        return [*words, action.option_strings[-1], path]
    files = [word for word in words if re.fullmatch(r"[\w-]+\.\w+", word)]
    return [path if word in files else word for word in words] if files else [*words, path]


def run(tried: list[Attempt], folder: Path) -> list[tuple[Attempt, int, str]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COLOCATE_", "KUBE"))}
    # Nothing of this machine is touched, whatever a command does.
    elsewhere = {
        "COLOCATE_KUBELET_ROOT": str(folder / "kubelet"),
        "COLOCATE_CONTROL_SOCKET": str(folder / "agent.sock"),
        "COLOCATE_CPUS_SOCKET": str(folder / "cpus.sock"),
        "COLOCATE_CPUS_STATE_FOLDER": str(folder / "state"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.many_commands"],
        input=json.dumps([one.words for one in tried]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=folder,
        env={**env, **elsewhere, "HOME": str(folder), "PYTHONPATH": str(REPO)},
    )
    return [(one, code, said) for one, (code, said) in zip(tried, json.loads(done.stdout), strict=True)]


@pytest.mark.parametrize("token", [True, False], ids=["token", "no token"])
def test_a_file_that_cannot_be_written_is_all_that_is_said(token: bool, tmp_path: Path) -> None:
    """Whether a scheduler has made its token on this machine or not."""
    if token:
        (tmp_path / DEFAULT_TOKEN_FILE.name).write_text("secret\n")
    words = ["scheduler", "kube-config", "--write"]
    tried = [Attempt("", "", [*words, str(tmp_path)]), Attempt("", "", [*words, "written"])]
    (_, code, said), (_, written, warned) = run(tried, tmp_path)
    assert (code, written) == (2, 0)
    assert re.fullmatch(r"colocate: --write: cannot write [^\n]+\n", said), said
    assert ("has no token" in warned) is not token
    assert ("secret" in (tmp_path / "written").read_text()) is token


@pytest.mark.parametrize("kind", ["a folder", "below a file", "too long"])
def test_a_path_that_cannot_be_used_is_a_sentence_in_words(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    wrong = {
        "a folder": str(tmp_path / "folder"),
        "below a file": str(tmp_path / "file" / "x"),
        "too long": "/" + "x" * 300,
    }[kind]
    tried = list(attempts(wrong, tmp_path))
    assert len(tried) > 140
    for one, code, said in run(tried, tmp_path):
        told = f"{shlex.join(one.words)}\n{said}"
        assert not INWARD.search(said), told
        assert code in (0, 1, 2), told
        if code == 2 and one.command != "colocate doctor":
            sentence = re.sub(r"^\{.*\}\n", "", said, flags=re.MULTILINE)  # after what was logged
            assert re.fullmatch(r"(usage: .*\n)?colocate\b[^\n]*: [^\n]+\n", sentence, re.DOTALL), told


def test_what_is_inward_is_noticed() -> None:
    said = (
        "cannot listen: [Errno 13] Permission denied",
        "acts by <Act.TAINTS: 'taints'>",
        "E1118 04:13:44.302101   21903 parse_address.cc:69] UNKNOWN",
        "ValueError('x')",
    )
    assert all(map(INWARD.search, said))
    assert not INWARD.search("colocate: cannot listen on /x (permission denied); choose another path")
