"""Reads the pod of a question from a file: a pod, or an object with a pod template."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from colocate.errors import UserError
from colocate.load import LoadPod, Toleration
from colocate.wire.extender_questions import without_nulls

_STANDARD_INPUT = Path("-")


class PodFile(msgspec.Struct, frozen=True):
    """A pod from a file."""

    pod: LoadPod
    tolerations: tuple[Toleration, ...]
    made: bool
    """Whether it is a pod itself; the first pod of a deployment has only the deployment's name."""


class _Object(msgspec.Struct):
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}


class _Tolerating(msgspec.Struct):
    tolerations: tuple[Toleration, ...] = ()


class _Maker(msgspec.Struct, rename="camel"):
    """The spec of an object with a pod template, or with a template of such an object."""

    template: _Object | None = None
    job_template: _Object | None = None


def read(path: Path) -> PodFile:
    """The pod, or the first pod of a deployment, a job or the like; UserError if it is neither."""
    try:
        text = sys.stdin.read() if path == _STANDARD_INPUT else path.read_text()
        tree = without_nulls(yaml.safe_load(text))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"--pod: cannot read {path} ({' '.join(str(error).split())}); check it") from None
    if not isinstance(tree, dict) or "spec" not in tree:
        raise UserError(f"--pod: {path} has no pod; give one that 'kubectl get pod -o yaml' prints")
    try:
        return _read(tree)
    except msgspec.ValidationError as error:
        raise UserError(f"--pod: {path} is not a pod as Kubernetes writes it: {error}; correct it") from None


def _read(tree: Any) -> PodFile:
    found = msgspec.convert(tree, _Object)
    metadata, spec = {"namespace": "default", **found.metadata}, found.spec
    maker = msgspec.convert(spec, _Maker)
    if maker.job_template is not None:
        maker = msgspec.convert(maker.job_template.spec, _Maker)
    template = maker.template
    if template is not None:
        metadata, spec = {**metadata, **template.metadata}, template.spec
    pod = msgspec.convert({"metadata": metadata, "spec": spec}, LoadPod)
    return PodFile(pod, msgspec.convert(spec, _Tolerating).tolerations, made=template is None)
