"""A shell in a VM, to look around: python -m tests.vm.shell TOPOLOGY. `exit` switches the VM off."""

import sys

from tests.support import components
from tests.vm.image import Order
from tests.vm.machine import NEEDS, Machine
from tests.vm.topology import TOPOLOGIES


def main(arguments: list[str]) -> int:
    name = arguments[0] if len(arguments) == 1 else ""
    if name not in TOPOLOGIES:
        return _refuse(f"name a topology: one of {', '.join(TOPOLOGIES)}")
    if lacking := components.missing(*NEEDS):
        return _refuse(f"{lacking} is not here: run tools/install-components as root on Debian")
    sys.stdout.write(
        f"{name}: a VM with this machine's files, changes are lost; `exit` ends it, and Ctrl-A X at once\n"
    )
    with Machine(
        TOPOLOGIES[name],
        Order(["bash", "--norc"], {"TERM": "vt220", "PS1": rf"{name}:\w# "}, interactive=True),
    ) as machine:
        code = machine.wait()
        if code:
            sys.stderr.write(f"{machine.console()}\n")
        return code


def _refuse(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
