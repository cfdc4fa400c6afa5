"""Which proxy the environment names for an address: HTTP_PROXY, HTTPS_PROXY and NO_PROXY. Pure."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(server: str, environ: Mapping[str, str]) -> str:
    """The proxy's address; empty where there is none or the server is to be reached directly."""
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
        # A name, then: it stands for itself and for what is below it.
        name = pattern.removeprefix("*").lstrip(".")
        return host == name or host.endswith(f".{name}")
