"""What tenants may write without end, kept in bounds where it enters: a few keys of an object, some characters each.

Whoever may create pods may write 256 KiB of annotations into each, and thousands of owners and resources. Watch
caches keep what they decode: so they decode what is read, and no more of it than a reader takes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict, cast

import msgspec

# By a call, since the keys are not known to type checkers.
_typed_dict = cast(Callable[..., object], TypedDict)


def keys_alone(keys: Iterable[str], values: object = str) -> object:
    """A shape in which msgspec keeps these keys of an object and passes over all others, without making them.

    What it decodes is an ordinary dict. Type checkers are told so beside it: they know no shape made of names.
    """
    return _typed_dict("_Kept", dict.fromkeys(keys, values), total=False)


def is_too_long(texts: Mapping[str, str], longest: Mapping[str, int]) -> bool:
    """Whether any text has more characters than its key allows; a key that is not read allows none."""
    return any(len(text) > longest.get(key, 0) for key, text in texts.items())


def shortened(texts: Mapping[str, str], longest: Mapping[str, int]) -> Mapping[str, str]:
    """The texts that are read, of those that are too long one character more than their key allows.

    So each still says that it is too long, and by no more than that: readers refuse it by its length, as they would
    have refused all of it.
    """
    return {key: text[: longest[key] + 1] for key, text in texts.items() if key in longest}


def replace_field(struct: msgspec.Struct, field: str, value: object) -> None:
    """Set a field of a frozen struct while it is made, which is in its `__post_init__` and nowhere else."""
    msgspec.structs.force_setattr(struct, field, value)
