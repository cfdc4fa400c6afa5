"""Finds the API server and the login: from flags first, then kubeconfig, then the pod's service account.

Reads the environment and files; opens no connection. No repr of the result shows a secret.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from colocate.cluster import kubeconfig
from colocate.cluster.kubeconfig import ExecSpec, Placed
from colocate.cluster.secret import Secret
from colocate.errors import UserError, system_reason

E = TypeVar("E")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Pem(msgspec.Struct, frozen=True):
    """A certificate or a key: in a file, which may be replaced while we run, or as text."""

    file: Path | None = None
    data: Secret | None = None

    def read(self, what: str) -> str:
        """The text; UserError where the file cannot be read."""
        if self.file is None:
            return self.data.reveal() if self.data else ""
        try:
            return self.file.read_text()
        except (OSError, ValueError) as error:
            raise UserError(f"{what} {self.file} cannot be read: {system_reason(error)}") from error


class Login(msgspec.Struct, frozen=True):
    """The credentials for the server: the first of token file, token, exec and user name that is set, and the
    certificate."""

    token: Secret | None = None
    token_file: Path | None = None
    exec: ExecSpec | None = None
    username: str = ""
    password: Secret | None = None
    password_file: Path | None = None
    """The file of the password; it overrides the password."""
    certificate: Pem | None = None
    key: Pem | None = None
    act_as: str = ""
    act_as_groups: tuple[str, ...] = ()


class Connection(msgspec.Struct, frozen=True):
    """One API server, and our login to it."""

    server: str
    origin: str
    """Where the connection was found, for messages: a file and context, the flags, or the service account."""
    namespace: str = "default"
    authority: Pem | None = None
    """The trusted certificate authority; None means the machine's own list."""
    server_name: str = ""
    """The name in the server's certificate, if it differs from the host of the address."""
    insecure: bool = False
    proxy: Secret | None = None
    """The address of the proxy, which may hold a password."""
    login: Login = Login()


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Connection flags of a command line; they override everything else."""

    kubeconfig: Path | None = None
    context: str = ""
    server: str = ""
    namespace: str = ""
    token: Secret | None = None
    token_file: Path | None = None
    certificate_authority: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    insecure: bool = False
    """Do not check the server's certificate. Only the flag can switch this on, never a file alone."""


class Remedies(msgspec.Struct, frozen=True):
    """Remedies for error messages: how the user can set what is missing. The defaults fit a command with the flags
    above."""

    kubeconfig: str = "a kubeconfig with --kubeconfig or KUBECONFIG, an address with --server"
    context: str = "choose one with --context"
    """How to choose a context; empty where the user cannot."""
    insecure: str = "say --insecure-skip-tls-verify"
    """How to allow insecure connections; empty where the user cannot."""


def find(
    flags: Flags | None = None,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
    remedies: Remedies = Remedies(),  # noqa: B008 - frozen
) -> Connection:
    """The connection to use; UserError where there is none or it is not valid."""
    flags = flags or Flags()
    environ = os.environ if environ is None else environ
    found = _base(flags, environ, home, service_account, remedies)
    return checked(_with_flags(found, flags, environ), remedies.insecure)


def _base(
    flags: Flags, environ: Mapping[str, str], home: Path | None, account: Path, remedies: Remedies
) -> Connection:
    if flags.kubeconfig is not None:
        config = kubeconfig.load([flags.kubeconfig.expanduser().absolute()], must_exist=True)
    else:
        config = kubeconfig.load(_default_files(environ, home), must_exist=False)
    if config.is_empty and flags.context:
        raise UserError(f"--context {flags.context}: there is no kubeconfig; give one with --kubeconfig")
    if not config.is_empty and (flags.context or config.current_context or not flags.server):
        return _from_kubeconfig(config, flags, remedies)
    if flags.server:
        return Connection(flags.server, "the flags")
    if "KUBERNETES_SERVICE_HOST" in environ and (account / "token").exists():
        return _in_cluster(environ, account)
    # As in kubectl, some of the named files may be missing; but it is an error if all are.
    files = _default_files(environ, home) if environ.get("KUBECONFIG") else []
    if files and not any(file.exists() for file in files):
        names = " and ".join(map(str, files))
        raise UserError(f"KUBECONFIG names {names}, and there is no such file; correct it, or unset it")
    raise UserError(
        f"no API server is known: give {remedies.kubeconfig}, or run in a pod with a service account"
    )


def _default_files(environ: Mapping[str, str], home: Path | None) -> list[Path]:
    if named := environ.get("KUBECONFIG", ""):
        return [Path(one).expanduser().absolute() for one in named.split(os.pathsep) if one]
    try:
        return [(home or Path.home()) / ".kube" / "config"]
    except RuntimeError:
        return []  # Without a home folder there is no default file.


def _from_kubeconfig(config: kubeconfig.Merged, flags: Flags, remedies: Remedies) -> Connection:
    chosen = config.choose(flags.context, remedies.context)
    cluster, user = chosen.cluster.entry, chosen.user.entry
    if cluster.insecure and not (flags.insecure or flags.certificate_authority):
        raise UserError(
            f"{chosen.cluster.place}: insecure-skip-tls-verify is set, but a file alone cannot enable it; set "
            f"certificate-authority instead{_or(remedies.insecure)}"
        )
    server = flags.server or cluster.server
    if not server:
        raise UserError(f"{chosen.cluster.place}: server is missing; set it to the API server's address")
    return Connection(
        server=server,
        origin=chosen.origin,
        namespace=chosen.namespace or "default",
        authority=_pem(chosen.cluster, "certificate-authority", cluster.authority, cluster.authority_data),
        server_name=cluster.server_name,
        proxy=Secret(cluster.proxy) if cluster.proxy else None,
        login=Login(
            token=Secret(user.token) if user.token else None,
            token_file=chosen.user.file(user.token_file),
            exec=chosen.exec_spec(),
            username=user.username,
            password=Secret(user.password) if user.password else None,
            certificate=_pem(
                chosen.user, "client-certificate", user.client_certificate, user.client_certificate_data
            ),
            key=_pem(chosen.user, "client-key", user.client_key, user.client_key_data),
            act_as=user.act_as,
            act_as_groups=user.act_as_groups,
        ),
    )


def _pem(at: Placed[E], field: str, name: str, data: str) -> Pem | None:
    # Inline data overrides a file, as in kubectl.
    if decoded := at.decoded(f"{field}-data", data):
        return Pem(data=decoded)
    file = at.file(name)
    return Pem(file=file) if file else None


def _in_cluster(environ: Mapping[str, str], account: Path) -> Connection:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = account / "namespace"
    try:
        named = namespace.read_text().strip() if namespace.exists() else ""
    except OSError as error:
        raise UserError(f"service account: {namespace} cannot be read: {system_reason(error)}") from error
    return Connection(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        origin=f"the service account in {account}",
        namespace=named or "default",
        authority=Pem(file=account / "ca.crt") if (account / "ca.crt").exists() else None,
        login=Login(token_file=account / "token"),
    )


def _with_flags(found: Connection, flags: Flags, environ: Mapping[str, str]) -> Connection:
    login = found.login
    if flags.token or flags.token_file:
        login = Login(token=flags.token, token_file=flags.token_file, act_as=login.act_as)
    if bool(flags.client_certificate) != bool(flags.client_key):
        raise UserError("--client-certificate and --client-key go together: give both")
    if flags.client_certificate and flags.client_key:
        login = msgspec.structs.replace(
            login, certificate=Pem(file=flags.client_certificate), key=Pem(file=flags.client_key)
        )
    authority = found.authority
    if flags.certificate_authority:
        authority = Pem(file=flags.certificate_authority)
    server = (flags.server or found.server).rstrip("/")
    return msgspec.structs.replace(
        found,
        server=server,
        namespace=flags.namespace or found.namespace,
        authority=None if flags.insecure else authority,
        insecure=flags.insecure,
        proxy=found.proxy or _proxy(server, environ),
        login=login,
    )


def _proxy(server: str, environ: Mapping[str, str]) -> Secret | None:
    address = proxy_for(server, environ)
    return Secret(address) if address else None


def checked(found: Connection, insecurely: str) -> Connection:
    """The connection, if it is valid; otherwise UserError.

    `insecurely` says how the user can allow insecure connections; empty where that is not possible.
    """
    try:
        address = urlsplit(found.server)
        host, _ = address.hostname, address.port
    except ValueError as error:
        raise UserError(f"{found.origin}: server {found.server!r} is not an address: {error}") from error
    if address.scheme not in ("http", "https") or not host:
        raise UserError(
            f"{found.origin}: server {found.server!r} is not an address; write it as https://HOST:PORT"
        )
    login = found.login
    shown = login.token or login.token_file or login.exec or login.password or login.password_file
    if address.scheme == "http" and shown and host not in _LOOPBACK and not found.insecure:
        raise UserError(
            f"{found.origin}: server {found.server} would get the credential in clear text; use "
            f"https{_or(insecurely)}"
        )
    proxy = urlsplit(found.proxy.reveal()) if found.proxy else None
    if proxy and proxy.scheme not in ("http", "https"):
        raise UserError(
            f"{found.origin}: the proxy {proxy.hostname} is not an http or https proxy; use one of these"
        )
    if bool(login.certificate) != bool(login.key):
        raise UserError(
            f"{found.origin}: client-certificate and client-key go together; one of them is missing"
        )
    return found


def _or(remedy: str) -> str:
    return f", or {remedy}" if remedy else ""


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """The proxy's address by HTTP_PROXY, HTTPS_PROXY and NO_PROXY; empty where the server is reached directly."""
    address = urlsplit(server)
    named = {name.lower(): value for name, value in environ.items() if name.lower().endswith("_proxy")}
    host = address.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or _is_exempt(host, named.get("no_proxy", "")):
        return ""
    return named.get(f"{address.scheme}_proxy", "")


def _is_exempt(host: str, exempt: str) -> bool:
    return any(_matches(host, one.strip().lower()) for one in exempt.split(",") if one.strip())


def _matches(host: str, pattern: str) -> bool:
    if pattern == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        # A name: it matches itself and its subdomains.
        name = pattern.removeprefix("*").lstrip(".")
        return host == name or host.endswith(f".{name}")
