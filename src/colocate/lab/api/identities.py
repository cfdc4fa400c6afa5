"""Where uids and the ends of generated names come from; a test passes a seed and knows both beforehand."""

import random
import uuid

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels, so that no name spells a word."""


class Identities:
    """A source of what must be unique."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self) -> str:
        return "".join(self._random.choices(_SUFFIX, k=5))
