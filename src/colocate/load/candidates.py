"""Every candidate of one answer at little cost: names as they came, scores as bytes, terms in a log that is shared.

Names are read again when somebody asks why, which is rare. Terms never change: a node has new ones when a fact of
it does. The table writes them into a log as they are made, and begins another when all change at once. Where the
log ended when an answer was given says what each node was judged by.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from colocate.load.terms import NodeTerms

TERMS_SIZE = 1024
"""Bytes that the terms of one node take, nearly."""
_NAME_SIZE = 100
"""Bytes that a name takes as a string of its own, nearly."""


class Names(Protocol):
    """The candidates of one question, in a form that can be kept."""

    @property
    def size(self) -> int:
        """Bytes, nearly."""

    def read(self) -> Sequence[str]:
        """In the order in which they were asked about."""


class Listed(msgspec.Struct, frozen=True):
    """Names that are there as strings anyway."""

    names: Sequence[str] = ()

    @property
    def size(self) -> int:
        return _NAME_SIZE * len(self.names)

    def read(self) -> Sequence[str]:
        return self.names


class Candidates(msgspec.Struct, frozen=True):
    """Who was judged, and how."""

    names: Names = Listed()
    scores: bytes = b""
    log: list[NodeTerms] = []
    """Shared with other answers, and longer by now. It is empty where it had to make room."""
    logged: int = 0
    """How much of the log was there when the answer was given."""

    @property
    def size(self) -> int:
        """Bytes, without the log."""
        return self.names.size + len(self.scores)

    def by_name(self) -> dict[str, int]:
        """All scores."""
        return dict(zip(self.names.read(), self.scores, strict=True))

    def terms(self) -> Mapping[str, NodeTerms]:
        """By what nodes were judged; none where that is no longer known."""
        return {terms.name: terms for terms in self.log[: self.logged]}
