"""`colocate gpu`: GPUs that pods share, on this node and in traces."""

from colocate.cli.commands import Commands
from colocate.cli.gpu_questions import add_questions
from colocate.cli.gpu_replay import add_replay
from colocate.cli.main import GROUPS


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "gpu", help=GROUPS["gpu"], description="Look at GPUs that pods share, and try how to pack them."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    add_questions(commands)
    add_replay(commands)
