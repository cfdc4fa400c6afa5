"""Words from the cluster that may become a part of a path: uids of pods, ids and names of containers. Pure.

A word is checked with `is_path_word` where it enters, and once more by what joins it to a folder: `host.files.below`.
"""

import re

LONGEST = 128
"""Characters. A pod's uid has 36, or 32 where a kubelet made it; a container's id 64."""

_PATH_WORD = re.compile(rf"[A-Za-z0-9][A-Za-z0-9-]{{0,{LONGEST - 1}}}")


def is_path_word(word: str) -> bool:
    """Whether it is letters, digits and dashes alone, not too many, the first of them no dash."""
    return _PATH_WORD.fullmatch(word) is not None
