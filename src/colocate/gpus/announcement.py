"""How an agent tells schedulers of the GPUs of its node: an annotation of the node, which no tenant may write.

Node status has only sums, and a pod needs one GPU that fits. What comes from the API is bounded and checked all the
same: a node may be compromised, and must not harm others by what it says.
"""

from collections.abc import Mapping

import msgspec

from colocate.model.gpu import Gpu, GpuInventory, Mebibytes

ANNOUNCED = "colocate.dev/gpus"
"""The node's annotation."""

_LONGEST = 32 << 10
"""Characters; a node has a dozen GPUs, of a hundred characters each."""
_MOST_GPUS = 64
_MOST_MEMORY: Mebibytes = 1 << 24
_LONGEST_NAME = 128


class _AnnouncedGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    uuid: str
    memory: int
    index: int = 0
    model: str = ""
    healthy: bool = True
    mig: bool = False
    numa: int | None = None


_decoder = msgspec.json.Decoder(tuple[_AnnouncedGpu, ...])


def announcement_of(inventory: GpuInventory) -> str:
    """What the annotation says of these GPUs."""
    gpus = [
        _AnnouncedGpu(
            gpu.uuid,
            gpu.memory,
            gpu.index,
            gpu.model[:_LONGEST_NAME],
            healthy=gpu.healthy,
            mig=gpu.mig,
            numa=gpu.numa,
        )
        for gpu in inventory.gpus[:_MOST_GPUS]
    ]
    return msgspec.json.encode(gpus).decode()


def announced(annotations: Mapping[str, str]) -> GpuInventory | None:
    """The GPUs of a node by its annotations; None where it says nothing of any. ValueError says what is wrong."""
    text = annotations.get(ANNOUNCED)
    if text is None:
        return None
    if len(text) > _LONGEST:
        raise ValueError(
            f"its annotation {ANNOUNCED} has {len(text)} characters; at most {_LONGEST} are read"
        )
    try:
        gpus = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"its annotation {ANNOUNCED} cannot be read: {error}") from None
    if len(gpus) > _MOST_GPUS:
        raise ValueError(f"its annotation {ANNOUNCED} names {len(gpus)} GPUs; at most {_MOST_GPUS} are read")
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise ValueError(f"its annotation {ANNOUNCED} names a GPU twice")
    return GpuInventory(tuple(_checked(gpu) for gpu in gpus))


def _checked(gpu: _AnnouncedGpu) -> Gpu:
    if not gpu.uuid or len(gpu.uuid) > _LONGEST_NAME or not _is_plain(gpu.uuid):
        raise ValueError(f"its annotation {ANNOUNCED} has a GPU without a usable UUID")
    if not 0 < gpu.memory <= _MOST_MEMORY or not 0 <= gpu.index < 1 << 16:
        raise ValueError(f"its annotation {ANNOUNCED} gives GPU {gpu.uuid} an impossible memory or index")
    return Gpu(
        uuid=gpu.uuid,
        index=gpu.index,
        memory=gpu.memory,
        model=gpu.model[:_LONGEST_NAME] if gpu.model.isprintable() else "",
        numa=gpu.numa,
        mig=gpu.mig,
        healthy=gpu.healthy,
        trouble="" if gpu.healthy else "its agent says so",
    )


def _is_plain(name: str) -> bool:
    """Whether lists of such names can be read again."""
    return name.isascii() and name.isprintable() and not set(name) & set(",; ")
