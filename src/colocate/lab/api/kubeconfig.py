"""Writes kubeconfig files for the embedded cluster."""

import base64
from pathlib import Path

import msgspec
import yaml

from colocate.host.files import write_atomically
from colocate.lab.api.certificates import Pair
from colocate.lab.api.objects import Object


class Credential(msgspec.Struct, frozen=True):
    """A client's credential: a token or a certificate."""

    token: str = ""
    pair: Pair | None = None


def document(url: str, ca: bytes | None, credential: Credential, namespace: str = "") -> Object:
    """A kubeconfig with one cluster, one user and one context."""
    cluster: Object = {"server": url}
    if ca:
        cluster["certificate-authority-data"] = _text(ca)
    user: Object = {}
    if credential.token:
        user["token"] = credential.token
    if credential.pair:
        user["client-certificate-data"] = _text(credential.pair.certificate)
        user["client-key-data"] = _text(credential.pair.key)
    context = {"cluster": "colocate-lab", "user": "colocate-lab"}
    if namespace:
        context["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "colocate-lab", "cluster": cluster}],
        "users": [{"name": "colocate-lab", "user": user}],
        "contexts": [{"name": "colocate-lab", "context": context}],
        "current-context": "colocate-lab",
    }


def write(path: Path, config: Object) -> None:
    """Write the file atomically, readable only by its owner."""
    write_atomically(path, yaml.safe_dump(config, sort_keys=False).encode())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
