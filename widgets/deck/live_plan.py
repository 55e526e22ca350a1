"""The policy, order and branches of a live session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ...engine.execution.accumulation_rule import Accumulate, Release
from ...engine.memory.timeline import Timeline
from ...engine.planning.policies import POLICIES, TABS, find_policy
from ...engine.schedule.policy import AnyPolicy, Choice, Policy, names_in_turn, policy_name
from ...engine.session.branches import Branch
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...engine.studies.compare import chosen_rules
from ...inspector.text.sizes_and_counts import nth
from ...inspector.validation import expect
from .live_predictions import Foresight, Prediction
from .live_state import LiveStanding
from .page_data import Json

Term = tuple[int, Policy | Choice]
"""The number of tasks that had run when a policy was set, and the policy."""


class Terms:
    """The policies of a session, in order.

    Attributes:
        terms: each policy, with the number of tasks that had run when it was set.
    """

    def __init__(self, first: Policy | Choice) -> None:
        self.terms: list[Term] = [(0, first)]

    @property
    def policy(self) -> Policy | Choice:
        """The current policy."""
        return self.terms[-1][1]

    @property
    def name(self) -> str:
        """The name of an order made by them: "bfs, then heap"."""
        return names_in_turn(policy for _, policy in self.terms)

    def switch(self, begun: int, policy: Policy | Choice) -> None:
        """Set another policy, after `begun` tasks have started."""
        self.terms = [*(term for term in self.terms if term[0] < begun), (begun, policy)]

    def named(self, schedule: Json) -> Json:
        """Return the session's own schedule, with the names of all its policies and the rule of the last one."""
        if self.name == policy_name(self.policy):
            return schedule
        begun, policy = self.terms[-1]
        rule = policy.title if isinstance(policy, Policy) else "chosen by a user's function"
        return schedule | {"policy": self.name, "title": f"from the {nth(begun + 1)} on {rule}"}


_Key = tuple[int, tuple[int, ...]]


class LiveBranches:
    """The branches of a session, as schedules for the page.

    A branch that was left is a schedule: its tasks, those that its policy would have run next, and predicted memory.

    Attributes:
        gradient_bytes: bytes of gradients kept to compare branches, as of the last news.
    """

    def __init__(self, session: Stepper | NativeSession, foresight: Foresight) -> None:
        self._session = session
        self._foresight = foresight
        self.gradient_bytes = 0
        self._published: list[Json] = []
        self._published_left: list[_Key] = []
        self._simulated: dict[_Key, Json] = {}

    @property
    def all(self) -> tuple[Branch, ...]:
        session = self._session
        return session.branches if isinstance(session, Stepper) and session.over is None else ()

    @property
    def current(self) -> Branch | None:
        return next((branch for branch in self.all if branch.is_current), None)

    def news(self) -> tuple[list[Json] | None, bool]:
        """Return the data of all branches, empty if there is only one, None if unchanged.

        The second result is whether `schedules` has changed.
        """
        if self._session.over is not None:
            return None, False
        branches = self.all
        self.gradient_bytes = sum(branch.gradient_bytes for branch in branches)
        rows = [] if len(branches) < 2 else [_row(branch) for branch in branches]
        if rows == self._published:
            return None, False
        self._published = rows
        return rows, _keys(branches) != self._published_left

    @property
    def schedules(self) -> list[Json]:
        """Return the schedule of each branch that was left: its tasks, and those that would have followed."""
        branches = self.all
        self._published_left = _keys(branches)
        found = []
        for branch in branches:
            if branch.is_current:
                continue
            key = branch.number, branch.order
            if key not in self._simulated:
                policy = branch.terms[-1][1]
                order = self._foresight.completed(policy, branch.order)
                content, _ = self._foresight.schedule(policy, order, sorted(branch.by_hand))
                self._simulated[key] = content | {"policy": branch.name}
            found.append(self._simulated[key] | {"title": branch.describe()})
        return found

    def forget(self) -> None:
        """Discard predictions, so that they are computed again."""
        self._simulated.clear()


def _keys(branches: Sequence[Branch]) -> list[_Key]:
    """Return a key for each branch that was left."""
    return [(branch.number, branch.order) for branch in branches if not branch.is_current]


def _row(branch: Branch) -> Json:
    return {
        "number": branch.number,
        "parent": branch.parent,
        "forked_at": branch.forked_at,
        "ran": len(branch.order),
        "policy": branch.policy,
        "edits": len(branch.edits),
        "current": branch.is_current,
        "text": branch.describe(),
    }


class LivePlan:
    """The order of all tasks, starting with those that have run, and the orders of other policies and branches.

    Args:
        at: the session, which has not run yet.
        policy: its policy.

    Attributes:
        order: the ids of all tasks in the order in which they ran and will run.
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
        """Return a policy; a policy that this session has had can be passed by name.

        Raises:
            ValueError, TypeError: as `find_policy`.
        """
        known = self._known.get(policy) if isinstance(policy, str) else None
        return known or find_policy(policy)

    def switch(self, policy: AnyPolicy) -> bool:
        """Continue with this policy, and return whether it is a different one."""
        session, chosen = self._at.session, self.find(policy)
        if chosen is self._terms.policy and session.over is None:
            return False
        if isinstance(chosen, Policy) and chosen.plan is not None and not self._foresight.is_known:
            raise ValueError(self._foresight.cannot_plan(chosen))
        session.policy = chosen
        self._know(chosen)
        self._terms.switch(len(self._at.started), session.picks)
        self.order = self._made()
        return True

    def jumped(self) -> None:
        """Update the order after undo, or after a change of branch."""
        branch = self._branches.current
        if branch is not None:
            self._terms.terms = list(branch.terms)
        self.order = self._made()

    def follow(self, begun: int, current: int | None) -> bool:
        """Update the order if, after `begun` tasks, another task than planned has run or is the current one.

        Returns whether the order has changed.
        """
        found = [*self._at.started[begun:], *([] if current is None else [current])]
        other = found != self.order[begun : begun + len(found)]
        if other:
            self.order = self._made()
        return other

    def own_schedule(self) -> Json:
        """Return the session's schedule: finished and planned tasks."""
        trace = self._at.session.trace
        by_hand = () if trace is None else trace.by_hand
        own = self._foresight.own_schedule(self._terms.policy, self.order, by_hand)
        if batches := None if trace is None else trace.batches.steps:
            own["batches"] = batches
        return self._terms.named(own)

    def others(self) -> list[Json]:
        """Return the schedules of other known policies from the start, and of branches that were left."""
        return [*self._foresight.others(self._known, self._terms.name), *self._branches.schedules]

    def timelines(self) -> dict[str, Timeline]:
        """Return the memory by policy, that of the live order first; empty without a prediction."""
        return self._foresight.timelines(self._terms.name)

    def compare(
        self,
        policies: Sequence[AnyPolicy] | AnyPolicy,
        accumulate: Sequence[Accumulate] | Accumulate | None,
        release: Sequence[Release] | Release | None,
    ) -> Prediction:
        """Predict the memory of the whole backward under each policy; see `Deck.compare`."""
        if isinstance(policies, str | Policy) or callable(policies):
            policies = (policies,)
        expect(policies, Sequence, "policies", 'a policy, or several, such as ("heap", "dfs")')
        if not policies:
            raise ValueError("compare() needs at least one policy; policies is empty")
        own = self._foresight.rule
        rules = chosen_rules(
            own.accumulate if accumulate is None else accumulate, own.release if release is None else release
        )
        return self._foresight.compare([self.find(policy) for policy in policies], rules)

    def _know(self, policy: Policy | Choice) -> None:
        """Remember a policy by name. A newer one replaces it, because a cell that runs again defines a new function."""
        name = policy_name(policy)
        if self._known.get(name) is not policy:
            self._known[name] = policy
            self._foresight.forget(name)

    def _made(self) -> list[int]:
        """Return the finished tasks and the order of the rest; PyTorch's order for a policy that decides as it runs."""
        session, current = self._at.session, self._at.current
        ran = [*self._at.started, *([] if current is None else [current])]
        if isinstance(session, NativeSession) and list(session.planned[: len(ran)]) == ran:
            return list(session.planned)  # a user's policy might choose differently if called again
        if isinstance(session, Stepper) and session.batches is not None and session.over is None:
            with suppress(Exception):  # a user's policy may raise here and work when its task runs
                return session.planned
        return self._foresight.completed(self._terms.policy, ran)
