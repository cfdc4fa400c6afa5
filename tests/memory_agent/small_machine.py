"""A machine small enough for a test: this one's pods, real, and a node's figures as if nothing else were there."""

from pathlib import Path

from colocate.host import cgroups, memory_files
from colocate.host.group_files import group_files
from colocate.host.kept_files import DescriptorBudget
from colocate.memory.agent.machine import Machine
from colocate.model.memory import NodeMemory
from colocate.model.pod import QosClass

MIB = 1 << 20
TOTAL = 1024 * MIB
SYSTEM = 600 * MIB


class SmallMachine:
    """1 GiB, of which the system uses 600 MiB, and all else is what pods below one group use."""

    def __init__(self, parent: Path) -> None:
        self.tree = cgroups.find_tree()
        self._parent = parent
        self._folder = self.tree.roots["memory"] / parent
        self.system = SYSTEM

    def read(self) -> NodeMemory:
        if not self._folder.is_dir():
            return self._node(0, 0, 0)
        files = group_files(self.tree.version, self._folder, DescriptorBudget(None))
        try:
            pods = files.pod("all", QosClass.GUARANTEED)
        except (FileNotFoundError, memory_files.Garbled):
            return self._node(0, 0, 0)
        finally:
            files.close()
        return self._node(pods.usage, pods.file, pods.inactive_file)

    def _node(self, used: int, file: int, inactive: int) -> NodeMemory:
        free = TOTAL - self.system - used
        return NodeMemory(total=TOTAL, free=free, available=free + file, inactive_file=inactive)

    def machine(self) -> Machine:
        return Machine(self._parent, read_node=self.read)
