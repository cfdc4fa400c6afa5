"""Which names an extended resource may have."""

import pytest

from colocate.model.resource_name import why_not_allowed


@pytest.mark.parametrize(
    "name",
    [
        "mock/gpu",
        "nvidia.com/gpu",
        "test.com/colocation-memory",
        "a/b",
        "a-b.c/D_e.f-g",
        f"{'a' * 63}.b/{'c' * 63}",
        "notkubernetes.io/x",
    ],
)
def test_allowed(name: str) -> None:
    assert why_not_allowed(name) is None


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("gpu", "needs a domain"),
        ("", "needs a domain"),
        ("a/b/c", "one '/' only"),
        ("kubernetes.io/gpu", "reserved"),
        ("x.kubernetes.io/gpu", "reserved"),
        ("requests.a/b", "quotas"),
        ("/gpu", "domain must be"),
        ("Mock/gpu", "domain must be"),
        ("a..b/gpu", "domain must be"),
        (f"{'a.' * 122}aaa/gpu", "domain must be"),
        ("mock/", "after '/'"),
        ("mock/-gpu", "after '/'"),
        ("mock/gpü", "after '/'"),
        ("mock/gpu\n", "after '/'"),
        (f"mock/{'g' * 64}", "after '/'"),
    ],
)
def test_not_allowed(name: str, because: str) -> None:
    assert because in (why_not_allowed(name) or "")
