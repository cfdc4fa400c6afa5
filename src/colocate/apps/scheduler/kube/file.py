"""A configuration of kube-scheduler as a file has it: read into types, a mistake told in one sentence. Pure."""

from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import inspect

from colocate.apps.config import values, words
from colocate.apps.scheduler.kube.configuration import KIND
from colocate.errors import UserError
from colocate.wire.extender_questions import without_nulls

T = TypeVar("T")


def tree_of(text: str, where: str) -> dict[Any, Any]:
    """What is in a file, as Go reads it: a field that is null is not there."""
    try:
        tree = without_nulls(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A date or a number that cannot be is a ValueError.
        raise UserError(f"{where}: this is not YAML ({' '.join(str(error).split())}); correct it") from None
    if not isinstance(tree, dict):
        raise UserError(f"{where}: this is not a {KIND}; give the file that kube-scheduler gets as --config")
    return tree


def typed(kind: type[T], tree: Any, where: str, path: str = "") -> T:
    """What is in a tree, that of a whole file or at a path in it; a UserError where it does not fit."""
    try:
        words.check(inspect.type_info(kind), tree, values.decode, path)
        return msgspec.convert(tree, kind)
    except words.Problem as problem:
        raise UserError(f"{where}: {problem}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {path and f'{path}: '}{error}; correct it") from None
