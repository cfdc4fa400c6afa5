"""Notices that whatever was tried for a while has failed. Time is an argument."""


class InVain:
    """How the tries of one process went."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._since: float | None = None

    def forget(self) -> None:
        self._since = None

    def for_too_long(self, did: bool | None, now: float) -> bool:
        """Whether all tries up to this one have failed for so many seconds.

        `did` says how this one went, None where there was nothing to try, which proves nothing.
        """
        if did:
            self._since = None
        elif did is False and self._since is None:
            self._since = now
        return self._since is not None and now >= self._since + self._most
