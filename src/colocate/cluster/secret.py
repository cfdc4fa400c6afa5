"""Values that are never shown in logs, tracebacks or a repr."""

from typing import NoReturn


class Secret:
    """A token, password or key. Only `reveal` returns its value."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        # Pickling would write the value to a file or socket.
        raise TypeError("a Secret cannot be pickled")
