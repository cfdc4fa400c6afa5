"""Addresses on the web that people state: whether one leads anywhere, how it is shown, and how it shows a token."""

import ipaddress
from urllib.parse import quote, urlsplit, urlunsplit

from colocate.cluster.secret import Secret


def leads_somewhere(url: str) -> bool:
    """Whether it is an http or https address with a host, and without what no path can be added to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port != 0
        and not (parts.query or parts.fragment or any(letter.isspace() for letter in url))
    )


def without_login(url: str) -> str:
    """As it may be shown: without the user and the password that it may have."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def has_login(url: str) -> bool:
    """Whether it has a user or a password in it."""
    return "@" in urlsplit(url).netloc


def with_token(url: str, token: Secret) -> str:
    """The same with a token as its password, which is the one way in which kube-scheduler can show one."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"scheduler:{quote(token.reveal(), safe='')}@{parts.netloc}"))


def is_local(url: str) -> bool:
    """Whether it leads to this machine, by its address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
