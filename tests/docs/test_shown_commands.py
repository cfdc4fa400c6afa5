"""Every command that a document shows can be typed: its words, options, targets and files are there."""

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.shown import REPO, ShownCommand, commands, spans

from colocate.agent.configuration import AGENT
from colocate.cli.main import whole_parser
from colocate.config.override import settable
from colocate.scheduler.settings import SCHEDULER

MAKEFILE = (REPO / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
EXTRAS = set(tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"])
PARSER = whole_parser()
SHOWN = commands()
TYPED = [
    (document, text)
    for document, text in spans()
    if text.startswith(("colocate ", "make ", "kubectl ", "pip ", "pipx "))
]

OTHERS = {
    "cat": "shows a file, which test_shown_blocks reads",
    "cp": "of every machine",
    "mkdir": "of every machine",
    "tar": "of every machine",
    "sed": "of every machine",
    "openssl": "of every machine",
    "for": "of the shell; what it does is looked at by itself",
    "do": "of the shell",
    "done": "of the shell",
    "python3": "makes a venv",
    "systemctl": "of a node with systemd",
    "virsh": "of a host with libvirt",
    "kube-scheduler": "upstream's, tried by hand with a real one",
    "pipx": "runs pre-commit, which no test downloads",
}
"""Programs whose words nothing here can judge, and why."""

NOT_OURS = {
    "--container-runtime-endpoint": "of the kubelet",
    "--root-dir": "of the kubelet",
    "--require-hashes": "of pip",
    "--config": "of kube-scheduler, too",
    "--tail": "of kubectl logs",
    "--previous": "of kubectl logs",
    "--validate": "of kubectl",
}
"""Long options that documents name and that are another program's."""


def simple(command: str) -> Iterator[list[str]]:
    """The words of every simple command in a line of the shell, without redirections."""
    joined = (
        command.replace("\\\n", " ").replace("\n", " ; ")
        if "'" not in command
        else command.replace("\\\n", " ")
    )
    joined = re.sub(r"\$\((.*?)\)", r" ; \1 ; ", joined)
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    skip = False
    for word in lexer:
        if set(word) <= set(";&|"):
            yield words
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
    yield words


def run_of(words: list[str]) -> list[str]:
    """Without variables that are set before a command, and what begins a loop's body."""
    while words and (words[0] in ("do", "then") or re.fullmatch(r"\w+=.*", words[0])):
        words = words[1:]
    return words


def check(words: list[str]) -> None:
    words = run_of(words)
    if not words:
        return
    program, *rest = words
    for word in rest:
        if re.match(r"(examples|tests|tools|docs)/", word):
            assert (REPO / word.split("::")[0]).exists(), f"{word} is not there"
    if program.rpartition("/")[2] == "colocate":
        check_ours(rest)
    elif program == "make":
        check_make(rest)
    elif program == "kubectl":
        check_kubectl(rest)
    elif program.rpartition("/")[2] == "pip":
        check_pip(rest)
    else:
        assert program in OTHERS, f"nothing here knows {program}: tell in OTHERS why it cannot be tried"


def check_ours(words: list[str]) -> None:
    assert PARSER.parse_args(words).run
    for at, word in enumerate(words):
        if word == "--set":
            path = words[at + 1].partition("=")[0]
            assert path in settable(AGENT) or path in settable(SCHEDULER), f"--set {path}: no such field"


def check_make(words: list[str]) -> None:
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            assert name in TARGETS, f"make has no target {name}"
        else:
            assert f"$({name})" in MAKEFILE or f"{name} ?=" in MAKEFILE or name.startswith("COLOCATE_"), name
        if name == "ARGS":
            for each in shlex.split(value):
                assert not each.startswith("tests/") or (REPO / each).exists(), each


def check_kubectl(words: list[str]) -> None:
    inner = words[words.index("--") + 1 :] if "--" in words else []
    if inner:
        check(inner)
    for at, word in enumerate(words):
        if word in ("-f", "--filename", "--patch-file") and words[at + 1 :] and words[at + 1] != "-":
            assert (REPO / words[at + 1]).exists(), f"{words[at + 1]} is not there"


def check_pip(words: list[str]) -> None:
    """From this repository, until the distribution is published, or what it has pinned."""
    assert words[0] == "install"
    if "-r" in words:
        assert words[1:3] == ["--require-hashes", "-r"]
        assert (REPO / words[3]).exists(), f"{words[3]} is not there"
        return
    for what in words[1:]:
        if what in ("--no-deps", "--no-index", "--no-build-isolation"):
            continue
        found = re.fullmatch(r"\.(?:\[(\w+)\])?", what)
        assert found, f"pip install {what}: not of this repository"
        assert found[1] is None or found[1] in EXTRAS


def test_there_are_as_many_as_one_sees() -> None:
    assert len(SHOWN) > 90
    assert len(TYPED) > 120


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: f"{shown.place} {shown.text[:40]}")
def test_a_command_of_a_block_can_be_typed(shown: ShownCommand) -> None:
    for words in simple(shown.text):
        check(words)


@pytest.mark.parametrize(
    "broken", ["colocate memory stauts", "make tset", "kubectl apply -f examples/no.yaml"]
)
def test_a_command_that_cannot_be_typed_is_noticed(broken: str) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        check(broken.split())


@pytest.mark.parametrize(("document", "text"), TYPED)
def test_a_command_in_a_sentence_is_there(document: str, text: str) -> None:
    """In sentences a command is often named without its arguments: then it is enough that there is one."""
    words = next(simple(text.replace("…", "")))
    if words[0] != "colocate":
        check(words)
        return
    parser, rest = found(PARSER, words[1:])
    flags = [word for word in rest if word.startswith("-")]
    assert all(flag.partition("=")[0] in parser._option_string_actions for flag in flags), text
    if len(rest) > len(flags) and parser.get_default("run"):
        check_ours(words[1:])
    else:
        assert not [word for word in rest if not word.startswith("-")], f"{document}: {text}"


def found(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the command that words begin with, and the words after it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            return found(action.choices[words[0]], words[1:])
    return parser, words


def every_option(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from every_option(command)


def test_every_option_that_is_named_is_one() -> None:
    known = {*every_option(PARSER), *NOT_OURS}
    named = {
        (document, option)
        for document, text in spans()
        if text.startswith("-")
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
    }
    assert len(named) > 50
    assert {(document, option) for document, option in named if option not in known} == set()


def test_every_variable_that_is_named_is_read() -> None:
    sources = [*(REPO / "src").rglob("*.py"), *(REPO / "tests").rglob("*.py"), Path(REPO / "Makefile")]
    read = {one.variable for document in (AGENT, SCHEDULER) for one in settable(document).values()}
    for source in sources:
        if source != Path(__file__):
            read |= set(re.findall(r"COLOCATE_[A-Z_]+[A-Z]", source.read_text()))
    named = {name for _, text in spans() for name in re.findall(r"COLOCATE_[A-Z_]+[A-Z]", text)}
    assert named
    assert named <= read


def test_a_scheduler_that_is_started_by_hand_is_told_its_cluster() -> None:
    """Outside a pod there is no service account; only the embedded cluster exports KUBECONFIG."""
    for shown in SHOWN:
        for words in map(run_of, simple(shown.text)):
            ours = words[:1] == ["colocate"] and words[1:3] in (
                ["scheduler", "serve"],
                ["scheduler", "kube-config"],
            )
            if ours and not shown.place.startswith(("docs/embedded-cluster.md", "docs/extender.md")):
                assert "--kubeconfig" in words, shown


def test_manifests_lie_beside_manifests_and_say_which_namespace_they_need() -> None:
    for path in sorted((REPO / "examples").rglob("*.yaml")):
        documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
        patch = all("kind" not in one and "spec" in one for one in documents)
        assert patch is (path.parent.name == "patches"), path
        made = {one["metadata"]["name"] for one in documents if one.get("kind") == "Namespace"}
        for one in documents:
            needed = (one.get("metadata") or {}).get("namespace", "default")
            first = (
                f"-f examples/{path.parent.name}/namespace.yaml -f examples/{path.parent.name}/{path.name}"
            )
            there = needed in {"default", "kube-system", "kube-public", *made}
            assert there or path.name == "pod.yaml" or first in path.read_text(), (path, needed)
