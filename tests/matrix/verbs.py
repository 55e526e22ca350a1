"""One runner per verb: it calls the verb on a cell's program and raises WrongError where something is wrong."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cell import FIRST, SECOND, Cell, DoesNotApplyError, Oracle, WrongError, expect_equal, plain_step, seed
from program import Program
from state import bits, flags

import tapescope as ts

Verb = Callable[[Cell], object]
VERBS: dict[str, Verb] = {}

_MOST_TASKS = 60  # stepped or checked one by one
_DRAWN = 2_000  # tasks; a larger graph is not laid out here


def verb(run: Verb) -> Verb:
    VERBS[run.__name__] = run
    return run


def _backward(cell: Cell, is_exact: bool, **how: Any) -> None:
    cell.runs_backward(lambda program, arguments: ts.backward(**arguments, **how), is_exact=is_exact)


VERBS.update(
    {
        f"backward {engine} {policy}": partial(_backward, is_exact=policy == "heap", policy=policy, engine=engine)
        for engine in ("native", "direct")
        for policy in ("heap", "bfs", "dfs", "lpmf")
    }
)
VERBS["backward native memory"] = partial(_backward, is_exact=True, memory=True, trace="full")
VERBS["backward direct memory"] = partial(_backward, is_exact=True, memory=True, trace="full", engine="direct")
VERBS["backward direct list"] = partial(_backward, is_exact=True, engine="direct", accumulate="list")
VERBS["backward direct never"] = partial(
    _backward, is_exact=True, engine="direct", accumulate="out_of_place", release="never"
)
VERBS["backward direct batch"] = partial(_backward, is_exact=False, engine="direct", batch="auto")


# ----------------------------------------------------------------------------------------- sessions, decks, files


def _to_the_end(session: Any) -> None:
    while session.current is not None:
        session.run()


@verb
def debug(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.debug(**arguments)) as session:
            session.run()

    cell.runs_backward(run)


@verb
def debug_native(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.debug(**arguments, engine="native")) as session:
            for _ in range(3):
                if session.current is not None:
                    session.step()
            session.run()

    cell.runs_backward(run)


@verb
def debug_back(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.debug(**arguments, history=True, trace="full")) as session:
            steps = 0
            while session.current is not None and steps < 6:
                session.step()
                steps += 1
            session.back(min(steps, 4))
            str(session.ready), str(session.waiting)
            session.run()

    cell.runs_backward(run)


@verb
def debug_back_all(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.debug(**arguments, history=True)) as session:
            session.run()
            session.back(min(len(session.order), 3_000))
            session.run()

    cell.runs_backward(run)


@verb
def debug_branch(cell: Cell) -> None:
    """Edit, go back, take another task first, go back, run to the end."""

    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.debug(**arguments, history=True)) as session:
            session.step()
            if session.current is not None:
                session.scale(1.0)
                session.step()
                session.back(1)
                session.restore()
                session.step(session.ready[-1])
                session.back(1)
            session.run()

    cell.runs_backward(run, is_exact=False)


@verb
def debug_check(cell: Cell) -> None:
    """Check each task against a derivative taken numerically."""
    wrong: list[str] = []
    checked = 0

    def run(program: Program, arguments: dict[str, Any]) -> None:
        nonlocal checked
        with closing(ts.debug(**arguments, history=True)) as session:
            while session.current is not None and checked < _MOST_TASKS:
                check = session.check()
                said = str(check)
                if check.ok is False and not program.refuses_gradients:
                    wrong.append(said)
                checked += 1
                session.step()
            session.run()

    cell.runs_backward(run, capture=True, keep_inputs=True)
    if wrong:
        raise WrongError(f"of a correct derivative: {wrong[0][:300]}")


@verb
def debug_stops(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.debug(**arguments)) as session:
            session.watch("nan", "norm>1e9")
            if len(session.graph.nodes) > 3:
                session.break_at(2)
            _to_the_end(session)

    cell.runs_backward(run)


@verb
def debug_abandoned(cell: Cell) -> None:
    """Close a session after one task: the next plain step works as usual."""
    for engine in ("direct", "native"):
        program = cell.fresh()

        def step(program: Program = program, engine: Any = engine) -> None:
            before = flags()
            seed(FIRST)
            with closing(ts.debug(**program.arguments(), engine=engine)) as session:
                if session.current is not None:
                    session.step()
            expect_equal(f"flags, {engine}", before, flags())

        program.call(step)
        others = cell.fresh()
        if program.log is not None or program.buffers or program.extra() or program.carries_state:
            continue
        if not program.is_repeatable:
            continue
        for leaf, other in zip(program.leaves.values(), others.leaves.values(), strict=True):
            if leaf.grad is None or other.grad is None:
                leaf.grad = other.grad
            else:  # PyTorch refuses to assign the strided gradient of a CSR leaf
                leaf.grad.data.copy_(other.grad.data)
        plain_step(program, FIRST)
        if program.model is None or not list(program.model.buffers()):
            cell.expect(
                f"a plain step after an abandoned session, {engine}", cell.oracle.one, program, cell.oracle.is_exact
            )


@verb
def deck(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.deck(**arguments)) as shown, tempfile.TemporaryDirectory() as folder:
            shown.step()
            shown.run()
            shown.save_html(Path(folder) / "deck.html")

    cell.runs_backward(run)


@verb
def deck_predict(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        with closing(ts.deck(**arguments)) as shown:
            shown.predict_memory()
            shown.switch("bfs")
            shown.switch("heap")
            shown.run()

    cell.runs_backward(run)


@verb
def run_files(cell: Cell) -> None:
    """Save, load, compare and export a measured run."""

    def run(program: Program, arguments: dict[str, Any]) -> None:
        found = ts.backward(**arguments, memory=True, trace="full")
        str(found), str(found.peak()), found.to_pandas()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found.save(folder / "run.tape.json")
            loaded = ts.load(folder / "run.tape.json")
            if (loaded.order, loaded.peak_bytes) != (found.order, found.peak_bytes):
                raise WrongError("the loaded run has another order or peak")
            for number, each in enumerate((found, loaded)):
                each.save_html(folder / f"{number}.html")
                each.save_perfetto(folder / f"{number}.json")
                each.to_pandas()
                if ts.diff(found, each).differs:
                    raise WrongError(f"diff of a run with itself: {ts.diff(found, each)}")
        for policy in ("heap", "bfs"):
            str(ts.simulate(found.graph, policy, found.footprints))

    cell.runs_backward(run, capture=True)


# ------------------------------------------------------------------------------------------------------ predictions


@verb
def graph(cell: Cell) -> None:
    def ask(program: Program, arguments: dict[str, Any]) -> None:
        found = ts.graph(arguments["tensors"])
        str(found), found.to_json(), found.saved, found.leaves
        if len(found.nodes) < _DRAWN:
            found.to_svg(), found.to_graphviz()

    cell.predicts(ask)


@verb
def graph_without_capture(cell: Cell) -> None:
    cell.predicts(lambda program, arguments: str(ts.graph(arguments["tensors"], program.model)), capture=False)


@verb
def simulate(cell: Cell) -> None:
    def ask(program: Program, arguments: dict[str, Any]) -> None:
        found = ts.graph(arguments["tensors"])
        asked = ts.orders.dry_run(found)
        for policy in ("heap", "bfs", "lpmf"):
            str(ts.simulate(found, policy, asked))

    cell.predicts(ask)


@verb
def simulated_peak(cell: Cell) -> None:
    """A predicted peak that is not called an estimate is the measured one, unless that one is an estimate itself."""
    program = cell.fresh()

    def step() -> tuple[Any, Any, Any]:
        seed(FIRST)
        with ts.capture():
            arguments = program.arguments()
        if set(arguments) != {"tensors"}:
            raise DoesNotApplyError  # ts.simulate predicts the plain backward of a loss
        found = ts.graph(arguments["tensors"])
        predicted = ts.simulate(found, "heap", ts.orders.dry_run(found))
        measured = ts.backward(**arguments, memory=True)
        calibrated = ts.simulate(measured.graph, "heap", measured.footprints)
        return predicted, measured.timeline, calibrated

    predicted, measured, calibrated = program.call(step)
    for name, found in (("predicted", predicted), ("calibrated", calibrated)):
        if not (found.estimates or measured.estimates) and found.peak_bytes != measured.peak_bytes:
            raise WrongError(f"{name} {found.peak_bytes:,} B, called exact; measured {measured.peak_bytes:,} B")


@verb
def plan(cell: Cell) -> None:
    def ask(program: Program, arguments: dict[str, Any]) -> None:
        found = ts.plan_order(arguments["tensors"])
        str(found), found.best, found.policy

    cell.predicts(ask)


@verb
def plan_followed(cell: Cell) -> None:
    def run(program: Program, arguments: dict[str, Any]) -> None:
        ts.backward(**arguments, policy=ts.plan_order(arguments["tensors"]).policy)

    cell.runs_backward(run, is_exact=False)


@verb
def makespan(cell: Cell) -> None:
    cell.predicts(lambda program, arguments: str(ts.makespan(arguments["tensors"], policies=["heap", "bfs"])))


@verb
def unpack_order(cell: Cell) -> None:
    cell.predicts(lambda program, arguments: str(ts.orders.unpack_order(arguments["tensors"])))


@verb
def check_order(cell: Cell) -> None:
    def ask(program: Program, arguments: dict[str, Any]) -> None:
        if len(ts.graph(arguments["tensors"]).nodes) > 1:
            str(ts.orders.check_order(arguments["tensors"], [(0, 1)]))

    cell.predicts(ask)


@verb
def groups(cell: Cell) -> None:
    cell.predicts(lambda program, arguments: str(ts.find_batches(arguments["tensors"])))


# ---------------------------------------------------------------------------------- verbs that run the program


@verb
def profile(cell: Cell) -> None:
    program, oracle = cell.fresh(), cell.oracle_of_loss

    def step() -> None:
        before = flags()
        seed(FIRST)
        found = ts.profile(program.make_loss, trace="full")
        str(found), str(found.peak())
        expect_equal("flags", before, flags())

    program.call(step)
    cell.expect("after the backward", oracle.one, program, oracle.is_exact)


@verb
def compare(cell: Cell) -> None:
    cell.runs_program(
        lambda program: str(ts.compare(program.make_loss, policies=["bfs", "dfs", "heap"], repetitions=1))
    )


@verb
def find_nan(cell: Cell) -> None:
    def ask(program: Program) -> None:
        report = ts.find_nan(program.make_loss)
        if report:
            raise WrongError(f"found in a clean program: {report}")

    cell.runs_program(ask)


@verb
def find_nan_planted(cell: Cell) -> None:
    """A gradient that becomes NaN just below the loss is found."""

    def ask(program: Program) -> None:
        def spoiled() -> Any:
            loss = program.make_loss()
            with torch.inference_mode(False), torch.enable_grad():
                return (loss * 0.0).sqrt() * 0 + loss  # backward: 0 * inf

        report = ts.find_nan(spoiled)
        if not report:
            raise WrongError(f"not found: {report}")

    cell.runs_program(ask)


@verb
def find_unused(cell: Cell) -> None:
    if cell.fresh().model is None:
        raise DoesNotApplyError

    def ask(program: Program) -> None:
        report = ts.find_unused(program.make_loss, program.model)
        if len(report) and not program.has_unused:
            raise WrongError(f"says of used parameters: {report}")

    cell.runs_program(ask)


@verb
def find_order_dependence(cell: Cell) -> None:
    def ask(program: Program) -> None:
        report = ts.find_order_dependence(program.make_loss)
        if report:
            raise WrongError(f"found in an independent program: {report}")

    cell.runs_program(ask)


@verb
def plan_recompute(cell: Cell) -> None:
    cell.runs_program(lambda program: str(ts.plan_recompute(program.make_loss, budget=0.5, seconds=0.5, repetitions=1)))


def _two_recomputed_steps(
    cell: Cell, program: Program, oracle: Oracle, step: Callable[[], object], *, with_log: bool = True
) -> None:
    """Expect the plain steps' results after a first and a second recomputed `step`."""
    for name, number, expected in (("first", FIRST, oracle.one), ("second", SECOND, oracle.two)):

        def seeded(number: int = number) -> None:
            before = flags()
            seed(number)
            step()
            expect_equal("flags", before, flags())

        program.call(seeded)
        cell.expect(f"after the {name} recomputed step", expected, program, oracle.is_exact, with_log=with_log)


@verb
def recompute_by_plan(cell: Cell) -> None:
    """Two steps under a plan are the plain ones."""
    program = cell.fresh()
    program.roots = None

    def planned() -> Any:
        return ts.plan_recompute(program.make_loss, budget=0.4, seconds=0.5, repetitions=1)

    found = program.call(planned)
    if program.log is not None:
        program.log.clear()

    def step() -> None:
        with ts.recompute(found):
            arguments = program.arguments()
        program.call_backward(lambda: torch.autograd.backward(**arguments))

    _two_recomputed_steps(cell, program, cell.oracle_of_loss, step)


@verb
def recompute_to_budget(cell: Cell) -> None:
    program = cell.fresh()
    if program.has_own_roots:
        raise DoesNotApplyError
    wrapped = ts.recompute(budget=0.5, seconds=0.5)

    def step() -> None:
        loss = wrapped(program.make_loss)
        program.call_backward(lambda: torch.autograd.backward(loss))

    _two_recomputed_steps(cell, program, cell.oracle, step, with_log=False)


@verb
def advise(cell: Cell) -> None:
    cell.runs_program(lambda program: str(ts.advise(program.make_loss, program.model, rounds=1)))


@verb
def accumulation_study(cell: Cell) -> None:
    from tapescope.engine.studies.ready_workload import own_program

    cell.runs_program(
        lambda program: str(ts.studies.accumulation(own_program(program.make_loss, "own"), repetitions=1))
    )


@verb
def fits(cell: Cell) -> None:
    program = cell.fresh()
    if program.model is None or program.loss_of is None:
        raise DoesNotApplyError

    def ask(given: Any) -> None:
        found = ts.fits(
            given, lambda: program.batch, lambda each: torch.optim.SGD(each, 0.1, momentum=0.9), "1GB", program.loss_of
        )
        if not found.fits:
            raise WrongError(str(found))

    for given in (program.model, lambda: program.model):
        refused = program.call(partial(cell.unchanged, program, partial(ask, given), with_log=False))
        if refused is not None:
            raise refused


@verb
def statistics(cell: Cell) -> None:
    program = cell.fresh()
    plain_step(program, FIRST)
    for name, leaf in program.leaves.items():
        before = bits(leaf.grad)
        for level in ("off", "cheap", "full"):
            str(ts.statistics(leaf.grad, level))
        if bits(leaf.grad) != before:
            raise WrongError(f"{name}.grad changed")


# -------------------------------------------------------------------------------------------------- around training


@verb
def policy_auto(cell: Cell) -> None:
    cell.trains(lambda program, optimizer: ts.policy("auto"), is_exact=False)


@verb
def policy_heap(cell: Cell) -> None:
    cell.trains(lambda program, optimizer: ts.policy("heap"))


@verb
def policy_direct(cell: Cell) -> None:
    cell.trains(lambda program, optimizer: ts.policy("heap", engine="direct"))


@verb
def training(cell: Cell) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @contextmanager
        def around(program: Program, optimizer: Any) -> Iterator[None]:
            box = str(Path(folder) / "black_box")
            with ts.training(program.model, optimizer, writes=True, black_box=box, every=1) as watched:
                yield
            str(watched), watched.to_pandas(), watched.to_pandas("steps"), watched.to_pandas("findings")
            watched.save_html(Path(folder) / "loop.html")

        cell.trains(around, steps=5)


@verb
def replay(cell: Cell) -> None:
    """A batch with a NaN is written, and its step runs again bit for bit."""
    program = cell.fresh()
    if program.loss_of is None or not program.batch.is_floating_point() or program.batch.is_meta:
        raise DoesNotApplyError
    if program.call(torch.is_anomaly_check_nan_enabled):
        raise DoesNotApplyError  # the loop ends at the NaN
    loss_of = program.loss_of
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        box = Path(folder) / "black_box"

        def train() -> None:
            optimizer = torch.optim.SGD([each for each in program.leaves.values() if each.requires_grad], 0.05)
            before = flags()
            with ts.training(program.model, optimizer, black_box=str(box)):
                for number in range(6):
                    batch = program.batch.clone()
                    if number == 3:
                        batch[0] = float("nan")
                    optimizer.zero_grad()
                    loss_of(program.model, batch).backward()
                    optimizer.step()
            expect_equal("flags", before, flags())

        program.call(train)
        steps = sorted(box.glob("step_*")) if box.exists() else []
        if not steps:
            raise WrongError("no step was written")

        def again() -> tuple[bool, str]:
            before = flags()
            found = ts.replay(
                steps[0],
                lambda: cell.fresh().model,
                lambda model, batch: loss_of(model, batch[0] if isinstance(batch, tuple) else batch),
            )
            said = str(found)
            str(found.find_nan())
            expect_equal("flags", before, flags())
            return found.same and found.error is None, said

        same, said = program.call(again)
        if not same:
            raise WrongError(f"another step: {said[:300]}")


@verb
def record_steps(cell: Cell) -> None:
    @contextmanager
    def around(program: Program, optimizer: Any) -> Iterator[None]:
        with ts.record_steps(steps=3) as recorded:
            yield
        str(recorded)

    cell.trains(around, steps=5)


@verb
def profile_step(cell: Cell) -> None:
    program = cell.fresh()
    if not program.has_optimizer or program.has_own_roots:
        raise DoesNotApplyError

    def ask() -> None:
        optimizer = torch.optim.SGD([each for each in program.leaves.values() if each.requires_grad], 0.01)
        before = flags()

        def step() -> None:
            optimizer.zero_grad()
            program.make_loss().backward()
            optimizer.step()

        found = ts.profile_step(step)
        str(found), str(found.peak())
        expect_equal("flags", before, flags())
        with tempfile.TemporaryDirectory() as folder:
            found.save_html(Path(folder) / "step.html")
            found.save_perfetto(Path(folder) / "step.json")
            found.to_pandas()

    program.call(ask)
