"""One kind of program under one verb, checked against plain PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from program import Program
from state import State, differences, flags, objects_of, values_of

import tapescope as ts

_MOST = 6  # differences that are shown
FIRST, SECOND = 7, 8  # seeds of the two steps


class WrongError(Exception):
    """A result, or the user's state afterwards, differs from plain PyTorch."""


class DoesNotApplyError(Exception):
    """The verb needs something that the program does not have."""


class Oracle(NamedTuple):
    """Plain PyTorch: the state after one step and after two, and how a second backward of one graph ends."""

    one: State
    two: State
    again: str | None
    is_exact: bool


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def plain_step(program: Program, number: int) -> dict[str, Any]:
    """Run a forward and PyTorch's own backward; return the backward's arguments."""

    def step() -> dict[str, Any]:
        seed(number)
        arguments = program.arguments()
        program.call_backward(lambda: torch.autograd.backward(**arguments))
        return arguments

    return program.call(step)  # type: ignore[no-any-return]


class Cell:
    """One kind of program, and what plain PyTorch makes of it.

    Args:
        build: builds the program.
        prefilled: whether each leaf has a gradient already as the verb begins.
    """

    def __init__(self, build: Callable[[], Program], prefilled: bool = False) -> None:
        self._build = build
        self._prefilled = prefilled

    def fresh(self) -> Program:
        seed(0)
        program = self._build()
        if self._prefilled:
            plain_step(program, 5)
            if program.log is not None:
                program.log.clear()
        return program

    @cached_property
    def oracle(self) -> Oracle:
        return self._oracle(with_roots=True)

    @cached_property
    def oracle_of_loss(self) -> Oracle:
        """The oracle for verbs that take `make_loss` and run its backward from the loss alone."""
        return self._oracle(with_roots=False)

    def _oracle(self, with_roots: bool) -> Oracle:
        program, other = self.fresh(), self.fresh()
        if not with_roots:
            program.roots = other.roots = None
        arguments = plain_step(program, FIRST)
        one, again = values_of(program), self._second_backward(program, arguments)
        plain_step(program, SECOND)
        two = values_of(program)
        plain_step(other, FIRST)
        return Oracle(one, two, again, program.is_exact and not differences(one, values_of(other)))

    def _second_backward(self, program: Program, arguments: dict[str, Any]) -> str | None:
        """Run the graph once more and return how that ends."""
        if not program.is_repeatable or program.log is not None:
            return None

        def again() -> str:
            leaves = list(program.leaves.values())
            grads = arguments.get("grad_tensors")
            try:
                with torch.random.fork_rng([]):
                    torch.autograd.grad(arguments["tensors"], leaves, grads, retain_graph=True, allow_unused=True)
            except Exception as error:
                return f"raises {type(error).__name__}"
            return "passes"

        return program.call(again)  # type: ignore[no-any-return]

    def expect(self, what: str, expected: State, program: Program, is_exact: bool, with_log: bool = True) -> None:
        found = values_of(program)
        ignored = set() if with_log and is_exact else {"hook calls"}
        expect_equal(
            what,
            {name: each for name, each in expected.items() if name not in ignored},
            {name: each for name, each in found.items() if name not in ignored},
            is_exact,
            program.is_rough,
        )

    def runs_backward(
        self,
        run: Callable[[Program, dict[str, Any]], object],
        *,
        is_exact: bool = True,
        again: bool = True,
        capture: bool = False,
        keep_inputs: bool = False,
    ) -> None:
        """Check a verb that runs the backward of a forward: `run(program, arguments)`."""
        oracle, program = self.oracle, self.fresh()

        def step() -> dict[str, Any]:
            before = flags()
            seed(FIRST)
            with ts.capture(keep_inputs=keep_inputs) if capture else nullcontext():
                arguments = program.arguments()
            program.call_backward(lambda: run(program, arguments))
            expect_equal("flags", before, flags())
            return arguments

        arguments = program.call(step)
        is_exact = is_exact and oracle.is_exact
        self.expect("after the backward", oracle.one, program, is_exact)
        if again and (ended := self._second_backward(program, arguments)) != oracle.again:
            raise WrongError(f"a second backward of the same graph: plain {oracle.again}, here {ended}")
        plain_step(program, SECOND)
        self.expect("after a plain step that follows", oracle.two, program, is_exact)

    def predicts(self, ask: Callable[[Program, dict[str, Any]], object], *, capture: bool = True) -> None:
        """Check a verb that is asked about a loss and runs nothing of the program: `ask(program, arguments)`."""
        oracle, program = self.oracle, self.fresh()

        def step() -> Exception | None:
            seed(FIRST)
            with ts.capture() if capture else nullcontext():
                arguments = program.arguments()
            refused = self.unchanged(program, lambda: ask(program, arguments))
            program.call_backward(lambda: torch.autograd.backward(**arguments))
            return refused

        refused = program.call(step)
        self.expect("after a plain backward that follows", oracle.one, program, oracle.is_exact)
        plain_step(program, SECOND)
        self.expect("after a plain step that follows", oracle.two, program, oracle.is_exact)
        if refused is not None:
            raise refused

    def runs_program(self, ask: Callable[[Program], object]) -> None:
        """Check a verb that runs forwards and backwards of its own and puts everything back: `ask(program)`."""
        oracle, program = self.oracle_of_loss, self.fresh()
        program.roots = None

        def step() -> Exception | None:
            seed(11)
            return self.unchanged(program, lambda: ask(program), with_log=False)

        refused = program.call(step)
        if program.log is not None:
            program.log.clear()
        extra = not program.extra()  # tensors that each forward makes anew
        plain_step(program, FIRST)
        if extra:
            self.expect("after a plain step that follows", oracle.one, program, oracle.is_exact)
            plain_step(program, SECOND)
            self.expect("after a second plain step", oracle.two, program, oracle.is_exact)
        if refused is not None:
            raise refused

    def unchanged(self, program: Program, ask: Callable[[], object], with_log: bool = True) -> Exception | None:
        """Call `ask`, expect the user's state as before, and return the error that it raised."""
        modes, objects, values = flags(), objects_of(program), values_of(program, with_log)
        refused = None
        try:
            ask()
        except Exception as error:
            refused = error
        suffix = "" if refused is None else f", although it raised {type(refused).__name__}: {refused}"
        expect_equal(f"flags before and after{suffix}", modes, flags())
        if program.extra():
            return refused
        expect_equal(f"values before and after{suffix}", values, values_of(program, with_log))
        expect_equal(f"objects before and after{suffix}", objects, objects_of(program))
        return refused

    def trains(
        self,
        around: Callable[[Program, torch.optim.Optimizer | None], AbstractContextManager[Any]],
        *,
        steps: int = 3,
        is_exact: bool = True,
    ) -> None:
        """Check a context around a training loop: parameters as without it, to the bit."""
        plain = self._trained(lambda program, optimizer: nullcontext(), steps)
        self.expect(
            f"after {steps} steps",
            values_of(plain),
            self._trained(around, steps),
            is_exact and self.oracle.is_exact,
            with_log=is_exact,
        )

    def _trained(
        self,
        around: Callable[[Program, torch.optim.Optimizer | None], AbstractContextManager[Any]],
        steps: int,
    ) -> Program:
        program = self.fresh()
        parameters = [each for each in program.leaves.values() if each.requires_grad] if program.has_optimizer else []

        def loop() -> None:
            optimizer = torch.optim.SGD(parameters, 0.05) if parameters else None
            before = flags()
            with around(program, optimizer):
                for number in range(steps):
                    seed(20 + number)
                    if optimizer is not None:
                        optimizer.zero_grad()
                    arguments = program.arguments()
                    if list(arguments) == ["tensors"] and isinstance(arguments["tensors"], torch.Tensor):
                        program.call_backward(arguments["tensors"].backward)
                    else:
                        program.call_backward(lambda given=arguments: torch.autograd.backward(**given))
                    if optimizer is not None:
                        optimizer.step()
            expect_equal("flags", before, flags())

        program.call(loop)
        return program


def expect_equal(what: str, before: State, after: State, is_exact: bool = True, is_rough: bool = False) -> None:
    """Raise WrongError unless both states are equal."""
    if wrong := differences(before, after, is_exact, is_rough):
        raise WrongError(f"{what} [plain or before | with the verb]: " + "; ".join(wrong[:_MOST]))
