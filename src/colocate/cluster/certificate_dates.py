"""Reads when a certificate expires, which explains most refusals. Pure; verifies nothing.

The ssl module shows only the dates of the peer's certificate, and a library for X.509 would cost every agent more
memory than the rest of TLS.
"""

import ssl
from datetime import UTC, datetime

_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_VERSION = 0xA0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def not_after(pem: str) -> float | None:
    """When the first certificate in a text expires, in seconds since the epoch; None where there is no
    certificate."""
    start, end = pem.find(_BEGIN), pem.find(_END)
    if start < 0 or end < start:
        return None
    try:
        return _end_of(ssl.PEM_cert_to_DER_cert(pem[start : end + len(_END)]))
    except (ValueError, IndexError):
        return None


def _end_of(der: bytes) -> float:
    certificate = _inside(der, 0)
    tbs = _inside(der, certificate)
    # version (optional), serialNumber, signature, issuer, validity
    place = _after(der, tbs) if der[tbs] == _VERSION else tbs
    for _ in range(3):
        place = _after(der, place)
    end = _after(der, _inside(der, place))
    text = der[_inside(der, end) : _after(der, end)].decode("ascii")
    if der[end] == _UTC_TIME:
        # A year of two digits: 50 to 99 mean 1950 to 1999 (RFC 5280).
        text = ("19" if text[:2] >= "50" else "20") + text
    elif der[end] != _GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _inside(der: bytes, place: int) -> int:
    """The index where the content of an element begins."""
    length = der[place + 1]
    return place + 2 + (length & 0x7F if length & 0x80 else 0)


def _after(der: bytes, place: int) -> int:
    """The index where the next element begins."""
    start, length = _inside(der, place), der[place + 1]
    if length & 0x80:
        length = int.from_bytes(der[place + 2 : start], "big")
    return start + length
