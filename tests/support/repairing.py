"""A process that does nothing but replace one file, for tests that make its system calls fail.

python -m tests.support.repairing FILE
"""

import sys
from pathlib import Path

from colocate.clock import ManualClock
from colocate.devices.checkpoint import file
from colocate.errors import exit_on_user_error

OLD = b"the old record, whole\n"
NEW = b"the new record, whole as well\n" * 1000

if __name__ == "__main__":
    with exit_on_user_error():
        file.replace(file.read(Path(sys.argv[1])), NEW, ManualClock())
