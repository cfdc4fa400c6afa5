"""What the documents show: their blocks, the commands in these, and the words in backquotes."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

REPO = Path(__file__).parents[2]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_OPEN = re.compile(r"\bdo\b(?!.*\bdone\b)", re.DOTALL)


class ShownBlock(msgspec.Struct, frozen=True):
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"


class ShownCommand(msgspec.Struct, frozen=True):
    """A command with all its lines, and what is shown below it."""

    place: str
    text: str
    output: str


def blocks(*languages: str) -> list[ShownBlock]:
    """Every block of these languages; of all, where none is named."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for match in _BLOCK.finditer(text):
            indent, language, inside = match.groups()
            line = text.count("\n", 0, match.start()) + 1
            lines = [each.removeprefix(indent) for each in inside.splitlines(keepends=True)]
            name = str(document.relative_to(REPO))
            found.append(ShownBlock(name, line, language, "".join(lines)))
    return [each for each in found if not languages or each.language in languages]


def commands() -> list[ShownCommand]:
    """Every command of every console block: what follows a prompt, `$` or root's `#`, to its end."""
    return [each for block in blocks("console") for each in _commands(block)]


def _commands(block: ShownBlock) -> Iterator[ShownCommand]:
    command, output = "", ""
    for line in block.text.splitlines():
        if command and _goes_on(command):
            command += "\n" + line
        elif line.startswith(("$ ", "# ")):
            if command:
                yield ShownCommand(block.place, command, output)
            command, output = line[2:], ""
        else:
            output += line + "\n"
    yield ShownCommand(block.place, command, output)


def _goes_on(command: str) -> bool:
    """Whether a shell would wait for more: after a backslash, within quotes, within a loop."""
    return command.endswith("\\") or command.count("'") % 2 == 1 or bool(_OPEN.search(command))


def spans() -> list[tuple[str, str]]:
    """Everything in backquotes outside of blocks, with its document."""
    found = []
    for document in DOCUMENTS:
        text = _BLOCK.sub("", document.read_text())
        for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
            found.append((str(document.relative_to(REPO)), " ".join(match[1].split())))
    return found
