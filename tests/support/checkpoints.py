"""Random checkpoints: any Unicode, nil against empty, any NUMA node; and where a reader gives up on a file."""

from hypothesis import strategies as st

from colocate.kubelet.checkpoint import CheckpointError, parse
from colocate.model.checkpoint import Checkpoint, Entry, Format

texts = st.text(max_size=12)
ids = st.none() | st.lists(texts, max_size=4).map(tuple)
int64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 12)
DEVICES = {Format.NUMA: st.none() | st.dictionaries(int64, ids, max_size=4), Format.LIST: ids}
DEVICES[Format.PLAIN] = ids


def checkpoints(format: Format = Format.NUMA) -> st.SearchStrategy[Checkpoint]:
    entries = st.builds(Entry, texts, texts, texts, DEVICES[format], st.none() | st.binary(max_size=40))
    return st.builds(
        Checkpoint,
        st.none() | st.lists(entries, max_size=4).map(tuple),
        st.none() | st.dictionaries(texts, ids, max_size=4),
    )


def judge(blob: bytes, format: Format | None = None) -> str | None:
    """Where a reader gives up, in the table's words."""
    try:
        document = parse(blob, format)
    except CheckpointError:
        return "json"
    return None if document.sound else "checksum"
