"""Which policy picked from which place on in a live session."""

from __future__ import annotations

from collections.abc import Iterable

from ....engine.queue.policy import Choice, Policy, names_in_turn, policy_name
from ....engine.words.phrases import nth
from ..document import Json

Term = tuple[int, Policy | Choice]
"""How many tasks had run when a policy began to pick, and the policy."""


class Terms:
    """The policies of a session, in order."""

    def __init__(self, first: Policy | Choice) -> None:
        self._terms: list[Term] = [(0, first)]

    @property
    def policy(self) -> Policy | Choice:
        """The one that picks now."""
        return self._terms[-1][1]

    @property
    def name(self) -> str:
        """What to call an order that they made: "bfs, then heap"."""
        return names_in_turn(policy for _, policy in self._terms)

    def switch(self, begun: int, policy: Policy | Choice) -> None:
        """Another one picks once so many tasks have begun."""
        self._terms = [*(term for term in self._terms if term[0] < begun), (begun, policy)]

    def become(self, terms: Iterable[Term]) -> None:
        """The session went back, or to another branch."""
        self._terms = list(terms)

    def named(self, schedule: Json) -> Json:
        """The session's own schedule by the name of all, and with the rule of the last of them."""
        if self.name == policy_name(self.policy):
            return schedule
        begun, policy = self._terms[-1]
        rule = policy.title if isinstance(policy, Policy) else "a function of the user's chooses"
        return schedule | {"policy": self.name, "title": f"from the {nth(begun + 1)} on {rule}"}
