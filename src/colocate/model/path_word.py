"""Checks words from the cluster that may become part of a path: uids of pods, ids and names of containers. Pure.

A word is checked with `is_path_word` where it enters, and again where it is joined to a folder
(`host.files.below`).
"""

import re

LONGEST = 128
"""Characters. A pod's uid has 36, or 32 where a kubelet made it; a container's id has 64."""

_PATH_WORD = re.compile(rf"[A-Za-z0-9][A-Za-z0-9-]{{0,{LONGEST - 1}}}")


def is_path_word(word: str) -> bool:
    """Whether a word has only letters, digits and dashes, does not begin with a dash and is not too long."""
    return _PATH_WORD.fullmatch(word) is not None
