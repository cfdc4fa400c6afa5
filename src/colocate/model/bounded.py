"""Bounds for texts of any size that tenants write: keep a few keys of an object, and limit the length of each.

A user who may create pods may write 256 KiB of annotations into each, and thousands of owners and resources. Watch
caches keep what they decode, so they decode only the keys that are read, up to the length that readers accept.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict, cast

import msgspec

# Made by a call, because type checkers do not know the keys.
_typed_dict = cast(Callable[..., object], TypedDict)


def keys_alone(keys: Iterable[str], values: object = str) -> object:
    """A type with which msgspec decodes these keys of an object and skips all others.

    The decoded value is an ordinary dict. Annotate the field as a dict for type checkers: they cannot see these
    keys.
    """
    return _typed_dict("_Kept", dict.fromkeys(keys, values), total=False)


def is_too_long(texts: Mapping[str, str], longest: Mapping[str, int]) -> bool:
    """Whether any text has more characters than its key allows; a key that is not read allows none."""
    return any(len(text) > longest.get(key, 0) for key, text in texts.items())


def shortened(texts: Mapping[str, str], longest: Mapping[str, int]) -> Mapping[str, str]:
    """The texts whose keys are read; a text that is too long is cut to one character more than its key allows.

    A cut text is still too long, so readers refuse it by its length, as they would have refused the whole text.
    """
    return {key: text[: longest[key] + 1] for key, text in texts.items() if key in longest}


def replace_field(struct: msgspec.Struct, field: str, value: object) -> None:
    """Set a field of a frozen struct. Call it only in the struct's `__post_init__`."""
    msgspec.structs.force_setattr(struct, field, value)
