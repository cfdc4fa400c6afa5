"""Numbers of bytes in a configuration file."""

from colocate.model import quantity


class Size(int):
    """A number of bytes, written as one or as '512Ki', '64Mi', '1Gi'."""


def to_size(value: object) -> Size:
    """Read a number of bytes; ValueError says how one is written."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return Size(quantity.whole(value))
        except ValueError:
            pass
    raise ValueError("a number of bytes; write it like 512Ki, 64Mi, 1Gi")
