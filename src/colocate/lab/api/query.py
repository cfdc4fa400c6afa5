"""Reads and checks the query parameters of a request. Pure."""

from collections.abc import Mapping

import msgspec

from colocate.lab.api import faults, selectors
from colocate.lab.api.selectors import ObjectSelection
from colocate.lab.api.status import StatusCause, StatusError, bad_request, invalid

_TRUE = ("true", "1", "")
_MAX_NUMBER = 2**63 - 1


class ListQuery(msgspec.Struct, frozen=True):
    """The query parameters; unknown ones are ignored."""

    given: Mapping[str, str]

    def flag(self, name: str) -> bool:
        return name in self.given and self.given[name].lower() in _TRUE

    def text(self, name: str) -> str:
        return self.given.get(name, "")

    def number(self, name: str) -> int | None:
        """A count; None where it is absent."""
        text = self.text(name)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _MAX_NUMBER:
            raise bad_request(f"the parameter {name} is {text!r}, not a count")
        return int(text)

    @property
    def dry_run(self) -> bool:
        wish = self.text("dryRun")
        if wish not in ("", "All"):
            raise _bad_option("dryRun", faults.unsupported("dryRun", wish, ["All"]).message)
        return wish == "All"

    def revision(self) -> int | None:
        """The resourceVersion; None where any is acceptable."""
        text = self.text("resourceVersion")
        if text in ("", "0"):
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            raise _bad_option(
                "resourceVersion", faults.invalid("", text, "it is not a resourceVersion").message
            )
        return int(text)

    def selection(self, storage: str) -> ObjectSelection:
        try:
            return ObjectSelection(
                selectors.parse_labels(self.text("labelSelector")),
                selectors.parse_fields(self.text("fieldSelector"), storage),
            )
        except ValueError as error:
            raise bad_request(str(error)) from None

    def check_list(self) -> None:
        """Refuse combinations that no server accepts."""
        match = self.text("resourceVersionMatch")
        watch = self.flag("watch")
        if match not in ("", "Exact", "NotOlderThan"):
            known = ["Exact", "NotOlderThan"]
            words = faults.unsupported("resourceVersionMatch", match, known).message
            raise _bad_option("resourceVersionMatch", words)
        if "sendInitialEvents" in self.given:
            if not watch:
                why = "sendInitialEvents is forbidden for list"
                raise _bad_option("sendInitialEvents", f"Forbidden: {why}")
            if match != "NotOlderThan":
                why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                raise _bad_option("resourceVersionMatch", f"Forbidden: {why}")
        elif match and watch:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise _bad_option("resourceVersionMatch", f"Forbidden: {why}")
        if match and not watch and not self.text("resourceVersion"):
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            raise _bad_option("resourceVersionMatch", f"Forbidden: {why}")


def _bad_option(field: str, words: str) -> StatusError:
    reason = "FieldValueForbidden" if words.startswith("Forbidden") else "FieldValueInvalid"
    return invalid("ListOptions", "meta.k8s.io", "", [StatusCause(reason, words, field)])
