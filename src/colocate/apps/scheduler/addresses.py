"""Addresses on the web that people state: whether one leads anywhere, and how it is shown."""

from urllib.parse import urlsplit, urlunsplit


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
