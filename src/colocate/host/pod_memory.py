"""Reads the memory of every pod of this machine from its control groups. Decides nothing.

It reads the pod's own group, which contains all its containers and outlives them. Files stay open from turn to turn;
three folders are listed each time to find the pods. A pod whose group vanishes meanwhile has ended. A pod whose files
cannot be parsed is returned with the reason, and does not affect the others.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from colocate.host.cgroups import Tree
from colocate.host.group_files import GroupFiles, group_files
from colocate.host.kept_files import DescriptorBudget
from colocate.host.memory_files import Garbled
from colocate.host.pod_groups import PodGroup, PodTier, find_pod, find_tiers, subfolders
from colocate.model.memory import PodMemory, PodUid


class Unread(msgspec.Struct, frozen=True):
    """A pod that exists and could not be read."""

    uid: PodUid
    reason: str


class PodsReading(msgspec.Struct, frozen=True):
    """All pods at one moment."""

    pods: tuple[PodMemory, ...] = ()
    unread: tuple[Unread, ...] = ()


class PodMemoryReader:
    """Reads all pods, turn after turn. Not thread-safe."""

    def __init__(
        self, tree: Tree, *, below: Path = Path(), by_node: bool = False, descriptors: int | None = None
    ) -> None:
        """Read pods below the group `below`; with `by_node` also on which NUMA nodes their memory is."""
        self._tree = tree
        self._below = below
        self._by_node = by_node
        self._budget = DescriptorBudget(descriptors)
        self._tiers: list[_Tier] = []
        self._met_pods = False

    def look_by_node(self, by_node: bool) -> None:
        """Switch `by_node` on or off."""
        if by_node != self._by_node:
            self._by_node = by_node
            self.close()
            self._met_pods = False

    def read(self) -> PodsReading:
        """Every pod that exists now."""
        if not (self._met_pods and all(tier.root_is_there() for tier in self._tiers)):
            self._look_for_tiers()
        pods: dict[PodUid, PodMemory] = {}
        unread: list[Unread] = []
        for tier in self._tiers:
            for name, uid, files in tier.pods():
                try:
                    pod = files.pod(uid, tier.where.qos)
                except FileNotFoundError:
                    tier.forget(name)
                except (OSError, Garbled) as error:
                    unread.append(Unread(uid, str(error)))
                else:
                    # Two groups of one pod: a kubelet with the other naming left one.
                    if uid not in pods or pods[uid].usage < pod.usage:
                        pods[uid] = pod
        self._met_pods = bool(pods)
        return PodsReading(tuple(pods.values()), tuple(unread))

    def find(self, uid: PodUid) -> PodGroup | None:
        """A pod's group, even one newer than the last reading; None where it has none."""
        found = self._find(uid)
        if found is None:
            self._look_for_tiers()
            found = self._find(uid)
        return found

    def _find(self, uid: PodUid) -> PodGroup | None:
        return find_pod(self._tree, tuple(tier.where for tier in self._tiers), uid)

    def close(self) -> None:
        """Close every file; a later read opens them again."""
        for tier in self._tiers:
            tier.close()
        self._tiers = []

    def _look_for_tiers(self) -> None:
        """Search the tree. That is expensive, so it is done only when pods are missing.

        A kubelet may start after the agent, end, or return with the other naming.
        """
        found = find_tiers(self._tree, self._below)
        if found != tuple(tier.where for tier in self._tiers):
            self.close()
            self._tiers = [_Tier(each, self) for each in found]

    def files(self, folder: Path) -> GroupFiles:
        return group_files(self._tree.version, folder, self._budget, by_node=self._by_node)


class _Tier:
    """The pods of one QoS class, and their files."""

    def __init__(self, where: PodTier, reader: PodMemoryReader) -> None:
        self.where = where
        self._reader = reader
        self._pods: dict[str, tuple[PodUid, GroupFiles]] = {}
        """Uid and files by the name of the group."""
        self._others: set[str] = set()
        """Names of groups that are not pods, such as the other QoS classes."""

    def pods(self) -> Iterator[tuple[str, PodUid, GroupFiles]]:
        """Every pod whose group exists now."""
        names = subfolders(self.where.folder)
        for name in self._pods.keys() - names:
            self.forget(name)
        for name in names:
            if name not in self._pods and name not in self._others:
                self._meet(name)
        return iter([(name, uid, files) for name, (uid, files) in self._pods.items()])

    def _meet(self, name: str) -> None:
        uid = self.where.uid(name)
        if uid is None:
            self._others.add(name)
        else:
            self._pods[name] = uid, self._reader.files(self.where.folder / name)

    def forget(self, name: str) -> None:
        _, files = self._pods.pop(name)
        files.close()

    def root_is_there(self) -> bool:
        return self.where.root.is_dir()

    def close(self) -> None:
        for _, files in self._pods.values():
            files.close()
