"""Whether what Allocate injected names the devices that the kubelet gave.

Plugins write ids in many dialects: `NVIDIA_VISIBLE_DEVICES=GPU-<uuid>`, `vendor.com/class=<id>` for CDI,
`/dev/<id>`, `<id>,<id>`, the physical device for a share of it (`GPU-<uuid>` where `GPU-<uuid>-2` or
`GPU-<uuid>::0` is held), an index, or nothing at all. So silence proves nothing, and neither does a number, nor
a plain word that is not itself an id. A value is taken to name another device only where it

- equals, or is the whole of, or is a share of, a device of this resource that some container holds or a
  plugin has registered, and is nothing like that to any device that is held here; or
- has the shape of a held id, the same letters before a UUID, with another UUID; without letters only in the
  name of a device, for elsewhere there are UUIDs of all kinds.

A word with the UUID of a held device is another only where it is itself the id of another: a second share.

Mounts are not looked at: their paths are full of ids of pods and files. Nor are the paths that devices have
within the container: a plugin may call every device there by the same name.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from colocate.model.device import Allocation

_UUID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?![0-9a-zA-Z])", re.I)
_BETWEEN_WORDS = re.compile(r"[\s,;|=\"'\[\]{}]+")
_BETWEEN_PARTS = "-_:.#@/"
"""What may stand between a device's id and the number of its share."""

_LEAST = 4


class Known:
    """Ids that a word may be compared with, at a cost that hardly grows with their number."""

    def __init__(self, ids: Collection[str]) -> None:
        self.ids = frozenset(ids)
        self._sorted = sorted(self.ids)
        self._lengths = frozenset(map(len, self.ids))
        self.uuids: dict[str, str] = {}
        """UUIDs in the ids, and the letters before each."""
        for id in self.ids:
            if found := _UUID.search(id):
                self.uuids[found[1].lower()] = id[: found.start()]

    def names(self, word: str) -> bool:
        """Whether the word is one of the ids, the whole that one is a share of, or a share of one."""
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
    """The words in what was injected that name devices of this resource which are not held."""
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
    """Neither a number nor a plain word: `0` and `true` say nothing of a device, unless one is called `true`."""
    if word.isdigit():
        return False
    return word in known.ids or (len(word) >= _LEAST and any(map(str.isdigit, word)))


def _words(texts: Iterable[str], held: Known) -> Iterator[str]:
    """The words, and the last parts of paths; not those of an id that is held and looks like a path."""
    for text in texts:
        for word in filter(None, _BETWEEN_WORDS.split(text)):
            yield word
            if "/" in word and not held.names(word):
                yield word.rpartition("/")[2]
