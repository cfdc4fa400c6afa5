"""What a pod may wish for its containers by annotation, and which wishes its namespace is granted.

`colocate.dev/cpus` speaks for all containers of the pod, `colocate.dev/cpus.CONTAINER` for one, and goes before it.
Whatever a tenant writes is bounded and checked here. What cannot be understood or is not granted is left out with a
warning: the container still starts.
"""

from collections.abc import Mapping

import msgspec

from colocate.cpus.settings import BurstLevel, CpuSettings
from colocate.errors import UserError

ANNOTATION = "colocate.dev/cpus"
_LONGEST = 256
_PRIVILEGED = ("exclusive", "isolated", "strict")


class CpuWishes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Wishes of one container; the defaults are no wishes."""

    exclusive: bool = False
    shared: bool = False
    isolated: bool = False
    """CPUs that the kernel's load balancing leaves alone."""
    strict: bool = False
    """One CCX, or no start."""
    spread: bool = False
    pack: bool = False
    opt_out: bool = False
    """No pool: all shared CPUs."""
    affinity: str = ""
    """Beside this container of the same pod."""
    burst: BurstLevel | None = None


_WORDS = ("exclusive", "shared", "isolated", "strict", "spread", "pack", "opt-out")
_CONTRADICTIONS = (
    ("exclusive", "shared"),
    ("isolated", "shared"),
    ("spread", "pack"),
    *(("opt-out", word) for word in _WORDS if word != "opt-out"),
)


def parse_wishes(text: str) -> CpuWishes:
    """Wishes such as `exclusive, affinity=db`; UserError where one is unknown or two contradict each other."""
    if len(text) > _LONGEST:
        raise UserError(f"wishes for CPUs have at most {_LONGEST} characters, these have more; shorten them")
    words: set[str] = set()
    affinity, burst = "", None
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name == "affinity" and equals and value:
            affinity = value
        elif name == "burst" and value in tuple(BurstLevel):
            burst = BurstLevel(value)
        elif name in _WORDS and not equals:
            words.add(name)
        else:
            raise UserError(
                f"{part!r} is no wish for CPUs; there are {', '.join(_WORDS)}, affinity=CONTAINER and "
                "burst=ccx|numa|node"
            )
    for one, other in _CONTRADICTIONS:
        if one in words and other in words:
            raise UserError(f"the wishes {one} and {other} contradict each other; take one of them out")
    if "opt-out" in words and (affinity or burst):
        raise UserError("the wish opt-out contradicts affinity and burst; take it or them out")
    return CpuWishes(**{word.replace("-", "_"): True for word in words}, affinity=affinity, burst=burst)


def wishes_of(annotations: Mapping[str, str], container: str) -> tuple[CpuWishes, tuple[str, ...]]:
    """The wishes of a container by its pod's annotations, and why they are left out where they are."""
    own = f"{ANNOTATION}.{container}"
    name = own if own in annotations else ANNOTATION
    try:
        return parse_wishes(annotations.get(name, "")), ()
    except UserError as error:
        return CpuWishes(), (f"The annotation {name} is left out: {error}.",)


def granted(wishes: CpuWishes, namespace: str, settings: CpuSettings) -> tuple[CpuWishes, tuple[str, ...]]:
    """The wishes that this namespace may have, and what is refused."""
    if namespace in settings.wish_namespaces:
        return wishes, ()
    refused = [word for word in _PRIVILEGED if getattr(wishes, word)]
    if not refused:
        return wishes, ()
    kept = msgspec.structs.replace(wishes, exclusive=False, isolated=False, strict=False)
    return kept, (
        f"Pods of namespace {namespace} may not wish for {' or '.join(refused)} CPUs; the wish is left out.",
    )
