"""Users of the API: names and groups."""

import msgspec

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
SERVICE_ACCOUNT = "system:serviceaccount:"


class User(msgspec.Struct, frozen=True):
    """A user's name and groups, from a credential."""

    name: str
    groups: frozenset[str] = frozenset()
    uid: str = ""

    @property
    def is_master(self) -> bool:
        return MASTERS in self.groups


ANONYMOUS = User("system:anonymous", frozenset({UNAUTHENTICATED}))


def known(name: str, *groups: str, uid: str = "") -> User:
    """An authenticated user."""
    return User(name, frozenset({AUTHENTICATED, *groups}), uid)


def service_account(namespace: str, name: str, uid: str = "") -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return known(f"{SERVICE_ACCOUNT}{namespace}:{name}", *groups, uid=uid)


def from_name(name: str, groups: frozenset[str]) -> User:
    """The user for an impersonation."""
    if name.startswith(SERVICE_ACCOUNT) and name.count(":") == 3:
        _, _, namespace, account = name.split(":")
        found = service_account(namespace, account)
        return User(name, found.groups | groups)
    if name == ANONYMOUS.name:
        return User(name, ANONYMOUS.groups | groups)
    return known(name, *groups)
