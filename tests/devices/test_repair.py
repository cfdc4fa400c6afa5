"""A mended checkpoint has lost what was asked for, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.devices.repair import without
from colocate.errors import UserError
from colocate.model.checkpoint import Checkpoint, Entry
from tests.support.checkpoints import checkpoints


@given(checkpoints(), st.data())
def test_the_rest_stays_as_it_is_and_in_its_order(checkpoint: Checkpoint, data: st.DataObject) -> None:
    entries = checkpoint.entries or ()
    uids = sorted({entry.pod_uid for entry in entries})
    known = sorted({*(checkpoint.registered or {}), *(entry.resource for entry in entries)})
    pods = data.draw(st.sets(st.sampled_from(uids))) if uids else set()
    resources = data.draw(st.sets(st.sampled_from(known))) if known else set()
    mended = without(checkpoint, pods, resources)
    kept = mended.checkpoint
    assert sorted(map(repr, (*(kept.entries or ()), *mended.dropped))) == sorted(map(repr, entries))
    assert [e for e in entries if e in (kept.entries or ())] == [*(kept.entries or ())]
    assert all(e.pod_uid in pods or e.resource in resources for e in mended.dropped)
    assert not any(e.pod_uid in pods or e.resource in resources for e in kept.entries or ())
    assert (kept.entries is None, kept.registered is None) == (
        checkpoint.entries is None,
        checkpoint.registered is None,
    )
    assert set(kept.registered or {}) == set(checkpoint.registered or {}) - resources
    assert set(mended.unregistered) == set(checkpoint.registered or {}) & resources
    if not pods and not resources:
        assert kept == checkpoint


@pytest.mark.parametrize(
    ("pods", "resources", "said"), [(["q"], [], "no pod 'q'"), ([], ["s"], "no resource 's'")]
)
def test_what_is_not_there_is_refused(pods: list[str], resources: list[str], said: str) -> None:
    checkpoint = Checkpoint((Entry("p", "c", "r", None, None),), None)
    with pytest.raises(UserError, match=said):
        without(checkpoint, pods, resources)
