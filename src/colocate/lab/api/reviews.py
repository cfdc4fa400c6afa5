"""Reviews of rights and tokens: objects that are answered and not stored."""

from typing import Any

import msgspec

from colocate.lab.api.auth import Authenticator
from colocate.lab.api.bodies import check_kind
from colocate.lab.api.objects import Object, metadata, rfc3339, uid_of
from colocate.lab.api.rbac import Authorizer, Deed
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import SERVICE_ACCOUNTS, ServedResource
from colocate.lab.api.status import StatusError, bad_request
from colocate.lab.api.users import User, from_name

_HOUR = 3600
_SHORTEST = 600


class _Asked(msgspec.Struct):
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Path(msgspec.Struct):
    verb: str = ""
    path: str = ""


class _Spec(msgspec.Struct):
    """The spec of any review. Field names are those of the API."""

    resourceAttributes: _Asked | None = None
    nonResourceAttributes: _Path | None = None
    user: str = ""
    groups: list[str] | None = None
    namespace: str = ""
    token: str = ""
    expirationSeconds: int | None = None
    audiences: list[str] | None = None


class Reviews:
    """Answers reviews."""

    def __init__(
        self, registry: ObjectRegistry, authenticator: Authenticator, authorizer: Authorizer
    ) -> None:
        self._registry = registry
        self._authenticator = authenticator
        self._authorizer = authorizer

    def answer(self, resource: ServedResource, namespace: str, body: Any, user: User) -> Object:
        """The review with its status filled in."""
        check_kind(resource.kind, resource.api_version, body)
        spec = _spec(resource.kind, body)
        match resource.kind:
            case "SelfSubjectReview":
                status: Object = {"userInfo": _shown(user)}
            case "TokenReview":
                status = self._token_status(spec.token)
            case "SelfSubjectRulesReview":
                status = self._rules_status(user, spec.namespace)
            case "SelfSubjectAccessReview":
                status = self._access_status(user, spec, "")
            case _:
                asked = from_name(spec.user, frozenset(spec.groups or ()))
                status = self._access_status(asked, spec, namespace)
        shown = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata(body)}
        if resource.kind != "SelfSubjectReview":
            shown["spec"] = body.get("spec") or {}
        return shown | {"status": status}

    def token(self, namespace: str, name: str, body: Any) -> Object:
        """A new token for a service account."""
        check_kind("TokenRequest", "authentication.k8s.io/v1", body)
        spec = _spec("TokenRequest", body)
        account = self._registry.get(SERVICE_ACCOUNTS, namespace, name)
        seconds = _HOUR if spec.expirationSeconds is None else spec.expirationSeconds
        if seconds < _SHORTEST:
            raise bad_request("may not specify a duration less than 10 minutes")
        audiences = spec.audiences or []
        token = self._authenticator.issue(namespace, name, uid_of(account.body), seconds, audiences)
        expires = rfc3339(self._registry.clock.time() + seconds)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": None},
            "status": {"token": token, "expirationTimestamp": expires},
        }

    def _token_status(self, token: str) -> Object:
        try:
            user = self._authenticator.bearer(token)
        except StatusError:
            return {"user": {}, "error": "the token is not known"}
        return {"authenticated": True, "user": _shown(user)}

    def _access_status(self, user: User, spec: _Spec, namespace: str) -> Object:
        if spec.nonResourceAttributes is not None:
            asked = spec.nonResourceAttributes
            deed = Deed(asked.verb, path=asked.path)
        elif (wanted := spec.resourceAttributes) is not None:
            if namespace and wanted.namespace != namespace:
                raise bad_request("spec.resourceAttributes.namespace must match metadata.namespace")
            deed = Deed(
                wanted.verb,
                wanted.group,
                wanted.resource,
                wanted.subresource,
                wanted.namespace,
                wanted.name,
            )
        else:
            raise bad_request("one of resourceAttributes and nonResourceAttributes is required")
        return {"allowed": self._authorizer.allows(user, deed)}

    def _rules_status(self, user: User, namespace: str) -> Object:
        rules = list(self._authorizer.rules(user, namespace))
        return {
            "resourceRules": [_resource_rule(rule) for rule in rules if rule.get("resources")],
            "nonResourceRules": [
                {"verbs": rule["verbs"], "nonResourceURLs": rule["nonResourceURLs"]}
                for rule in rules
                if rule.get("nonResourceURLs")
            ],
            "incomplete": False,
        }


def _spec(kind: str, body: Object) -> _Spec:
    try:
        return msgspec.convert(body.get("spec") or {}, _Spec)
    except msgspec.ValidationError as error:
        raise bad_request(f"{kind} cannot be read: {error}") from None


def _resource_rule(rule: Object) -> Object:
    fields = ("verbs", "apiGroups", "resources", "resourceNames")
    return {field: rule[field] for field in fields if rule.get(field)}


def _shown(user: User) -> Object:
    shown: Object = {"username": user.name, "groups": sorted(user.groups)}
    return shown | ({"uid": user.uid} if user.uid else {})
