"""Admission policies of examples/, evaluated by their own text as the API server would."""

from pathlib import Path
from typing import Any

import cel
import yaml

_EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = "authentication.kubernetes.io/node-name"
"""Where the node's name of a pod is in the claims of its token."""


class AdmissionPolicy:
    """The only policy of a file, and its binding."""

    def __init__(self, file: str) -> None:
        documents = list(yaml.safe_load_all((_EXAMPLES / file).read_text()))
        [policy] = [each for each in documents if each["kind"] == "ValidatingAdmissionPolicy"]
        [self.binding] = [
            each["spec"] for each in documents if each["kind"] == "ValidatingAdmissionPolicyBinding"
        ]
        self.name = policy["metadata"]["name"]
        self.spec = policy["spec"]

    def is_for(self, user: dict[str, Any]) -> bool:
        """Whether what this user does is judged."""
        context = {"request": {"userInfo": user}}
        return all(
            cel.evaluate(condition["expression"], context) is True
            for condition in self.spec["matchConditions"]
        )

    def refused(
        self,
        old: dict[str, Any] | None,
        new: dict[str, Any] | None,
        user: dict[str, Any],
        operation: str = "",
    ) -> list[str]:
        """The messages of validations that do not hold; an expression that fails refuses, as failurePolicy says.

        Without a new object, the old one is to be deleted.
        """
        context: dict[str, Any] = {
            "request": {"operation": operation or ("UPDATE" if new else "DELETE"), "userInfo": user},
            "oldObject": old,
            "object": new,
        }
        variables: dict[str, Any] = {}
        for variable in self.spec["variables"]:
            variables[variable["name"]] = cel.evaluate(
                variable["expression"], {**context, "variables": variables}
            )
        messages = []
        for validation in self.spec["validations"]:
            try:
                holds = cel.evaluate(validation["expression"], {**context, "variables": variables})
            except (RuntimeError, TypeError, ValueError):
                holds = False
            if holds is not True:
                messages.append(validation["message"])
        return messages
