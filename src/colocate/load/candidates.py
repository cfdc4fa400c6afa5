"""Every candidate of one answer in little room: names as one text, scores as bytes, terms in a log that is shared.

Terms never change: a node has new ones when a fact of it does. The table writes them into a log as they are made,
and begins another when all change at once. Where the log ended when an answer was given says what each node was
judged by.
"""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.load.terms import NodeTerms

TERMS_SIZE = 1024
"""Bytes that the terms of one node take, nearly."""
_SEPARATOR = "\n"


class Candidates(msgspec.Struct, frozen=True):
    """Who was judged, and how."""

    names: str = ""
    scores: bytes = b""
    log: list[NodeTerms] = []
    """Shared with other answers, and longer by now. It is empty where it had to make room."""
    logged: int = 0
    """How much of the log was there when the answer was given."""

    @property
    def size(self) -> int:
        """Bytes, without the log."""
        return len(self.names) + len(self.scores)

    def by_name(self) -> dict[str, int]:
        """All scores."""
        if not self.scores:
            return {}
        return dict(zip(self.names.split(_SEPARATOR), self.scores, strict=True))

    def terms(self) -> Mapping[str, NodeTerms]:
        """By what nodes were judged; none where that is no longer known."""
        return {terms.name: terms for terms in self.log[: self.logged]}


def candidates(names: Sequence[str], scores: bytes, log: list[NodeTerms]) -> Candidates:
    text = _SEPARATOR.join(names)
    if text.count(_SEPARATOR) != len(names) - 1:
        # None, or names that no node can have.
        return Candidates()
    return Candidates(text, scores, log, len(log))
