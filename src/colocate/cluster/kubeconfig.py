"""Reads kubeconfig files, merges them as kubectl does, and chooses one context.

The first file that names a cluster, user, context or the current context wins, entry by entry; paths are relative
to the folder of their file. The caller decides which files to read and what overrides them.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import yaml

from colocate.cluster.secret import Secret
from colocate.errors import UserError, system_reason

E = TypeVar("E")


class Placed(msgspec.Struct, Generic[E], frozen=True):
    """An entry and its place, for messages and relative paths."""

    entry: E
    place: str
    source: Path

    def file(self, name: str) -> Path | None:
        return self.source.parent / Path(name).expanduser() if name else None

    def decoded(self, field: str, text: str) -> Secret | None:
        """Decode a base64 field to text."""
        if not text:
            return None
        try:
            return Secret(base64.b64decode("".join(text.split()), validate=True).decode())
        except ValueError as error:
            raise UserError(
                f"{self.place}: {field} is not base64 of a PEM text; copy it again, or give a file"
            ) from error


class ExecVariable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A command that prints a credential."""

    command: str
    api_version: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[ExecVariable, ...] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False
    place: str = ""
    folder: Path = Path()
    cluster: dict[str, str] = {}
    """The cluster's details, for commands that ask for them."""

    def __repr__(self) -> str:
        # Arguments and environment of such commands often hold secrets.
        return f"ExecSpec(command={self.command!r}, …)"


class KubeconfigCluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    authority: str = msgspec.field(default="", name="certificate-authority")
    authority_data: str = msgspec.field(default="", name="certificate-authority-data")
    insecure: bool = msgspec.field(default=False, name="insecure-skip-tls-verify")
    server_name: str = msgspec.field(default="", name="tls-server-name")
    proxy: str = msgspec.field(default="", name="proxy-url")


class KubeconfigUser(msgspec.Struct, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecSpec | None = None
    auth_provider: dict[str, object] | None = None
    act_as: str = msgspec.field(default="", name="as")
    act_as_groups: tuple[str, ...] = msgspec.field(default=(), name="as-groups")

    def __repr__(self) -> str:
        return "User(…)"


class Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """The cluster, user and namespace of a context."""

    origin: str
    cluster: Placed[KubeconfigCluster]
    user: Placed[KubeconfigUser]
    namespace: str

    def exec_spec(self) -> ExecSpec | None:
        """The command that prints the user's credential, with the cluster's details if it wants them."""
        user, cluster = self.user.entry, self.cluster.entry
        if user.auth_provider is not None and not (user.token or user.token_file or user.exec):
            raise UserError(
                f"{self.user.place}: auth-provider was removed from Kubernetes in 1.26; use the exec plugin of "
                "your provider instead"
            )
        if user.exec is None:
            return None
        told = {
            "server": cluster.server,
            "certificate-authority-data": cluster.authority_data,
            "tls-server-name": cluster.server_name,
        }
        return msgspec.structs.replace(
            user.exec,
            place=f"{self.user.place}.exec",
            folder=self.user.source.parent,
            cluster={field: text for field, text in told.items() if text},
        )


class Merged(msgspec.Struct, frozen=True):
    """All files merged."""

    files: list[Path] = []
    current_context: str = ""
    clusters: dict[str, Placed[KubeconfigCluster]] = {}
    users: dict[str, Placed[KubeconfigUser]] = {}
    contexts: dict[str, Placed[Context]] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.clusters or self.contexts or self.users)

    def choose(self, wanted: str, remedy: str) -> Chosen:
        """The context of that name, or the current one; `remedy` says how the user can choose one, if possible."""
        name = wanted or self.current_context
        if not name:
            raise UserError(
                f"{self._where}: current-context is not set; set it{f', or {remedy}' if remedy else ''} "
                f"({_known(self.contexts)})"
            )
        context = self.contexts.get(name)
        if context is None:
            field = "--context" if wanted else "current-context"
            raise UserError(
                f"{self._where}: {field} is {name!r}, but there is no such context; choose another "
                f"({_known(self.contexts)})"
            )
        cluster = _named(self.clusters, context.entry.cluster, f"{context.place}.cluster")
        user = Placed(KubeconfigUser(), f"{context.place}.user", context.source)
        if context.entry.user:
            user = _named(self.users, context.entry.user, f"{context.place}.user")
        return Chosen(context.place, cluster, user, context.entry.namespace)

    @property
    def _where(self) -> str:
        return ", ".join(map(str, self.files))


def _named(entries: Mapping[str, Placed[E]], name: str, place: str) -> Placed[E]:
    if name in entries:
        return entries[name]
    raise UserError(f"{place} is {name!r}, which does not exist; choose one of: {_known(entries)}")


def _known(entries: Iterable[str]) -> str:
    return ", ".join(sorted(entries)) or "there are none"


def load(files: Sequence[Path], must_exist: bool) -> Merged:
    """Read and merge files. Missing files are skipped unless they must exist, as in kubectl."""
    read = [(path, text) for path in files if (text := _read(path, must_exist)) is not None]
    merged = Merged([path for path, _ in read])
    for path, text in read:
        document = _parse(path, text)
        current = document.get("current-context") or ""
        if not isinstance(current, str):
            raise UserError(f"{path}: current-context is not a name")
        merged = msgspec.structs.replace(
            merged,
            current_context=merged.current_context or current,
            clusters=_entries(document, "cluster", KubeconfigCluster, path) | merged.clusters,
            users=_entries(document, "user", KubeconfigUser, path) | merged.users,
            contexts=_entries(document, "context", Context, path) | merged.contexts,
        )
    return merged


def _read(path: Path, must_exist: bool) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        if must_exist:
            raise UserError(f"the kubeconfig {path} does not exist; give another") from None
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f"the kubeconfig {path} cannot be read ({system_reason(error)}); give another"
        ) from error


def _parse(path: Path, text: str) -> dict[str, object]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        # The parser's message is not shown: it quotes the surrounding text, which may hold tokens.
        raise UserError(f"the kubeconfig {path}{line} is not YAML; correct or replace it") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UserError(f"the kubeconfig {path} is not a mapping; correct or replace it")
    return document


def _entries(document: dict[str, object], word: str, shape: type[E], path: Path) -> dict[str, Placed[E]]:
    listed = document.get(f"{word}s") or []
    if not isinstance(listed, list):
        raise UserError(f"{path}: {word}s is not a list; correct it")
    found: dict[str, Placed[E]] = {}
    for number, item in enumerate(listed):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(name, str):
            raise UserError(f"{path}: {word}s[{number}] has no name; give it one")
        place = f"{path}: {word}s[{name}]"
        given = item.get(word) or {}
        if isinstance(given, dict):
            # An empty value means not set.
            given = {key: value for key, value in given.items() if value is not None}
        try:
            entry = msgspec.convert(given, shape)
        except msgspec.ValidationError as error:
            raise UserError(f"{place}.{word} cannot be read: {error}") from None
        found.setdefault(name, Placed(entry, place, path))
    return found
