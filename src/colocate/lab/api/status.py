"""Status answers: every refusal of the API server, with the code, reason and message of a real one."""

from collections.abc import Sequence

import msgspec

from colocate.errors import ColocateError
from colocate.lab.api.objects import Object


class StatusCause(msgspec.Struct, frozen=True):
    """One fault of an object: the field, the kind of fault, and a message."""

    reason: str
    message: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class StatusError(ColocateError):
    """A refused request: raised anywhere below the server, answered in one place."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> Object:
        """The Status object to answer with."""
        body = _status("Failure")
        if self.message:
            body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return body | {"code": self.code}


def _status(outcome: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": outcome}


def success(details: Object | None = None, code: int | None = None) -> Object:
    """The Status of a successful action without an object to show."""
    body = _status("Success")
    if details is not None:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return body


def details_of(qualified: str, name: str = "", **more: object) -> Object:
    """The details of a Status; name and group only where they are not empty. `qualified` is plural[.group]."""
    plural, _, group = qualified.partition(".")
    given = {"name": name, "group": group, "kind": plural, **more}
    return {key: value for key, value in given.items() if value not in ("", None)}


def not_found(qualified: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{qualified} "{name}" not found', details_of(qualified, name))


def no_such_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def absent_here(what: str) -> StatusError:
    """The Status for a feature that a real cluster has and this one does not."""
    words = f"the embedded cluster has no {what}; docs/embedded-cluster.md lists what it has"
    return StatusError(501, "NotImplemented", words, {})


def method_not_allowed() -> StatusError:
    words = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", words, {})


def already_exists(qualified: str, name: str) -> StatusError:
    return StatusError(
        409, "AlreadyExists", f'{qualified} "{name}" already exists', details_of(qualified, name)
    )


def conflict(qualified: str, name: str, why: str) -> StatusError:
    """`qualified` may name a subresource: pods/binding."""
    words = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError(409, "Conflict", words, details_of(qualified, name))


def modified(qualified: str, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(qualified, name, why)


def invalid(kind: str, group: str, name: str, causes: Sequence[StatusCause]) -> StatusError:
    """An object that breaks the rules of its kind."""
    faults = [str(cause) for cause in causes]
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    qualified = f"{kind}.{group}" if group else kind
    shown = [msgspec.to_builtins(cause) for cause in causes]
    words = f'{qualified} "{name}" is invalid: {listed}'
    return StatusError(422, "Invalid", words, details_of(qualified, name, causes=shown))


def rejected() -> StatusError:
    """A real server's answer to a JSON patch that cannot be applied, including a failed `test`."""
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def bad_request(words: str) -> StatusError:
    return StatusError(400, "BadRequest", words)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(qualified: str, name: str, why: str, **more: object) -> StatusError:
    subject = f'{qualified} "{name}"' if name else qualified
    return StatusError(
        403, "Forbidden", f"{subject} is forbidden: {why}", details_of(qualified, name, **more)
    )


def forbidden_path(user: str, verb: str, path: str) -> StatusError:
    return StatusError(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"', {})


def expired(words: str) -> StatusError:
    return StatusError(410, "Expired", words)


def too_old(asked: int, oldest: int) -> StatusError:
    return expired(f"too old resource version: {asked} ({oldest})")


def too_large_version(asked: int, current: int) -> StatusError:
    words = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details = {"causes": [cause], "retryAfterSeconds": 1}
    return StatusError(504, "Timeout", f"Timeout: {words}", details)


def body_too_large(limit: int) -> StatusError:
    words = f"Request entity too large: limit is {limit}"
    return StatusError(413, "RequestEntityTooLarge", words)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    words = "the body of the request was in an unknown format - accepted media types include: "
    return StatusError(415, "UnsupportedMediaType", words + ", ".join(accepted))


def not_acceptable(offered: Sequence[str]) -> StatusError:
    words = f"only the following media types are accepted: {', '.join(offered)}"
    return StatusError(406, "NotAcceptable", words)


def too_many_requests(words: str, causes: Sequence[StatusCause]) -> StatusError:
    shown = [msgspec.to_builtins(cause) for cause in causes]
    for cause in shown:
        if not cause["field"]:
            del cause["field"]
    return StatusError(429, "TooManyRequests", words, {"causes": shown})


def internal(words: str) -> StatusError:
    cause = {"message": words}
    return StatusError(500, "InternalError", f"Internal error occurred: {words}", {"causes": [cause]})
