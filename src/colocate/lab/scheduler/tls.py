"""Whom an extender's client trusts, and what it shows of itself."""

import base64
import binascii
import ssl
import tempfile
from pathlib import Path

from colocate.errors import UserError
from colocate.lab.scheduler.configuration import ExtenderSettings, ExtenderTls


def client_context(settings: ExtenderSettings) -> ssl.SSLContext | bool:
    """How to call an extender: True leaves it to the system's authorities."""
    tls = settings.tls
    if tls == ExtenderTls() and not settings.enable_https:
        return True
    try:
        return _context(tls, unknown_is_fine=settings.enable_https)
    except (OSError, ssl.SSLError, binascii.Error, ValueError) as error:
        raise UserError(
            f"tlsConfig of the extender at {settings.url_prefix} cannot be used: {error}: "
            "check that its files are there and its data is PEM in base64"
        ) from None


def _context(tls: ExtenderTls, unknown_is_fine: bool) -> ssl.SSLContext:
    has_authority = bool(tls.ca_file or tls.ca_data)
    authority = base64.b64decode(tls.ca_data, validate=True).decode() if tls.ca_data else None
    context = ssl.create_default_context(cafile=tls.ca_file or None, cadata=authority)
    # kube-scheduler believes any server where HTTPS is on and no authority was named; so must its stand-in.
    if tls.insecure or (unknown_is_fine and not has_authority):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_data and tls.key_data:
        _load_pair(context, tls)
    elif tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    return context


def _load_pair(context: ssl.SSLContext, tls: ExtenderTls) -> None:
    # The ssl module reads certificates from files only.
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(
            b"\n".join(base64.b64decode(data, validate=True) for data in (tls.key_data, tls.cert_data))
        )
        context.load_cert_chain(pair)
