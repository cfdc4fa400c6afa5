"""`colocate completion`: prints a shell's completion script, made from the parsers."""

import argparse
from collections.abc import Iterator

from colocate.cli.commands import Commands
from colocate.cli.main import GROUPS, whole_parser
from colocate.cli.parser import CommandParser

_BASH = """\
# bash completion for colocate: source it, or save it as /etc/bash_completion.d/colocate
_colocate() {
    local cur=${COMP_WORDS[COMP_CWORD]} path= word words i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case "$path $word" in
@STEPS@
        esac
    done
    case "$path" in
@WORDS@
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _colocate colocate
"""

_ZSH = """\
#compdef colocate
# zsh completion for colocate: save it as _colocate in a folder of $fpath
_colocate() {
    local path= word words i
    for ((i = 2; i < CURRENT; i++)); do
        word=${(P)${:-words}[i]}
        case "$path $word" in
@STEPS@
        esac
    done
    local -a offered
    case "$path" in
@WORDS@
    esac
    compadd -- $offered
    _files
}
compdef _colocate colocate
"""

_FISH = """\
# fish completion for colocate: save it as ~/.config/fish/completions/colocate.fish
function __colocate_path
    set -l path
    for word in (commandline -opc)[2..]
        switch "$path $word"
@STEPS@
        end
    end
    echo $path
end
@WORDS@
"""


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "completion",
        help=GROUPS["completion"],
        description="Print a completion script for a shell.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    words = dict(_words(whole_parser(), ""))
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words), end="")


def _words(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """By the words of a command: the words that may follow."""
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    commands: dict[str, CommandParser] = groups[0].choices if groups else {}
    yield path, (*commands, *flags)
    for name, command in commands.items():
        yield from _words(command, f"{path} {name}".strip())


def _steps(words: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Every command with the words before it, and the path that it leads to."""
    for path in words:
        if path:
            before, _, name = path.rpartition(" ")
            yield f"{before} {name}", path


def _bash(words: dict[str, tuple[str, ...]]) -> str:
    steps = "\n".join(f"            '{step}') path='{path}' ;;" for step, path in _steps(words))
    offered = "\n".join(f"        '{path}') words='{' '.join(of)}' ;;" for path, of in words.items())
    return _BASH.replace("@STEPS@", steps).replace("@WORDS@", offered)


def _zsh(words: dict[str, tuple[str, ...]]) -> str:
    steps = "\n".join(f"            '{step}') path='{path}' ;;" for step, path in _steps(words))
    offered = "\n".join(f"        '{path}') offered=({' '.join(of)}) ;;" for path, of in words.items())
    text = _ZSH.replace("@STEPS@", steps).replace("@WORDS@", offered)
    # zsh uses `path` and `words` itself: PATH, and the line that is completed.
    return (
        text.replace("path", "way")
        .replace("local way= word words i", "local way= word i")
        .replace("${(P)${:-words}[i]}", "$words[i]")
    )


def _fish(words: dict[str, tuple[str, ...]]) -> str:
    steps = "\n".join(
        f"            case '{step}'\n                set path '{path}'" for step, path in _steps(words)
    )
    offered = "\n".join(
        f"complete -c colocate -n 'test (__colocate_path) = \"{path}\"' -a '{' '.join(of)}'"
        for path, of in words.items()
    )
    return _FISH.replace("@STEPS@", steps).replace("@WORDS@", offered)
