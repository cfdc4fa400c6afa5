"""Whether what Allocate injected names the devices that the kubelet gave.

Plugins write ids in many ways: `NVIDIA_VISIBLE_DEVICES=GPU-<uuid>`, `vendor.com/class=<id>` for CDI, `/dev/<id>`,
`<id>,<id>`, the physical device of a share (`GPU-<uuid>` where `GPU-<uuid>-2` or `GPU-<uuid>::0` is held), an index,
or nothing at all. So a missing id proves nothing, and neither does a number or a plain word that is not an id. A
value names another device only if it

- equals a device of this resource that some container holds or a plugin has registered, or is the whole or a share of
  one, and has no such relation to any device that is held here; or
- has the shape of a held id, the same letters before a UUID, with another UUID. Without letters this counts only in
  names of devices, because other values contain UUIDs of all kinds.

A word with the UUID of a held device names another device only if it is itself the id of another: a second share.

Mounts are ignored: their paths contain ids of pods and files. So are the paths that devices have within the
container: a plugin may give every device the same name there.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from colocate.model.device import Allocation

_UUID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?![0-9a-zA-Z])", re.I)
_BETWEEN_WORDS = re.compile(r"[\s,;|=\"'\[\]{}]+")
_BETWEEN_PARTS = "-_:.#@/"
"""Separators between a device's id and the number of its share."""

_LEAST = 4


class Known:
    """Ids that a word is compared with, in nearly constant time."""

    def __init__(self, ids: Collection[str]) -> None:
        self.ids = frozenset(ids)
        self._sorted = sorted(self.ids)
        self._lengths = frozenset(map(len, self.ids))
        self.uuids: dict[str, str] = {}
        """UUIDs in the ids, with the letters before each."""
        for id in self.ids:
            if found := _UUID.search(id):
                self.uuids[found[1].lower()] = id[: found.start()]

    def names(self, word: str) -> bool:
        """Whether the word is one of the ids, the whole device of a share among them, or a share of one of them."""
        if word in self.ids or any(self._begins(word + mark) for mark in _BETWEEN_PARTS):
            return True
        return any(
            0 < length < len(word) and word[length] in _BETWEEN_PARTS and word[:length] in self.ids
            for length in self._lengths
        )

    def _begins(self, text: str) -> bool:
        at = bisect_left(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


def named_instead(injected: Allocation, held: Known, known: Known) -> frozenset[str]:
    """The words in what was injected that name devices of this resource which the container does not hold."""
    kinds = frozenset(held.uuids.values())
    texts = [*injected.envs.values(), *injected.annotations.values()]
    devices = [*injected.cdi, *(node.host_path for node in injected.devices)]
    return frozenset(
        word
        for source, like in ((texts, kinds - {""}), (devices, kinds))
        for word in _words(source, held)
        if _is_telling(word, known) and _is_another(word, held, known, like)
    )


def _is_another(word: str, held: Known, known: Known, kinds: Collection[str]) -> bool:
    if held.names(word):
        return False
    found = _UUID.search(word)
    if found and found[1].lower() in held.uuids:
        return word in known.ids
    return known.names(word) or (found is not None and word[: found.start()] in kinds)


def _is_telling(word: str, known: Known) -> bool:
    """Whether a word can name a device: numbers and plain words such as `true` do not, unless they are ids."""
    if word.isdigit():
        return False
    return word in known.ids or (len(word) >= _LEAST and any(map(str.isdigit, word)))


def _words(texts: Iterable[str], held: Known) -> Iterator[str]:
    """The words and the last parts of paths, except the parts of a held id that looks like a path."""
    for text in texts:
        for word in filter(None, _BETWEEN_WORDS.split(text)):
            yield word
            if "/" in word and not held.names(word):
                yield word.rpartition("/")[2]
