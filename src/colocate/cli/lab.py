"""`colocate lab`: an embedded cluster to point kubectl at."""

import argparse
import asyncio
from pathlib import Path

import uvloop

from colocate.aio import Watched, first, with_signals
from colocate.cli.commands import Commands, positive_seconds
from colocate.cli.main import GROUPS
from colocate.errors import UserError, system_reason, unreadable

try:
    from colocate.lab.cluster import MACHINE, LabCluster
except ImportError as missing:
    raise UserError(
        "the embedded cluster needs more packages; install rich and cryptography, or the extra 'lab' of kube-colocate"
    ) from missing

from colocate.lab.device_manager import STOP_GRACE
from colocate.lab.kubelet import STATUS_SYNC
from colocate.lab.nodes.shape import from_file, generated
from colocate.lab.own_folder import group_of, own_folder
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.lab.scheduler import configuration
from colocate.model.device_cost import kubelet_version
from colocate.model.figures import count

_OLDEST, _NEWEST = (1, 30), (1, 37)


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "lab",
        help=GROUPS["lab"],
        description="Run an embedded cluster until Ctrl-C: an API server, a scheduler, this machine as a node "
        "with "
        "real processes, and simulated nodes. For trials and tests, never for production.",
    )
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="how many simulated nodes (3)")
    parser.add_argument(
        "--nodes-file", type=Path, metavar="FILE", help="simulated nodes from a YAML file instead"
    )
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep the objects in this SQLite file")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="write the kubeconfig here")
    parser.add_argument("--port", type=int, default=0, help="port of the API server on loopback (any)")
    parser.add_argument(
        "--scheduler-config",
        type=Path,
        metavar="FILE",
        help="a KubeSchedulerConfiguration of a second scheduler: profiles and extenders; the default scheduler "
        "stays unless a profile has its name",
    )
    parser.add_argument(
        "--node-name", default=MACHINE, metavar="NAME", help=f"the name of this machine's node ({MACHINE})"
    )
    parser.add_argument(
        "--status-sync",
        default=f"{STATUS_SYNC:g}s",
        metavar="SPAN",
        help="time between two syncs of this machine's node status (10s, as with a real kubelet)",
    )
    parser.add_argument(
        "--plugin-grace",
        default=f"{STOP_GRACE:g}s",
        metavar="SPAN",
        help="how long this machine's kubelet keeps the devices of a plugin that is gone (5m, as with a real "
        "kubelet)",
    )
    parser.add_argument(
        "--kubelet-version",
        default="1.34",
        metavar="VERSION",
        help="the kubelet version that this machine's kubelet imitates (%(default)s); SIGHUP restarts it",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    uvloop.run(_serve(args))


async def _serve(args: argparse.Namespace) -> None:
    shapes = from_file(args.nodes_file) if args.nodes_file else generated(args.nodes)
    scheduling = (
        configuration.read(_text(args.scheduler_config), str(args.scheduler_config))
        if args.scheduler_config
        else None
    )
    status_sync = positive_seconds(args.status_sync, "--status-sync")
    stop_grace = positive_seconds(args.plugin_grace, "--plugin-grace")
    version = kubelet_version(args.kubelet_version)
    if version is None or not _OLDEST <= version <= _NEWEST:
        raise UserError(
            f"--kubelet-version: {args.kubelet_version[:40]!r} is no version of a kubelet; give 1.30 to 1.37"
        )
    stopped = asyncio.Event()
    hung_up = with_signals(stopped.set)
    async with own_folder("lab") as root:
        runtime = ProcessRuntime(root / "pods", parent=group_of("lab"))
        cluster = LabCluster(
            root,
            runtime=runtime,
            nodes=shapes,
            state=args.state,
            scheduling=scheduling,
            status_sync=status_sync,
            stop_grace=stop_grace,
            node_name=args.node_name,
            kubelet_version=version,
        )
        async with cluster.running(port=args.port):
            kubeconfig = args.kubeconfig or root / "kubeconfig"
            try:
                cluster.server.write_kubeconfig(kubeconfig)
            except OSError as error:
                raise UserError(
                    f"--kubeconfig: {kubeconfig} cannot be written ({system_reason(error)}); name another file"
                ) from error
            nodes = count(1 + sum(len(shape.each()) for shape in shapes), "node")
            print(f"export KUBECONFIG={kubeconfig}")
            print(f"# the cluster is ready: {nodes}; Ctrl-C stops it and leaves nothing behind", flush=True)
            if runtime.without_cgroups:
                print(f"# pods are plain processes: {runtime.without_cgroups}", flush=True)
            print(f"# device plugins: COLOCATE_KUBELET_ROOT={cluster.kubelet.paths.root}", flush=True)
            await first(stopped.wait(), _restart_on_demand(cluster, hung_up))


async def _restart_on_demand(cluster: LabCluster, hung_up: Watched) -> None:
    seen = 0
    while True:
        seen = await hung_up.beyond(seen)
        await cluster.kubelet.restart()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({unreadable(error)}); check the path") from error
