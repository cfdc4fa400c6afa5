"""What the tests of the command line share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from colocate.kubelet.checkpoint import render
from colocate.model.checkpoint import Checkpoint, Entry


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="colo-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig of whoever runs the tests."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sound checkpoint of two pods with one device each."""
    gpu = "vendor.example/gpu"
    entries = tuple(Entry(pod, "main", gpu, {0: (f"card-{n}",)}, b"") for n, pod in enumerate(("one", "two")))
    path = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    path.parent.mkdir()
    path.write_bytes(render(Checkpoint(entries, {gpu: ("card-0", "card-1"), "vendor.example/fan": ()})))
    path.chmod(0o640)
    return path
