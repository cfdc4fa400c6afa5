"""Errors of the API server and of the connection to it.

Every error says what was being done, to what, what was found, and what to do about it.
Pure: an answer in, an error out; callers decide what to raise and retry.
"""

import math
import re
from urllib.parse import urlsplit

import msgspec

from colocate.errors import ColocateError, Unavailable
from colocate.model.figures import amount

_PATCH_REJECTED = "the server rejected our request due to an error in our request"
_WHO = re.compile(r'User "([^"]*)" cannot')
_SHOWN = 300


class Doing(msgspec.Struct, frozen=True):
    """The requested operation in the words of RBAC, because refusals are about rights."""

    verb: str
    resource: str
    """plural[.group][/subresource]"""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{place}"


class _Details(msgspec.Struct, frozen=True):
    retryAfterSeconds: float | None = None


class ApiStatus(msgspec.Struct, frozen=True):
    """The fields of the API's Status object that are read."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """A Status of the API, or an error of Prometheus."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None
    error: str = ""
    errorType: str = ""


class ClusterError(ColocateError):
    """The base class of all errors of the cluster and of the connection to it."""


class ApiError(ClusterError):
    """The API server refused or failed."""

    def __init__(self, doing: Doing, status: ApiStatus) -> None:
        super().__init__(f"cannot {doing}: {status.message or status.reason or f'code {status.code}'}")
        self.doing = doing
        self.code = status.code
        self.reason = status.reason
        self.message = status.message


class NotFound(ApiError):
    """There is no such object, or no such resource on this server."""


class Conflict(ApiError):
    """The object has changed since the caller read it: read it again."""


class AlreadyExists(Conflict):
    """There is an object of that name."""


class PreconditionFailed(Conflict):
    """A `test` of a JSON patch failed, or a path is missing; the server does not say which."""


class Gone(ApiError):
    """The resourceVersion is older than the server's history: list again."""


class Invalid(ApiError):
    """The request breaks a rule of the API; the caller is at fault."""


class Unauthorized(ApiError):
    """The server does not accept the credential."""

    def __init__(self, doing: Doing, status: ApiStatus) -> None:
        super().__init__(doing, status)
        self.args = (
            f"cannot {doing}: the server does not accept the credential (401); "
            f"it may have expired: renew the token or certificate",
        )


class Forbidden(ApiError):
    """The user lacks a right; the message says which."""

    def __init__(self, doing: Doing, status: ApiStatus) -> None:
        super().__init__(doing, status)
        found = _WHO.search(status.message)
        self.user = found.group(1) if found else ""
        # A server also forbids what no right allows, such as a new object in a namespace that is being deleted.
        if found:
            place = f" in namespace {doing.namespace}" if doing.namespace else " in the whole cluster"
            remedy = f"grant {self.user} the verb {doing.verb} on {doing.resource}{place}"
            self.args = (f"{self}; {remedy}",)


class TooManyRequests(ApiError):
    """Not now: the server is busy, or a disruption budget is used up."""

    def __init__(self, doing: Doing, status: ApiStatus, retry_after: float | None) -> None:
        super().__init__(doing, status)
        self.retry_after = retry_after
        """Seconds that the server asks to wait; None where it does not say."""


class ServerError(ApiError):
    """The server failed, or answered something that cannot be read."""

    def __init__(self, doing: Doing, status: ApiStatus, retry_after: float | None = None) -> None:
        super().__init__(doing, status)
        self.retry_after = retry_after


class TooLong(ServerError):
    """The answer is longer than the bound."""


class Unreachable(ClusterError, Unavailable):
    """No answer: refused, dropped, or too slow."""

    def __init__(self, words: str, sent: bool = True) -> None:
        super().__init__(words)
        self.sent = sent
        """Whether the request may have reached the server; if not, retrying is safe."""


class Untrusted(Unreachable):
    """One side does not accept the other's certificate."""


def from_answer(doing: Doing, code: int, retry_after: str | None, body: bytes, json_patch: bool) -> ApiError:
    """The error for an answer with a code of 400 or above."""
    status = _read(code, body)
    pause = _pause(retry_after, status)
    match code:
        case 401:
            return Unauthorized(doing, status)
        case 403:
            return Forbidden(doing, status)
        case 404:
            return NotFound(doing, status)
        case 409:
            return (AlreadyExists if status.reason == "AlreadyExists" else Conflict)(doing, status)
        case 410:
            return Gone(doing, status)
        case 422 if json_patch and status.message == _PATCH_REJECTED:
            return PreconditionFailed(doing, status)
        case 429:
            return TooManyRequests(doing, status, pause)
        case _ if code >= 500:
            return ServerError(doing, status, pause)
    return Invalid(doing, status)


def from_status(doing: Doing, status: ApiStatus) -> ApiError:
    """The error for a Status in the middle of a watch."""
    return from_answer(doing, status.code or 500, None, msgspec.json.encode(status), json_patch=False)


def unreadable(doing: Doing, why: str) -> ServerError:
    """The error for a successful answer that cannot be decoded."""
    return ServerError(doing, ApiStatus(f"the answer cannot be read: {why}", "Unreadable", 200))


def too_long(doing: Doing, at_most: int, by: str = "") -> TooLong:
    """The error for an answer of more than `at_most` bytes; `by` names the setting of that bound."""
    why = f"it is longer than {amount(at_most)}{f' ({by})' if by else ''}"
    return TooLong(doing, ApiStatus(f"the answer cannot be read: {why}", "Unreadable", 200))


def redirected(doing: Doing, code: int, location: str) -> Invalid:
    """The error for a redirect. Redirects are not followed, because the credential would go to another server."""
    try:
        address = urlsplit(location)
        host = f"//{address.hostname}{f':{address.port}' if address.port else ''}" if address.hostname else ""
        # Nothing more of the address: user names, passwords and queries may be secrets.
        place = f"{f'{address.scheme}:' if address.scheme else ''}{host}{address.path}"
    except ValueError:
        place = "something that is not an address"
    message = (
        f"the server redirects (code {code}) to {place}; give the address that answers without a redirect"
    )
    return Invalid(doing, ApiStatus(message, "Redirected", code))


def _read(code: int, body: bytes) -> ApiStatus:
    try:
        said = msgspec.json.decode(body, type=_Refusal)
    except (ValueError, RecursionError):
        # A proxy in front of the API server answers in its own format, mostly HTML.
        shown = " ".join(body[:_SHOWN].decode("utf-8", "replace").split())
        return ApiStatus(f"code {code}{f': {shown}' if shown else ''}", "", code)
    return ApiStatus(
        said.message or said.error, said.reason or said.errorType, said.code or code, said.details
    )


def _pause(header: str | None, status: ApiStatus) -> float | None:
    try:
        seconds = float(header) if header else None
    except ValueError:
        seconds = None  # The header may also be a date, which no API server sends.
    if seconds is None and status.details:
        seconds = status.details.retryAfterSeconds
    if seconds is None or not math.isfinite(seconds):
        return None
    return max(0.0, seconds)
