"""The section `gpus` of the agent's configuration: its fields, and the settings that they make."""

import re
from collections.abc import Iterator
from pathlib import Path

from colocate.config.words import Problem, show, suggest
from colocate.gpus import (
    COLOCATE,
    DIALECTS,
    Dialect,
    Gem,
    GpuInjection,
    GpuSettings,
    HamiCore,
    HealthSettings,
    Unassumed,
    dialect,
)
from colocate.model.values import Seconds, Section, Size

_CDI_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_UNIT = 1 << 40
_SHARED = GpuSettings()
_WELL = HealthSettings()


class GpuDialect(Section, frozen=True):
    """A dialect that is served."""

    name: str
    unit: Size | None = None
    """What one device stands for; not given: what the dialect's own project has."""
    drain: bool = False
    """Whether nothing new is offered under its names: what pods hold stays theirs, until they end."""

    def dialect(self) -> Dialect:
        return dialect(self.name, None if self.unit is None else self.unit >> 20, drains=self.drain)


class GpuHealthSection(Section, frozen=True):
    """When a GPU is given to new pods."""

    refresh: Seconds = Seconds(10)
    """How often the driver is asked; errors are heard of at once."""
    recovery: Seconds = Seconds(_WELL.recovery)
    """How long a GPU must be without fault before new pods get it again."""
    ignored_xids: tuple[int, ...] = tuple(sorted(_WELL.ignored_xids))
    """Errors that programs make, and not GPUs."""

    def settings(self) -> HealthSettings:
        return HealthSettings(recovery=float(self.recovery), ignored_xids=frozenset(self.ignored_xids))


class HamiCoreSection(Section, frozen=True):
    """HAMi-core: holds containers to their memory and cores. The library must be on the node."""

    enabled: bool = False
    folder: Path = Path(HamiCore().folder)
    lock: Path = Path(HamiCore().lock)
    oversubscribe: bool = HamiCore().oversubscribe


class GemSection(Section, frozen=True):
    """Gem's hook: holds containers to their computing time. The library must be on the node."""

    enabled: bool = False
    folder: Path = Path(Gem().folder)
    library: str = Gem().library
    ip: str = Gem().ip
    port: int = Gem().port


class GpusSection(Section, frozen=True):
    """GPUs of the node, shared by memory and cores."""

    enabled: bool = False
    dialects: tuple[GpuDialect, ...] = (GpuDialect(name=COLOCATE.name),)
    mock: Path | None = None
    """A file with mock GPUs; not given: those of NVIDIA's driver."""
    injection: GpuInjection = _SHARED.injection
    cdi_kind: str = _SHARED.cdi_kind
    unassumed: Unassumed = _SHARED.unassumed
    key_file: Path | None = None
    """The key that agents share with a scheduler of ours, which seals its bookings; not given: all are wishes."""
    health: GpuHealthSection = GpuHealthSection()
    hami_core: HamiCoreSection = HamiCoreSection()
    gem: GemSection = GemSection()
    state_folder: Path = Path("/var/lib/colocate")
    """Where the agent keeps which containers it has let start."""
    node: str = ""
    """This node's name in the cluster; empty: NODE_NAME, or the host's name."""
    kubeconfig: str = ""
    """How to reach the cluster; empty: KUBECONFIG, ~/.kube/config, or the pod's service account."""

    @property
    def resources(self) -> tuple[str, ...]:
        """What the kubelet is told of."""
        return tuple(each.dialect().memory for each in self.dialects) if self.enabled else ()

    def settings(self) -> GpuSettings:
        """This section as the decisions take it; UserError where they would refuse it."""
        hami, gem = self.hami_core, self.gem
        return GpuSettings(
            dialects=tuple(each.dialect() for each in self.dialects),
            injection=self.injection,
            cdi_kind=self.cdi_kind,
            unassumed=self.unassumed,
            hami_core=HamiCore(folder=str(hami.folder), lock=str(hami.lock), oversubscribe=hami.oversubscribe)
            if hami.enabled
            else None,
            gem=Gem(folder=str(gem.folder), library=gem.library, ip=gem.ip, port=gem.port)
            if gem.enabled
            else None,
        )


def check_gpus(gpus: GpusSection) -> None:
    """Raise a Problem where an agent could not share GPUs so."""
    for path, what in _problems(gpus):
        raise Problem(f"gpus.{path}", what)


def why_no_unit(unit: Size | None) -> str:
    """Why a device cannot stand for so much; empty where it can. Agents and schedulers are told units alike."""
    if unit is None or (unit % (1 << 20) == 0 and 1 << 20 <= unit <= _MOST_UNIT):
        return ""
    # A number alone is bytes, here as everywhere; schedulers once read it as MiB.
    remedy = f"did you mean {unit}Mi?" if 0 < unit < 1 << 20 else "write it in whole Mi or Gi, such as 256Mi"
    return f"{unit} bytes is no unit; {remedy}"


def _problems(gpus: GpusSection) -> Iterator[tuple[str, str]]:
    if not gpus.dialects:
        yield "dialects", f"the list is empty; name at least one of {', '.join(DIALECTS)}"
    seen: dict[str, int] = {}
    for index, each in enumerate(gpus.dialects):
        path = f"dialects[{index}]"
        if each.name not in DIALECTS:
            yield (
                f"{path}.name",
                f"there is no dialect {show(each.name)}; {suggest(each.name, DIALECTS, 'dialects')}",
            )
        if each.name in seen:
            yield (
                f"{path}.name",
                f"{each.name!r} is already in the list, at [{seen[each.name]}]; remove one of them",
            )
        seen[each.name] = index
        if problem := why_no_unit(each.unit):
            yield f"{path}.unit", problem
    if not 1 <= gpus.health.refresh <= 300:
        yield "health.refresh", f"{gpus.health.refresh:g}s is out of range; choose 1s to 5m"
    if not 0 <= gpus.health.recovery <= 7 * 86400:
        yield "health.recovery", f"{gpus.health.recovery:g}s is out of range; choose 0s to 168h"
    for index, code in enumerate(gpus.health.ignored_xids):
        if not 0 < code < 1 << 31:
            yield f"health.ignoredXids[{index}]", f"{show(code)} is no XID; write a number from 1 on"
    if not _CDI_KIND.fullmatch(gpus.cdi_kind):
        yield (
            "cdiKind",
            f"{show(gpus.cdi_kind)} is no kind of CDI device; write it like nvidia.com/gpu",
        )
    paths = {
        "mock": gpus.mock,
        "hamiCore.folder": gpus.hami_core.folder,
        "hamiCore.lock": gpus.hami_core.lock,
    }
    for name, file in {**paths, "gem.folder": gpus.gem.folder}.items():
        if file is not None and not file.is_absolute():
            yield name, f"{show(str(file))} is not an absolute path; begin it with '/'"
    if not 0 <= gpus.gem.port <= 65535:
        yield "gem.port", f"{show(gpus.gem.port)} is not a port; choose one up to 65535"
    if "/" in gpus.gem.library or not gpus.gem.library:
        yield "gem.library", f"{show(gpus.gem.library)} is not the name of a file in gem.folder"
