"""`colocate scheduler`: runs the process that kube-scheduler asks, and prints its configuration."""

import argparse
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from colocate import telemetry
from colocate.cli import (
    cluster_flags,
    scheduler_config,
    scheduler_questions,
    scheduler_record,
    scheduler_replay,
)
from colocate.cli.commands import Commands, add_command
from colocate.cli.main import GROUPS
from colocate.cli.output import terminal_width, wrapped
from colocate.cluster.client import Client
from colocate.config.document import VERSION
from colocate.config.file import Underlay, build_document, load_document
from colocate.config.override import from_assignments, unknown_variables
from colocate.config.words import Problem
from colocate.errors import UserError, system_reason
from colocate.gpus import COLOCATE, DIALECTS, Dialect, dialect
from colocate.host.files import write_atomically
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube import seed as seed_config
from colocate.scheduler.kube.configuration import (
    DEFAULT_NAME,
    KubeProfile,
    TlsFiles,
    WantedConfiguration,
    has_login,
    leads_somewhere,
    with_token,
)
from colocate.scheduler.kube.seed import Seed, over_seed
from colocate.scheduler.process import run_scheduler
from colocate.scheduler.server.tokens import own_token_file, tokens
from colocate.scheduler.settings import DEFAULT_TOKEN_FILE, SCHEDULER, Act, SchedulerConfig, check
from colocate.telemetry import Event

_DEFAULT = WantedConfiguration()
_LEAST = 20
"""Least columns for a comment; in fewer it is not wrapped."""
_EMPTY = f"version: {VERSION}".encode()


def add(groups: Commands) -> None:
    parser = groups.add_parser(
        "scheduler", help=GROUPS["scheduler"], description="Schedule pods by what nodes really use."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_serve(commands)
    scheduler_questions.add(commands)
    _add_kube_config(commands)
    scheduler_config.add(commands)
    scheduler_record.add(commands)
    scheduler_replay.add(commands)


def _add_serve(commands: Commands) -> None:
    command = commands.add_parser(
        "serve",
        help="run the scheduler's process: follow the cluster and Prometheus, answer kube-scheduler, write "
        "taints",
        description="Follow the cluster and Prometheus, and bring pods to nodes that really have room.",
        epilog="SIGTERM and SIGINT stop it. 'colocate scheduler config example' prints a configuration.",
    )
    command.add_argument("--config", type=Path, metavar="FILE", help="the configuration")
    command.add_argument(
        "--from",
        dest="seed",
        type=Path,
        metavar="FILE",
        help="take the address of Prometheus and the policy of each profile from a kube-scheduler "
        "configuration with MemRealUsage or CpuRealUsage",
    )
    command.add_argument(
        "--act",
        metavar="WAYS",
        help=f"instead of the configuration's: {', '.join(Act)}, or several with commas",
    )
    command.add_argument(
        "--shadow", action="store_true", help="change nothing, and record what would have been done"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any single value of the configuration",
    )
    cluster_flags.add_flags(command)
    command.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> None:
    seed = None if args.seed is None else seed_config.read(_text(args.seed), str(args.seed))
    config = _config(args, seed)
    telemetry.configure_logs(config.log.format, config.log.level)
    for warning in unknown_variables(os.environ, SCHEDULER):
        telemetry.logger().warning(Event.CONFIG_DOUBTFUL, reason=warning)
    for doubt in seed.doubts if seed else ():
        telemetry.logger().warning(Event.CONFIG_DOUBTFUL, reason=f"{args.seed}: {doubt}")
    uvloop.run(_serve(args, config))


async def _serve(args: argparse.Namespace, config: SchedulerConfig) -> None:
    async with Client(cluster_flags.find(args)) as client:
        await run_scheduler(config, client)


def _config(args: argparse.Namespace, seed: Seed | None) -> SchedulerConfig:
    """The configuration from the flags, each overriding the one before: --from, --config, --set, --act, --shadow."""
    if args.config is None and args.seed is None:
        raise UserError("--config: no configuration is given; give one, or a kube-scheduler's with --from")
    read = partial(_read, args)
    config = over_seed(seed, read) if seed else read({})
    if args.act is not None:
        config = msgspec.structs.replace(config, act=_ways(args.act))
    if args.shadow:
        config = msgspec.structs.replace(config, shadow=True)
    try:
        check(config)
    except Problem as problem:
        raise UserError(f"{args.config or args.seed}: {problem}") from None
    return config


def _read(args: argparse.Namespace, under: Mapping[str, Any]) -> SchedulerConfig:
    """The configuration of --config and --set, over an underlay."""
    below, overrides = Underlay(under, f"--from {args.seed}"), from_assignments(args.set)
    if args.config is not None:
        return load_document(SCHEDULER, args.config, os.environ, overrides, below).config
    return build_document(SCHEDULER, _EMPTY, str(args.seed), os.environ, overrides, below).config


def _ways(text: str) -> tuple[Act, ...]:
    try:
        return tuple(dict.fromkeys(Act(word.strip()) for word in text.split(",")))
    except ValueError:
        raise UserError(
            f"--act: {text!r} is not a way to act; write {', '.join(Act)}, or several with commas"
        ) from None


def _add_kube_config(commands: Commands) -> None:
    command = add_command(
        commands,
        "kube-config",
        "print the configuration of a second, stock kube-scheduler that asks the extender",
        "Every line has its reason; the extender's weight is computed from the other plugins that score.",
    )
    command.add_argument(
        "--scheduler-name",
        action="append",
        metavar="NAME",
        help=f"a profile's name ({DEFAULT_NAME}); may be repeated",
    )
    command.add_argument(
        "--from",
        dest="seed",
        type=Path,
        metavar="FILE",
        help="take over a configuration with MemRealUsage or CpuRealUsage, with all its profiles",
    )
    command.add_argument(
        "--with-score-plugins",
        action="store_true",
        help="with --from: use kube-scheduler's own score plugins even if that file switches them all off",
    )
    command.add_argument("--url", default=_DEFAULT.url, help="where the extender listens (%(default)s)")
    command.add_argument(
        "--filter",
        action="store_true",
        help="refuse nodes that are too hot, instead of only scoring them low",
    )
    command.add_argument(
        "--points",
        type=int,
        default=_DEFAULT.points,
        metavar="N",
        help="a node that scores N of 100 points less than another always loses (instead: the weight that leaves "
        "the fewest hot nodes in replays)",
    )
    command.add_argument(
        "--gpus",
        nargs="?",
        const=COLOCATE.name,
        metavar="DIALECTS",
        help=f"let Colocate choose the GPUs of pods that ask in these dialects, with commas: {', '.join(DIALECTS)} "
        f"({COLOCATE.name} where none is named)",
    )
    command.add_argument(
        "--gpu-points",
        type=int,
        default=_DEFAULT.gpu_points,
        metavar="N",
        help="as --points, among nodes with GPUs that fit (%(default)s)",
    )
    command.add_argument(
        "--without-load", action="store_true", help="with --gpus: do not score nodes by what they use"
    )
    command.add_argument(
        "--timeout",
        default=_DEFAULT.timeout,
        metavar="TIME",
        help="how long kube-scheduler waits for an answer (%(default)s)",
    )
    command.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="kube-scheduler's own kubeconfig, if it needs one"
    )
    command.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="put the token of this file into urlPrefix (for an extender on this machine, "
        f"{DEFAULT_TOKEN_FILE} if you may read it)",
    )
    command.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write to a file that only you can read, instead of standard output",
    )
    tls = command.add_argument_group("HTTPS", "Give paths as kube-scheduler sees them.")
    tls.add_argument(
        "--ca-file", default="", metavar="FILE", help="the authority that signed the extender's certificate"
    )
    tls.add_argument("--cert-file", default="", metavar="FILE", help="a certificate for the extender")
    tls.add_argument("--key-file", default="", metavar="FILE", help="its key")
    tls.add_argument(
        "--server-name", default="", metavar="NAME", help="the name in the extender's certificate"
    )
    command.set_defaults(run=print_kube_config)


def print_kube_config(args: argparse.Namespace) -> None:
    lines: list[str] = []
    spoken = [dialect(name.strip()) for name in args.gpus.split(",")] if args.gpus else []
    names = args.scheduler_name or _names_of(spoken) or [DEFAULT_NAME]
    wanted = WantedConfiguration(
        url=_showing_a_token(args),
        profiles=tuple(KubeProfile(name) for name in names),
        filter=args.filter,
        points=args.points,
        timeout=args.timeout,
        tls=TlsFiles(args.ca_file, args.cert_file, args.key_file, args.server_name),
        kubeconfig=args.kubeconfig,
        loads=not args.without_load,
        gpus=[name for one in spoken for name in (one.memory, one.cores, one.count) if name],
        gpu_points=args.gpu_points,
    )
    if args.seed is not None:
        if args.scheduler_name:
            raise UserError("--scheduler-name: the file of --from names the profiles; leave one out")
        seed = seed_config.read(_text(args.seed), str(args.seed), others_score=args.with_score_plugins)
        wanted = seed_config.taken_over(seed, wanted)
        lines += [f"# {line}" for line in seed_config.for_our_settings(seed)]
        for doubt in seed.doubts:
            print(f"warning: {args.seed}: {doubt}", file=sys.stderr)
    lines += kube_config.render(wanted).splitlines()
    if args.write is not None:
        _write(args.write, lines)
    if not has_login(wanted.url) and not args.cert_file:
        print(
            "warning: urlPrefix has no token, but the extender asks for one by default; give its file with "
            f"--token-file ({DEFAULT_TOKEN_FILE} on the extender's machine, created when it first starts)",
            file=sys.stderr,
        )
    if args.write is not None:
        return
    if has_login(wanted.url):
        _keep_secret()
    for line in lines:
        print(*_fitted(line, terminal_width()), sep="\n")


def _names_of(spoken: Sequence[Dialect]) -> list[str]:
    """The scheduler names that users of these dialects write."""
    return [one.scheduler for one in spoken if one.scheduler]


def _showing_a_token(args: argparse.Namespace) -> str:
    """The address with the extender's token, if there is one."""
    url = str(args.url)
    if not leads_somewhere(url):
        # Reported with the other problems.
        return url
    file = args.token_file or (None if args.cert_file else own_token_file(url))
    if file is not None:
        if has_login(url):
            raise UserError("--token-file: the address of --url already has a password; leave one out")
        return with_token(url, tokens(file, "--token-file")[0])
    return url


def _keep_secret() -> None:
    """Note that the output contains a token; if it goes to a file, let only its owner read it."""
    output = sys.stdout.fileno()
    closed = ""
    if stat.S_ISREG(os.fstat(output).st_mode):
        with suppress(OSError):
            os.fchmod(output, 0o600)
            closed = "; the file's mode is now 0600"
    print(f"note: urlPrefix has the extender's token: keep it secret{closed}", file=sys.stderr)


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode(), 0o600)
    except OSError as error:
        reason = system_reason(error)
        raise UserError(f"--write: cannot write {path} ({reason}); give another file") from None


def _fitted(line: str, width: int) -> list[str]:
    """A line of YAML whose comment is wrapped if the terminal is too narrow."""
    before, mark, comment = line.rpartition("# ")
    if not mark or before[-1:] not in ("", " ") or not len(before) + _LEAST < width < len(line):
        return [line]
    return wrapped(comment, width, f"{before}# ", f"{'':{len(before)}}# ")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--from: cannot read {path} ({system_reason(error)}); check the path") from error
