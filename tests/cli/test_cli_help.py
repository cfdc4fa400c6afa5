"""Help, mistyped words and completion, for every command there is."""

import argparse
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from tests.cli.running import Ended, colocate

from colocate.cli.examples import EXAMPLES
from colocate.cli.main import whole_parser


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if parser.get_default("run"):
        yield parser
    for command in groups[0].choices.values() if groups else ():
        yield from leaves(command)


COMMANDS = {command.prog: command for command in leaves(whole_parser())}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    assert EXAMPLES[command]
    assert all(f"$ {example}\n" in COMMANDS[command].format_help() for example in EXAMPLES[command])


def test_no_example_is_of_a_command_that_is_not_there() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("example", [example for lines in EXAMPLES.values() for example in lines])
def test_every_example_can_be_typed(example: str) -> None:
    """As far as its words go: nothing is run."""
    inner = example.removeprefix("source <(").removesuffix(")").partition(" > ")[0]
    program, *words = shlex.split(inner)
    assert program == "colocate"
    assert whole_parser().parse_args(words).run


@pytest.mark.parametrize(
    ("words", "prog"),
    [
        (("memory", "status", "--wach"), "colocate memory status"),
        (("memory", "stauts"), "colocate memory"),
        (("scheduler", "config", "check"), "colocate scheduler config check"),
        (("--vresion",), "colocate"),
    ],
)
async def test_the_usage_is_that_of_the_command_that_was_mistyped(words: tuple[str, ...], prog: str) -> None:
    ended = await colocate(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"usage: {prog} [-h]")
    assert f"\n{prog}: " in ended.err


async def test_an_ascii_terminal_gets_signs_that_look_alike() -> None:
    ended = await colocate(
        "topology",
        "show",
        "--shape",
        "1x1x2x2x2",
        LC_ALL="C",
        PYTHONUTF8="0",
        LANG="C",
        PYTHONIOENCODING="ascii",
    )
    assert ended.code == 0
    assert "CCX 0  .. .." in ended.out
    assert "\\u" not in ended.out
    assert ended.out.isascii()


async def test_data_says_the_same_on_an_ascii_terminal() -> None:
    words = ("doctor", "agent", "--no-cluster", "--kubelet-root", "/é…", "-o", "json")
    plain, ascii_only = await colocate(*words), await colocate(*words, PYTHONIOENCODING="ascii")
    assert ascii_only.out.isascii()
    assert ascii_only.out.encode().decode("unicode_escape") == plain.out


def offered(shell: str, line: str, script: str) -> set[str]:
    """What a real shell offers after this line."""
    drive = {
        "bash": f"{script}\nCOMP_WORDS=({line} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _colocate\n"
        'printf "%s\\n" "${COMPREPLY[@]}"',
        "zsh": f"compdef() {{ :; }}; _files() {{ :; }}; compadd() {{ shift; print -l -- $@; }}\n{script}\n"
        f"words=({line} ''); CURRENT=$#words; _colocate",
        "fish": f"{script}\ncomplete -C '{line} '; complete -C '{line} --'",
    }[shell]
    done = subprocess.run([shell, "-c", drive], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return {row.split("\t")[0] for row in done.stdout.splitlines()}


@pytest.mark.parametrize(
    "shell",
    ["bash", *(pytest.param(one, marks=pytest.mark.needs(one)) for one in ("zsh", "fish"))],
)
async def test_a_shell_completes_commands_and_flags(shell: str) -> None:
    script = await colocate("completion", shell)
    assert script.code == 0
    assert {"agent", "memory", "--version"} <= offered(shell, "colocate", script.out)
    assert {"status", "explain"} <= offered(shell, "colocate memory", script.out)
    assert "--watch" in offered(shell, "colocate memory status", script.out)
    assert "--set" in offered(shell, "colocate scheduler config check", script.out)
    assert "status" not in offered(shell, "colocate memory status", script.out)


async def test_an_unknown_shell_is_refused() -> None:
    ended = await colocate("completion", "tcsh")
    assert ended == Ended(2, "", ended.err)
    assert "choose from" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["memroy"],
            "colocate: there is no command 'memroy'; did you mean 'memory'? 'colocate --help' lists all\n",
        ),
        (["xyz"], "colocate: there is no command 'xyz'; 'colocate --help' lists what there is\n"),
        (["memory", "statsu"], "did you mean 'status'? 'colocate memory --help' lists all\n"),
        (
            ["memory", "status", "-o", "jsno"],
            "argument -o/--output: there is no 'jsno'; did you mean 'json'?\n",
        ),
        (
            ["memory", "status", "--sockte", "x"],
            "unrecognized arguments: --sockte x; did you mean '--socket'?\n",
        ),
    ],
)
async def test_a_mistyped_word_is_answered_with_the_nearest(words: list[str], said: str) -> None:
    ended = await colocate(*words)
    assert ended.code == 2
    assert ended.err.endswith(said)
