"""Which policy picks in a live session, and the order that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ....engine.memory.timeline import Timeline
from ....engine.orders.policies import POLICIES, TABS, find_policy
from ....engine.queue.policy import AnyPolicy, Choice, Policy, policy_name
from ....engine.sessions.native_session import NativeSession
from ....engine.sessions.stepper import Stepper
from ....inspector.arguments import expect
from ..document import Json
from ..prediction import Prediction
from .branches import LiveBranches
from .foresight import Foresight
from .standing import LiveStanding
from .terms import Terms


class LivePlan:
    """The order of all tasks, those that have run first, and what other policies and branches have in its place.

    Args:
        at: the session, nothing run yet.
        policy: its policy.

    Attributes:
        order: the ids of all tasks in the order in which they ran and are going to.
    """

    def __init__(self, at: LiveStanding, foresight: Foresight, branches: LiveBranches, policy: Policy | Choice) -> None:
        self._at = at
        self._foresight = foresight
        self._branches = branches
        self._terms = Terms(at.session.picks)
        self._known: dict[str, Policy | Choice] = {name: POLICIES[name] for name in TABS}
        self._know(policy)
        self.order = self._made()

    def find(self, policy: AnyPolicy) -> Policy | Choice:
        """The policy that is meant: one that this session has had may be given by its name, too.

        Raises:
            ValueError, TypeError: as `find_policy`.
        """
        known = self._known.get(policy) if isinstance(policy, str) else None
        return known or find_policy(policy)

    def switch(self, policy: AnyPolicy) -> bool:
        """From here on this policy picks. Whether it is another than before."""
        session, chosen = self._at.session, self.find(policy)
        if chosen is self._terms.policy and session.over is None:
            return False
        if isinstance(chosen, Policy) and chosen.plan is not None and not self._foresight.is_known:
            raise ValueError(self._foresight.unknown(chosen))
        session.policy = chosen
        self._know(chosen)
        self._terms.switch(len(self._at.started), session.picks)
        self.order = self._made()
        return True

    def jumped(self) -> None:
        """The session stands elsewhere, on another branch maybe."""
        branch = self._branches.current
        if branch is not None:
            self._terms.become(branch.terms)
        self.order = self._made()

    def follow(self, begun: int, current: int | None) -> bool:
        """Made again where after so many tasks something else has run, or is the current one, than was planned. Returns
        whether it was.
        """
        found = [*self._at.started[begun:], *([] if current is None else [current])]
        other = found != self.order[begun : begun + len(found)]
        if other:
            self.order = self._made()
        return other

    def own_schedule(self) -> Json:
        """What has run, and what is planned."""
        trace = self._at.session.trace
        by_hand = () if trace is None else trace.by_hand
        own = self._foresight.own_schedule(self._terms.policy, self.order, by_hand)
        if batches := None if trace is None else trace.batches.steps:
            own["batches"] = batches
        return self._terms.named(own)

    def others(self) -> list[Json]:
        """What the other policies that are known would do from the start, and what the branches that were left did."""
        return [*self._foresight.others(self._known, self._terms.name), *self._branches.schedules]

    def timelines(self) -> dict[str, Timeline]:
        """Memory by policy: in the live order first, then what the known policies would need. Empty: not predicted."""
        return self._foresight.timelines(self._terms.name)

    def compare(self, policies: Sequence[AnyPolicy] | AnyPolicy) -> Prediction:
        """The memory from the start on under each policy.

        Raises:
            ValueError: it was not predicted; or the order of one of them is only known while the backward runs.
        """
        if isinstance(policies, str | Policy) or callable(policies):
            policies = (policies,)
        expect(policies, Sequence, "policies", 'a policy, or several, such as ("heap", "dfs")')
        if not policies:
            raise ValueError("compare which policies? Give at least one")
        return self._foresight.compare([self.find(policy) for policy in policies])

    def _know(self, policy: Policy | Choice) -> None:
        """By its name the policy that had it last is meant: a cell that is run again defines another function."""
        name = policy_name(policy)
        if self._known.get(name) is not policy:
            self._known[name] = policy
            self._foresight.forget(name)

    def _made(self) -> list[int]:
        """What has run, and the order from here on. A policy that decides as it runs has none: shown is PyTorch's."""
        session, current = self._at.session, self._at.current
        ran = [*self._at.started, *([] if current is None else [current])]
        if isinstance(session, NativeSession) and list(session.planned[: len(ran)]) == ran:
            return list(session.planned)  # a user's policy asked again might say something else
        if isinstance(session, Stepper) and session.batches is not None and session.over is None:
            with suppress(Exception):  # a user's policy fails to choose: it may do better when its turn comes
                return session.planned
        return self._foresight.completed(self._terms.policy, ran)
