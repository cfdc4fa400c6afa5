"""Names of extended resources: which ones the kubelet and the API server accept."""

import re

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

# The API server checks `requests.<name>` as a quota key too, which costs the domain nine characters.
_MAX_DOMAIN = 253 - len("requests.")
_MAX_NAME = 63


def why_not_allowed(resource: str) -> str | None:
    """Why `resource` cannot be the name of an extended resource, or None where it can."""
    domain, slash, name = resource.partition("/")
    if not slash:
        return "it needs a domain, as in 'example.com/gpu'"
    if "/" in name:
        return "it may have one '/' only, between domain and name"
    if "kubernetes.io" in domain and (domain == "kubernetes.io" or domain.endswith(".kubernetes.io")):
        return "the domain kubernetes.io is reserved for Kubernetes itself"
    if domain.startswith("requests."):
        return "the domain may not begin with 'requests.', which names quotas"
    if len(domain) > _MAX_DOMAIN or not _DNS_SUBDOMAIN.fullmatch(domain):
        return (
            f"its domain must be lower-case letters, digits, '-' and '.', begin and end with a letter "
            f"or digit, and have at most {_MAX_DOMAIN} characters"
        )
    if len(name) > _MAX_NAME or not _QUALIFIED_NAME.fullmatch(name):
        return (
            f"the part after '/' must be letters, digits, '-', '_' and '.', begin and end with a letter "
            f"or digit, and have at most {_MAX_NAME} characters"
        )
    return None


def is_extended(resource: str) -> bool:
    """Whether a name found in a node's status is an extended resource, and not one of Kubernetes' own.

    It accepts more names than `why_not_allowed`: a resource that is there must be seen, however it got there.
    """
    domain, slash, _ = resource.partition("/")
    native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return bool(slash) and not native and not domain.startswith("requests.")
