"""Where a pod's memory lies, as memory.numa_stat tells it."""

import pytest

from colocate.host.memory_files import Garbled, numa_stat

MIB = 1 << 20
V2 = b"""anon N0=1048576 N2=4194304
file N0=8388608 N2=20971520
kernel_stack N0=16384 N2=0
inactive_anon N0=1048576 N2=4194304
active_file N0=6291456 N2=0
inactive_file N0=2097152 N2=20971520
"""
V1 = b"""total=10 N0=4 N2=6
hierarchical_total=2560 N0=1536 N2=1024
hierarchical_file=512 N0=256 N2=256
"""


def test_cache_that_is_as_good_as_free_lies_nowhere_on_v2() -> None:
    assert numa_stat(V2, 2, 4096) == {0: 7 * MIB, 2: 4 * MIB}


def test_v1_does_not_tell_it_by_node() -> None:
    assert numa_stat(V1, 1, 4096) == {0: 6 * MIB, 2: 4 * MIB}


def test_rows_of_two_instants_make_nothing_less_than_nothing() -> None:
    assert numa_stat(b"anon N0=0\nfile N0=4096\ninactive_file N0=8192\n", 2, 4096) == {0: 0}


@pytest.mark.parametrize("row", [b"anon", b"file", b"inactive_file"])
def test_a_row_that_is_missing_is_named(row: bytes) -> None:
    left = b"".join(line for line in V2.splitlines(keepends=True) if not line.startswith(row + b" "))
    with pytest.raises(Garbled, match=repr(row.decode())):
        numa_stat(left, 2, 4096)
