"""What the API server, or the way to it, can answer instead of what was asked for.

Every error says what was being done, to what, what was found, and what to do about it. Pure: an answer in,
an error out; who raises and who retries is decided elsewhere.
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
    """What was asked: in the words of RBAC, which is what a refusal is about."""

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
    """The Status object of the API, as much of it as is read."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """A Status, or what Prometheus says in other words."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None
    error: str = ""
    errorType: str = ""


class ClusterError(ColocateError):
    """The root of everything that can go wrong between here and the cluster."""


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
    """The object is another one than the caller took it for: read it again."""


class AlreadyExists(Conflict):
    """There is an object of that name."""


class PreconditionFailed(Conflict):
    """A JSON patch of which a `test` does not hold or a path is not there; the server says no more."""


class Gone(ApiError):
    """The resourceVersion is older than what the server remembers: list again."""


class Invalid(ApiError):
    """The request breaks a rule of the API: the caller's fault."""


class Unauthorized(ApiError):
    """The server does not take the credential."""

    def __init__(self, doing: Doing, status: ApiStatus) -> None:
        super().__init__(doing, status)
        self.args = (
            f"cannot {doing}: the server does not accept the credential (401); "
            f"it may have expired: renew the token or certificate",
        )


class Forbidden(ApiError):
    """The user lacks a right; says which."""

    def __init__(self, doing: Doing, status: ApiStatus) -> None:
        super().__init__(doing, status)
        found = _WHO.search(status.message)
        self.user = found.group(1) if found else ""
        # A server also forbids what no right would allow, such as a new object in a namespace that ends.
        if found:
            place = f" in namespace {doing.namespace}" if doing.namespace else " in the whole cluster"
            remedy = f"grant {self.user} the verb {doing.verb} on {doing.resource}{place}"
            self.args = (f"{self}; {remedy}",)


class TooManyRequests(ApiError):
    """Not now: the server is busy, or a disruption budget is used up."""

    def __init__(self, doing: Doing, status: ApiStatus, retry_after: float | None) -> None:
        super().__init__(doing, status)
        self.retry_after = retry_after
        """Seconds that the server asks to wait; None where it says nothing."""


class ServerError(ApiError):
    """The server failed, or answered something that cannot be read."""

    def __init__(self, doing: Doing, status: ApiStatus, retry_after: float | None = None) -> None:
        super().__init__(doing, status)
        self.retry_after = retry_after


class TooLong(ServerError):
    """The answer is longer than is read."""


class Unreachable(ClusterError, Unavailable):
    """No answer: refused, dropped, or too slow."""

    def __init__(self, words: str, sent: bool = True) -> None:
        super().__init__(words)
        self.sent = sent
        """Whether the request may have reached the server; where it has not, asking again is safe."""


class Untrusted(Unreachable):
    """One side does not accept the other's certificate."""


def from_answer(doing: Doing, code: int, retry_after: str | None, body: bytes, json_patch: bool) -> ApiError:
    """The error that an answer with a code from 400 on stands for."""
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
    """The error that a Status in the middle of a watch stands for."""
    return from_answer(doing, status.code or 500, None, msgspec.json.encode(status), json_patch=False)


def unreadable(doing: Doing, why: str) -> ServerError:
    """An answer that says it is fine and is not what was asked for."""
    return ServerError(doing, ApiStatus(f"the answer cannot be read: {why}", "Unreadable", 200))


def too_long(doing: Doing, at_most: int, by: str = "") -> TooLong:
    """An answer of more than so many bytes; `by` is the setting that says so."""
    why = f"it is longer than {amount(at_most)}{f' ({by})' if by else ''}"
    return TooLong(doing, ApiStatus(f"the answer cannot be read: {why}", "Unreadable", 200))


def redirected(doing: Doing, code: int, location: str) -> Invalid:
    """A server that sends us elsewhere: nobody follows, since a credential may travel along."""
    try:
        address = urlsplit(location)
        host = f"//{address.hostname}{f':{address.port}' if address.port else ''}" if address.hostname else ""
        # Not more of it: user names, passwords and queries may be secrets.
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
        # A proxy in front of the API server answers in its own words, mostly HTML.
        shown = " ".join(body[:_SHOWN].decode("utf-8", "replace").split())
        return ApiStatus(f"code {code}{f': {shown}' if shown else ''}", "", code)
    return ApiStatus(
        said.message or said.error, said.reason or said.errorType, said.code or code, said.details
    )


def _pause(header: str | None, status: ApiStatus) -> float | None:
    try:
        seconds = float(header) if header else None
    except ValueError:
        seconds = None  # The other form of the header is a date, which no API server sends.
    if seconds is None and status.details:
        seconds = status.details.retryAfterSeconds
    if seconds is None or not math.isfinite(seconds):
        return None
    return max(0.0, seconds)
