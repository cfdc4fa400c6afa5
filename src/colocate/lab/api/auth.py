"""Authenticates requests by bearer token or client certificate.

Service account tokens are signed here and are valid until they expire or their account is deleted. A request
without a credential is from the anonymous user; an invalid credential is refused.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from colocate.clock import Clock
from colocate.lab.api.changes import StoreKey
from colocate.lab.api.objects import uid_of
from colocate.lab.api.resources import SERVICE_ACCOUNTS
from colocate.lab.api.status import unauthorized
from colocate.lab.api.store import ObjectStore
from colocate.lab.api.users import ANONYMOUS, SERVICE_ACCOUNT, User, known, service_account

ISSUER = "https://kubernetes.default.svc.cluster.local"
_HEADER = b'{"alg":"HS256","typ":"JWT"}'


class _Claims(msgspec.Struct):
    iss: str
    sub: str
    aud: list[str]
    iat: int
    exp: int
    uid: str


class Authenticator:
    """Finds the user of a credential."""

    def __init__(self, store: ObjectStore, clock: Clock, tokens: Mapping[str, User] | None = None) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, User] = dict(tokens or {})

    def add_token(self, token: str, user: User) -> None:
        """Accept `token` as the credential of `user`."""
        self._tokens[token] = user

    def remove_token(self, token: str) -> None:
        self._tokens.pop(token, None)

    def user(self, authorization: str | None, certificate: Mapping[str, Any] | None) -> User:
        """The user of a request; raises the Status of an invalid credential."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            return self.bearer(token.strip())
        return _certificate_user(certificate) if certificate else ANONYMOUS

    def bearer(self, token: str) -> User:
        if (found := self._tokens.get(token)) is not None:
            return found
        user = self._service_account(token)
        if user is None:
            raise unauthorized()
        return user

    def issue(self, namespace: str, name: str, uid: str, seconds: int, audiences: list[str]) -> str:
        """A token for a service account."""
        now = int(self._clock.time())
        subject = f"{SERVICE_ACCOUNT}{namespace}:{name}"
        claims = _Claims(ISSUER, subject, audiences or [ISSUER], now, now + seconds, uid)
        signed = _base64(_HEADER) + b"." + _base64(msgspec.json.encode(claims))
        return (signed + b"." + self._signature(signed)).decode()

    def _service_account(self, token: str) -> User | None:
        signed, dot, signature = token.encode("utf-8", "replace").rpartition(b".")
        if not dot or not hmac.compare_digest(signature, self._signature(signed)):
            return None
        claims = msgspec.json.decode(_unbase64(signed.partition(b".")[2]), type=_Claims)
        if claims.exp <= self._clock.time():
            return None
        namespace, _, name = claims.sub.removeprefix(SERVICE_ACCOUNT).partition(":")
        account = self._store.get(StoreKey(SERVICE_ACCOUNTS.storage, namespace, name))
        if account is None or uid_of(account.body) != claims.uid:
            return None
        return service_account(namespace, name, claims.uid)

    def _signature(self, signed: bytes) -> bytes:
        key = self._store.keep("token-key", lambda: secrets.token_bytes(32))
        return _base64(hmac.digest(key, signed, hashlib.sha256))


def _certificate_user(certificate: Mapping[str, Any]) -> User:
    """A verified certificate: its common name is the user, its organisations are the groups."""
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    name = next((value for field, value in pairs if field == "commonName"), "")
    if not name:
        raise unauthorized()
    return known(name, *(value for field, value in pairs if field == "organizationName"))


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _unbase64(data: bytes) -> bytes:
    return base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))
