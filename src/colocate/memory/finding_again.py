"""What was done to pods and the stored state has forgotten, found again by the marks that are left on them.

Only of pods that hold blocks: whoever holds none is left alone, marked or not.
"""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.memory.ladder_state import Ladder, Throttled
from colocate.model.memory import PodIdentity, PodMemory, PodUid


def throttled_again(
    ladder: Ladder, readings: Sequence[PodMemory], holders: Mapping[PodUid, PodIdentity]
) -> Ladder:
    """The ladder with every holder whose memory.high is ours."""
    found = {
        each.uid: Throttled(each.our_high.before, each.high)
        for each in readings
        if each.our_high is not None
        and each.high is not None
        and each.uid not in ladder.throttled
        and each.uid in holders
        and holders[each.uid].may_hold_blocks
    }
    return msgspec.structs.replace(ladder, throttled={**ladder.throttled, **found}) if found else ladder
