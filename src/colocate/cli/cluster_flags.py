"""Flags for the API server, with the names of kubectl's flags."""

import argparse
from pathlib import Path

from colocate.cluster import connection
from colocate.cluster.connection import Connection, Flags
from colocate.cluster.secret import Secret


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add them to a command that talks to a cluster."""
    group = parser.add_argument_group(
        "cluster",
        "Without any of these: KUBECONFIG, ~/.kube/config, or the service account of the pod this runs in.",
    )
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="a kubeconfig file")
    group.add_argument(
        "--context",
        default="",
        metavar="NAME",
        help="a context of the kubeconfig, instead of its current one",
    )
    group.add_argument("--server", default="", metavar="URL", help="the API server's address")
    group.add_argument(
        "--token", default="", metavar="TOKEN", help="a bearer token; other users see it in ps"
    )
    group.add_argument("--token-file", type=Path, metavar="FILE", help="a file with a bearer token")
    group.add_argument(
        "--certificate-authority",
        type=Path,
        metavar="FILE",
        help="the authority that signed the server's certificate",
    )
    group.add_argument("--client-certificate", type=Path, metavar="FILE", help="a certificate to log in with")
    group.add_argument("--client-key", type=Path, metavar="FILE", help="the key of that certificate")
    group.add_argument(
        "--insecure-skip-tls-verify", action="store_true", help="do not check the server's certificate"
    )


def find(args: argparse.Namespace) -> Connection:
    """The connection from flags, environment and files; UserError if there is none."""
    return connection.find(
        Flags(
            kubeconfig=args.kubeconfig,
            context=args.context,
            server=args.server,
            token=Secret(args.token) if args.token else None,
            token_file=args.token_file,
            certificate_authority=args.certificate_authority,
            client_certificate=args.client_certificate,
            client_key=args.client_key,
            insecure=args.insecure_skip_tls_verify,
        )
    )


def is_stated(args: argparse.Namespace) -> bool:
    """Whether a flag names a cluster: then a failure to reach it is an error."""
    return bool(args.kubeconfig or args.context or args.server)
