"""What is wrong with a connection, in words for people: aiohttp's own show objects of Python."""

import os
import socket
import ssl

import aiohttp

_OF_CERTIFICATES = ("unknown ca", "access denied", "decrypt error")
"""Alerts that are about a certificate and do not say the word."""


def in_words(error: aiohttp.ClientError | OSError) -> str:
    """What was found, without who was asked: the caller knows how to name that."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not trusted, {of_certificate(error)}"
        case aiohttp.ClientConnectorError():
            return in_words(error.os_error)
        case ssl.SSLError() if reason := getattr(error, "reason", None):
            # Only what OpenSSL found has one.
            return str(reason).replace("_", " ").lower()
        case OSError() if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
            # Not its own words, which are "connect call failed" for whatever has happened to a call.
            return os.strerror(error.errno).lower()
        case OSError() if error.strerror:
            return error.strerror.lower()
        case aiohttp.ClientResponseError():
            # Its own words would show the address, and with it a proxy's password.
            return " ".join(error.message.split()) or type(error).__name__
    return " ".join(str(error).split()) or type(error).__name__


def of_our_certificate(error: BaseException | None) -> str:
    """What the other side holds against the certificate that we show, or do not show; empty where it is not that.
    In TLS 1.3 it says so after the handshake."""
    while error is not None:
        # Only what OpenSSL found has a reason.
        if isinstance(error, ssl.SSLError) and (reason := getattr(error, "reason", None)):
            said = str(reason).partition("ALERT_")[2].lower().replace("_", " ")
            return said if "certificate" in said or said in _OF_CERTIFICATES else ""
        error = error.__cause__ or error.__context__
    return ""


def of_certificate(error: aiohttp.ClientConnectorCertificateError) -> str:
    """What a certificate lacks."""
    found = error.certificate_error
    return found.verify_message if isinstance(found, ssl.SSLCertVerificationError) else str(found)
