"""Status answers: every refusal of the API server, with the code, the reason and the words of a real one."""

from collections.abc import Sequence

import msgspec

from colocate.errors import ColocateError
from colocate.lab.api.objects import Object


class Cause(msgspec.Struct, frozen=True):
    """One fault of an object: which field, what kind of fault, in words."""

    reason: str
    message: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ApiError(ColocateError):
    """A request that is refused: raised anywhere below the server, answered in one place."""

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
    """The Status of something done that leaves no object to show."""
    body = _status("Success")
    if details is not None:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return body


def details_of(qualified: str, name: str = "", **more: object) -> Object:
    """Details as recorded: name and group only where there are any. `qualified` is plural[.group]."""
    plural, _, group = qualified.partition(".")
    given = {"name": name, "group": group, "kind": plural, **more}
    return {key: value for key, value in given.items() if value not in ("", None)}


def not_found(qualified: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{qualified} "{name}" not found', details_of(qualified, name))


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    words = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", words, {})


def already_exists(qualified: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{qualified} "{name}" already exists', details_of(qualified, name))


def conflict(qualified: str, name: str, why: str) -> ApiError:
    """`qualified` may name a subresource: pods/binding."""
    words = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return ApiError(409, "Conflict", words, details_of(qualified, name))


def modified(qualified: str, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(qualified, name, why)


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """An object that breaks the rules of its kind."""
    faults = [str(cause) for cause in causes]
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    qualified = f"{kind}.{group}" if group else kind
    shown = [msgspec.to_builtins(cause) for cause in causes]
    words = f'{qualified} "{name}" is invalid: {listed}'
    return ApiError(422, "Invalid", words, details_of(qualified, name, causes=shown))


def rejected() -> ApiError:
    """What a real server says of a JSON patch that cannot be applied, a failed `test` among them."""
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def bad_request(words: str) -> ApiError:
    return ApiError(400, "BadRequest", words)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(qualified: str, name: str, why: str, **more: object) -> ApiError:
    subject = f'{qualified} "{name}"' if name else qualified
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {why}", details_of(qualified, name, **more))


def forbidden_path(user: str, verb: str, path: str) -> ApiError:
    return ApiError(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"', {})


def expired(words: str) -> ApiError:
    return ApiError(410, "Expired", words)


def too_old(asked: int, oldest: int) -> ApiError:
    return expired(f"too old resource version: {asked} ({oldest})")


def too_large_version(asked: int, current: int) -> ApiError:
    words = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details = {"causes": [cause], "retryAfterSeconds": 1}
    return ApiError(504, "Timeout", f"Timeout: {words}", details)


def body_too_large(limit: int) -> ApiError:
    words = f"Request entity too large: limit is {limit}"
    return ApiError(413, "RequestEntityTooLarge", words)


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    words = "the body of the request was in an unknown format - accepted media types include: "
    return ApiError(415, "UnsupportedMediaType", words + ", ".join(accepted))


def not_acceptable(offered: Sequence[str]) -> ApiError:
    words = f"only the following media types are accepted: {', '.join(offered)}"
    return ApiError(406, "NotAcceptable", words)


def too_many_requests(words: str, causes: Sequence[Cause]) -> ApiError:
    shown = [msgspec.to_builtins(cause) for cause in causes]
    for cause in shown:
        if not cause["field"]:
            del cause["field"]
    return ApiError(429, "TooManyRequests", words, {"causes": shown})


def internal(words: str) -> ApiError:
    cause = {"message": words}
    return ApiError(500, "InternalError", f"Internal error occurred: {words}", {"causes": [cause]})
