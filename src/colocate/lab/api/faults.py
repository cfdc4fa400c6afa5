"""Messages about invalid fields, worded as by API servers."""

import re
from collections.abc import Sequence
from functools import lru_cache

from colocate.lab.api.objects import encode
from colocate.lab.api.status import StatusCause

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = rf"({_QUALIFIED})?"


def required(field: str, why: str = "") -> StatusCause:
    return StatusCause("FieldValueRequired", f"Required value: {why}" if why else "Required value", field)


def invalid(field: str, value: object, why: str) -> StatusCause:
    return StatusCause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}", field)


def unsupported(field: str, value: object, supported: Sequence[str]) -> StatusCause:
    listed = ", ".join(f'"{one}"' for one in supported)
    words = f"Unsupported value: {_shown(value)}: supported values: {listed}"
    return StatusCause("FieldValueNotSupported", words, field)


def refused(field: str, why: str) -> StatusCause:
    return StatusCause("FieldValueForbidden", f"Forbidden: {why}", field)


def duplicate(field: str, value: object) -> StatusCause:
    return StatusCause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", field)


def _shown(value: object) -> str:
    return encode(value).decode()


def subdomain_fault(name: str) -> str:
    """Why a text is not a DNS subdomain; empty if it is."""
    if len(name) > 253:
        return "must be no more than 253 characters"
    if re.fullmatch(_SUBDOMAIN, name):
        return ""
    return (
        "a lowercase RFC 1123 subdomain is made of lower case letters, digits, '-' and '.', "
        "with a letter or digit at both ends of every part"
    )


def label_fault(name: str) -> str:
    """Why a text is not a DNS label; empty if it is."""
    if len(name) > 63:
        return "must be no more than 63 characters"
    if re.fullmatch(_LABEL, name):
        return ""
    return (
        "a lowercase RFC 1123 label is made of lower case letters, digits and '-', "
        "with a letter or digit at both ends"
    )


def path_segment_fault(name: str) -> str:
    """Why a text is not one step of a path, the rule for names of roles; empty if it is."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    held = next((sign for sign in "/%" if sign in name), "")
    return f"may not contain '{held}'" if held else ""


@lru_cache(maxsize=4096)
def qualified_name_fault(name: str) -> str:
    """Why a text is not a label or annotation key; empty if it is."""
    prefix, slash, last = name.rpartition("/")
    if slash and subdomain_fault(prefix):
        return f"prefix part {subdomain_fault(prefix)}"
    if not last or len(last) > 63 or not re.fullmatch(_QUALIFIED, last):
        return (
            "name part is made of letters, digits, '-', '_' and '.', with a letter or digit at both ends, "
            "and has at most 63 characters"
        )
    return ""


def label_value_fault(value: str) -> str:
    if len(value) > 63:
        return "must be no more than 63 characters"
    if re.fullmatch(_LABEL_VALUE, value):
        return ""
    return (
        "a label value is empty or made of letters, digits, '-', '_' and '.', "
        "with a letter or digit at both ends"
    )
