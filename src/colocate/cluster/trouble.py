"""Describes connection errors for people: aiohttp's own messages show Python objects."""

import os
import socket
import ssl

import aiohttp

_OF_CERTIFICATES = ("unknown ca", "access denied", "decrypt error")
"""TLS alerts about a certificate that do not contain that word."""


def in_words(error: aiohttp.ClientError | OSError) -> str:
    """What went wrong, without the server's name, which the caller adds."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not trusted, {of_certificate(error)}"
        case aiohttp.ClientConnectorError():
            return in_words(error.os_error)
        case ssl.SSLError() if reason := getattr(error, "reason", None):
            # Only errors of OpenSSL have a reason.
            return str(reason).replace("_", " ").lower()
        case OSError() if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
            # Its own message is "connect call failed" for every cause.
            return os.strerror(error.errno).lower()
        case OSError() if error.strerror:
            return error.strerror.lower()
        case aiohttp.ClientResponseError():
            # Its own message would show the address, and with it a proxy's password.
            return " ".join(error.message.split()) or type(error).__name__
    return " ".join(str(error).split()) or type(error).__name__


def of_our_certificate(error: BaseException | None) -> str:
    """Why the server refuses our client certificate or its absence; empty where that is not the problem. In TLS 1.3
    the server says so after the handshake."""
    while error is not None:
        # Only errors of OpenSSL have a reason.
        if isinstance(error, ssl.SSLError) and (reason := getattr(error, "reason", None)):
            said = str(reason).partition("ALERT_")[2].lower().replace("_", " ")
            return said if "certificate" in said or said in _OF_CERTIFICATES else ""
        error = error.__cause__ or error.__context__
    return ""


def of_certificate(error: aiohttp.ClientConnectorCertificateError) -> str:
    """Why a certificate is not trusted."""
    found = error.certificate_error
    return found.verify_message if isinstance(found, ssl.SSLCertVerificationError) else str(found)
