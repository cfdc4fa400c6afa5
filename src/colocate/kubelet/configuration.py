"""The kubelet's settings in files: flags in its environment files, fields in its configuration file.

Text in, text out: a change replaces one value and leaves the rest unchanged, including comments. A flag overrides a
field. Nothing is written here.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from colocate.errors import UserError, system_reason
from colocate.kubelet.paths import DEFAULT_ROOT

FLAG_FILES = (
    DEFAULT_ROOT / "kubeadm-flags.env",
    Path("/etc/default/kubelet"),
    Path("/etc/sysconfig/kubelet"),
)
"""The files that hold the flags of kubeadm's kubelet; a later file overrides an earlier one."""
CONFIG_FILE = DEFAULT_ROOT / "config.yaml"
_MOST_BYTES = 1 << 20
_ASSIGNMENT = re.compile(r"^(?P<name>[A-Z_]+)=(?P<quote>[\"']?)(?P<value>.*?)(?P=quote)[ \t]*$", re.MULTILINE)


class KubeletSetting(msgspec.Struct, frozen=True):
    """A setting of the kubelet that is both a flag and a field."""

    flag: str
    field: str


RUNTIME_ENDPOINT = KubeletSetting("container-runtime-endpoint", "containerRuntimeEndpoint")
CPU_MANAGER = KubeletSetting("cpu-manager-policy", "cpuManagerPolicy")
MEMORY_MANAGER = KubeletSetting("memory-manager-policy", "memoryManagerPolicy")


class SettingPlace(msgspec.Struct, frozen=True):
    """A file where a setting is found, and its value."""

    file: Path
    value: str


def text_of(file: Path) -> str | None:
    """A file's text; None where there is no file, UserError where it cannot be read."""
    try:
        with file.open("rb") as opened:
            blob = opened.read(_MOST_BYTES + 1)
        if len(blob) > _MOST_BYTES:
            raise UserError(f"{file}: it has more than {_MOST_BYTES} bytes; give the kubelet's own file")
        return blob.decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({system_reason(error)}); run this as root") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: it is not text; give the kubelet's own file") from error


def find(setting: KubeletSetting, flag_files: Sequence[Path], config_file: Path) -> SettingPlace | None:
    """The place whose value the kubelet uses; None where no file has the setting."""
    for file in reversed(flag_files):
        text = text_of(file)
        if text is not None and (value := flag(text, setting.flag)) is not None:
            return SettingPlace(file, value)
    text = text_of(config_file)
    if text is not None and (value := field(text, setting.field)) is not None:
        return SettingPlace(config_file, value)
    return None


def flag(text: str, name: str) -> str | None:
    """The last value of a flag in a file of environment variables."""
    found = None
    for _, match in _flags(text, name):
        found = match["value"]
    return found


def with_flag(text: str, name: str, value: str | None) -> str:
    """The text with another value for the flag. None removes the flag; a missing flag is added at the end."""
    places = list(_flags(text, name))
    if places:
        for start, match in reversed(places):
            before, after = text[: start + match.start()], text[start + match.end() :]
            if value is None:
                text = (
                    before.rstrip(" ") + after if after[:1] in ("", " ", '"', "'", "\n") else before + after
                )
            else:
                text = f"{before}{match['lead']}--{name}={value}{after}"
        return text
    if value is None:
        return text
    for assignment in _ASSIGNMENT.finditer(text):
        if assignment["name"].endswith("ARGS"):
            flags = f"{assignment['value']} --{name}={value}".strip()
            line = f'{assignment["name"]}="{flags}"'
            return text[: assignment.start()] + line + text[assignment.end() :]
    return f'{text}{"" if text.endswith(chr(10)) or not text else chr(10)}KUBELET_KUBEADM_ARGS="--{name}={value}"\n'


def _flags(text: str, name: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Every occurrence of a flag in the value of a variable, with the position of that value in the text."""
    pattern = re.compile(rf"(?P<lead>(?:^|(?<=\s))\s*)--{re.escape(name)}(?:=|\s+)(?P<value>[^\s\"']+)")
    for assignment in _ASSIGNMENT.finditer(text):
        for match in pattern.finditer(assignment["value"]):
            yield assignment.start("value"), match


def field(text: str, name: str) -> str | None:
    """The value of a top-level field of a YAML configuration; None where it is absent or empty."""
    match = _field(text, name)
    if match is None:
        return None
    return match["value"].strip().strip("\"'") or None


def with_field(text: str, name: str, value: str | None) -> str:
    """The configuration with another value for a top-level field; None removes the line."""
    match = _field(text, name)
    if match is None:
        if value is None:
            return text
        return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{name}: {value}\n"
    if value is None:
        return text[: match.start()] + text[match.end() :].removeprefix("\n")
    return f"{text[: match.start()]}{name}: {value}{match['rest']}{text[match.end() :]}"


def _field(text: str, name: str) -> re.Match[str] | None:
    return re.search(
        rf"^{re.escape(name)}:[ \t]*(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^#\n]*?)(?P<rest>[ \t]*(?:[ \t]#[^\n]*)?)$",
        text,
        re.MULTILINE,
    )
