"""What a container is started with because it has a share of a GPU: environment, mounts, CDI devices. Data alone.

What is read back from a kubelet's checkpoint is compared with it: that is how a wrong GPU is noticed.
"""

import ipaddress
from collections.abc import Mapping, Sequence

import msgspec

from colocate.gpus.dialects import Dialect, EnvFact
from colocate.gpus.pods import GpuAsk, GpuPod
from colocate.gpus.read_keys import GEM_IP, GEM_PORT, LIMITS, LOOSENING, VISIBLE
from colocate.gpus.settings import Gem, GpuInjection, GpuSettings, HamiCore
from colocate.model.device import Allocation, Mount
from colocate.model.gpu import Gpu, GpuInventory
from colocate.model.path_word import is_path_word

_NONE = "void"
"""The value of VISIBLE that makes NVIDIA's runtime leave a container alone."""
_LIBRARY = "/usr/local/vgpu/libvgpu.so"
"""Where ld.so.preload expects it."""
_CACHE = "/tmp/vgpu"
_LOCK = "/tmp/vgpulock"
"""As HAMi-core has them, inside the container."""


def injection(
    pod: GpuPod,
    ask: GpuAsk,
    asks: Sequence[GpuAsk],
    gpus: Sequence[Gpu],
    dialect: Dialect,
    settings: GpuSettings,
) -> Allocation:
    """What the container of that request is started with when it has these GPUs."""
    uuids = ",".join(gpu.uuid for gpu in gpus)
    facts = {
        EnvFact.UUIDS: uuids,
        EnvFact.INDEXES: ",".join(str(gpu.index) for gpu in gpus),
        EnvFact.POD: str(sum(each.units for each in asks)),
        EnvFact.CONTAINER: str(ask.units),
        EnvFact.TOTAL: str(dialect.in_units(gpus[0].memory)) if gpus else "0",
        EnvFact.UNIT: str(dialect.unit),
    }
    by_cdi = settings.injection is GpuInjection.CDI
    envs = {VISIBLE: _NONE if by_cdi else uuids, **{name: facts[fact] for name, fact in dialect.envs.items()}}
    mounts: list[Mount] = []
    if settings.hami_core is not None:
        envs |= _hami_envs(settings.hami_core, ask, len(gpus))
        mounts += _hami_mounts(settings.hami_core, pod.uid, ask.container)
    if settings.gem is not None:
        envs |= _gem_envs(settings.gem, pod)
        mounts.append(Mount(settings.gem.folder, settings.gem.folder, read_only=True))
    cdi = tuple(f"{settings.cdi_kind}={gpu.uuid}" for gpu in gpus) if by_cdi else ()
    return Allocation(envs=envs, mounts=tuple(mounts), cdi=cdi)


def injected_gpus(allocation: Allocation, dialect: Dialect, inventory: GpuInventory) -> tuple[str, ...]:
    """The UUIDs that an injection names, by CDI, by the dialect's own variable, or by VISIBLE; those unknown, too."""
    by_uuid = [allocation.envs.get(name, "") for name, fact in dialect.envs.items() if fact is EnvFact.UUIDS]
    by_index = [
        allocation.envs.get(name, "") for name, fact in dialect.envs.items() if fact is EnvFact.INDEXES
    ]
    named = [name.partition("=")[2] for name in allocation.cdi]
    for text in (",".join(named), allocation.envs.get(VISIBLE, ""), *by_uuid):
        if text and text != _NONE:
            return tuple(text.split(","))
    for text in filter(None, by_index):
        places = [inventory.at(int(word)) if word.isdigit() else None for word in text.split(",")]
        return tuple(gpu.uuid for gpu in places if gpu is not None)
    return ()


def overridden(pod: GpuPod, container: str, injected: Allocation, settings: GpuSettings) -> tuple[str, ...]:
    """Variables of the pod's own env that go before what a container was given; whatever their value, or its source.

    What comes by envFrom cannot be seen.
    """
    own = [
        env.name
        for each in (*pod.spec.init_containers, *pod.spec.containers)
        if each.name == container
        for env in each.env
    ]
    hami = settings.hami_core is not None
    return tuple(
        dict.fromkeys(
            name
            for name in own
            if name in injected.envs or (hami and (name in LOOSENING or name.startswith(LIMITS)))
        )
    )


def is_same(one: Allocation, other: Allocation) -> bool:
    """Whether two injections do the same to a container; a cache folder is as good as any other."""
    return _compared(one) == _compared(other)


def _compared(allocation: Allocation) -> object:
    mounts = [
        mount if mount.container_path != _CACHE else msgspec.structs.replace(mount, host_path="")
        for mount in allocation.mounts
    ]
    ordered = sorted(mounts, key=lambda mount: mount.container_path)
    return dict(allocation.envs), ordered, sorted(allocation.cdi)


def _hami_envs(hami: HamiCore, ask: GpuAsk, gpus: int) -> Mapping[str, str]:
    envs = {f"CUDA_DEVICE_MEMORY_LIMIT_{place}": f"{ask.memory}m" for place in range(gpus)}
    envs["CUDA_DEVICE_SM_LIMIT"] = str(ask.cores)  # 0 is no limit to it.
    envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_CACHE}/share.cache"
    if hami.oversubscribe:
        envs["CUDA_OVERSUBSCRIBE"] = "true"
    return envs


def _hami_mounts(hami: HamiCore, uid: str, container: str) -> list[Mount]:
    mounts = [
        Mount(_LIBRARY, f"{hami.folder}/libvgpu.so", read_only=True),
        Mount("/etc/ld.so.preload", f"{hami.folder}/ld.so.preload", read_only=True),
        Mount(_LOCK, hami.lock),
    ]
    if is_path_word(uid) and is_path_word(container):
        mounts.append(Mount(_CACHE, f"{hami.folder}/containers/{uid}_{container}"))
    return mounts


def _gem_envs(gem: Gem, pod: GpuPod) -> Mapping[str, str]:
    return {
        "LD_PRELOAD": f"{gem.folder}/{gem.library}",
        "POD_MANAGER_IP": _address(pod.annotations.get(GEM_IP, "")) or gem.ip,
        "POD_MANAGER_PORT": str(_port(pod.annotations.get(GEM_PORT, "")) or gem.port),
        "POD_NAME": pod.key,
    }


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return port if port < 1 << 16 else 0
