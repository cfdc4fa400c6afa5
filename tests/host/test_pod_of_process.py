"""Which pod a process is of, by its control group."""

from pathlib import Path

import pytest

from colocate.host.pod_groups import pod_of_process

UID = "f320f827-2a71-486b-a551-28c650dbaf1e"
SLICE = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"0::/kubepods/besteffort/pod{UID}/abc\n", UID),
        (f"0::/kubepods/pod{UID}/abc\n", UID),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-x.scope\n",
            UID,
        ),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/x.scope\n", UID),
        (f"12:cpu:/kubepods/pod{UID}/abc\n11:memory:/kubepods/pod{UID}/abc\n", UID),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", None),
        # A user's own group below his session is not one of the kubelet's.
        (f"0::/user.slice/pod{UID}/abc\n", None),
        # What a pod makes inside its own group says nothing.
        (f"0::/kubepods/pod{UID}/kubepods/podother/x\n", UID),
        ("0::/kubepods/pod../abc\n", None),
        ("garbage", None),
        ("", None),
    ],
)
def test_by_its_path(tmp_path: Path, cgroup: str, uid: str | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(cgroup)
    assert pod_of_process(7, tmp_path) == uid


def test_one_that_has_gone_is_of_none(tmp_path: Path) -> None:
    assert pod_of_process(7, tmp_path) is None
