"""Finds parameters that get gradients and that no optimizer steps, and the reason, over the whole loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim import Optimizer

from ....inspector.graph.phrases import joined
from ....inspector.graph.source_lines import Place, users_place
from ....inspector.text.sizes_and_counts import counted
from ....inspector.torch_private.hooks import own
from ....inspector.torch_private.optimizer_steps import optimizers_alive, parameters_of
from ....inspector.torch_private.tensors import LateTensor, local_of, version_of
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..pending_graphs import at
from ..training_result import Training
from .missing_gradients import leaves_reached, reasons_of_missing
from .unregistered import Unregistered, unregistered

_ELEMENTS = 2**16  # elements of a parameter that are compared; at least one row
_RENEWED = 3  # number of steps whose forward creates a parameter of the same name, from which this is reported
_OFTEN = 100  # the most steps between two lists of all parameters
_SURE_OF_PARTS = 50  # the step at which unused parts of a list are reported, such as experts
_FIRST, _SURE = 1, 2  # the steps of the first comparison, and of the report on missing gradients


def _first_elements(parameter: Tensor) -> Tensor:
    """Return a parameter's first elements: a small copy of them suffices to notice an update."""
    values = local_of(parameter.detach())
    return values if values.dim() == 0 else values[: max(1, _ELEMENTS * len(values) // max(values.numel(), 1))]


class _Unheld(NamedTuple):
    """A parameter with a gradient that no optimizer holds.

    Attributes:
        name: its name or, if it is not registered, its expression.
        parameter: the parameter.
        beside: how the model holds it, if it is not registered.
    """

    name: str
    parameter: Tensor
    beside: Unregistered | None


@dataclass(slots=True)
class _Suspect:
    """An unheld parameter, and its first elements before the step."""

    parameter: ReferenceType[Tensor]
    before: Tensor


class _Registered(NamedTuple):
    """The step and the line at which the loop registered a module or parameter, and whether a forward did."""

    step: int
    place: Place | None
    is_in_forward: bool


class _PendingComparison(NamedTuple):
    """Suspects compared with their values of the previous step; the results may not have been computed yet."""

    step: int
    found: list[tuple[str, ReferenceType[Tensor], Unregistered | None, LateTensor]]


class NeverStepped(LoopPart):
    """Looks for parameters that have a gradient and that no optimizer holds.

    Parameters are listed in the first steps, after 10, 20, 40, ... steps (`every=`), after a module or parameter was
    registered, and when a parameter has its first gradient. A parameter without an optimizer is reported only if its
    values are the same in the next step, because code of the loop may update it. Nothing is reported if an optimizer
    holds copies of the parameters, as mixed precision training does.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._thread = get_ident()
        self._step = 0
        self._ever_with_gradient: set[int] = set()  # ids of parameters that have had a gradient
        self._with_gradient = frozenset[int]()  # ids of parameters, when the last backward ended
        self._versions: dict[int, int] = {}  # versions of the optimizers' parameters in the first step, by id
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._suspects: dict[int, _Suspect] = {}
        self._pending: _PendingComparison | None = None
        self._reported: set[int] = set()
        self._renewed: Counter[str] = Counter()  # number of parameters that forwards have created, by name
        self._names: dict[int, tuple[ReferenceType[Tensor], str]] = {}
        self._frozen: dict[int, ReferenceType[Tensor]] = {}  # parameters that were frozen in an earlier step
        self._registered: WeakKeyDictionary[nn.Module, dict[str, _Registered]] = WeakKeyDictionary()
        self._is_in_forward = False
        self._list_is_outdated = False
        self._has_stepped = False  # whether an optimizer has stepped in this step
        self._next = 0  # the step in which all parameters are listed next, or earlier
        self._listed = -1  # the last step in which parameters were listed
        self._inputs: set[int] = set()  # ids of the tensors passed to outermost modules
        self._reached: set[int] | None = None  # ids of the leaves in the latest graph that was read for missing ones
        self._has_backward = False
        # Reported parameters without a gradient, and the finding for a number of steps.
        self._missing: list[tuple[list[ReferenceType[Tensor]], Callable[[int], Finding]]] = []

    def begins(self, training: Training) -> None:
        self._training = training
        for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
            self._stack.callback(own(register(self._note_registration)).remove)

    def _note_registration(self, module: nn.Module, name: str, _: object) -> None:
        """Note that the loop registers a module or a parameter."""
        if get_ident() == self._thread:
            entry = _Registered(self._step + self._has_stepped, users_place(), self._is_in_forward)
            self._registered.setdefault(module, {})[name] = entry
            self._list_is_outdated = True

    def step_begins(self, number: int) -> None:
        self._step = number
        self._has_stepped = False

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        self._is_in_forward = True
        if self._suspects:
            self._inputs |= {id(each) for each in given if isinstance(each, Tensor)}

    def forward_ends(self, module: nn.Module, result: object) -> None:
        self._is_in_forward = False

    def backward_begins(self, given: BackwardGiven) -> None:
        self._has_backward = True
        if self._step in (_SURE, _SURE_OF_PARTS):
            held = (each for optimizer in self._optimizers for each in parameters_of(optimizer))
            if any(each.requires_grad and id(each) not in self._ever_with_gradient for each in held):
                self._reached = (self._reached or set()) | leaves_reached(given[0])

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        taken = self._training.taken_norms
        if taken is not None and not taken.parameters <= self._with_gradient:
            self._list_is_outdated = self._list_is_outdated or not taken.parameters <= self._ever_with_gradient
            self._ever_with_gradient |= taken.parameters
        self._with_gradient = frozenset() if taken is None else taken.parameters

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._report_unchanged()
        self._optimizers.add(optimizer)
        if self._step <= _SURE:
            held = parameters_of(optimizer)
            self._ever_with_gradient.update(id(each) for each in held if each.grad is not None)
            for each in held:
                self._versions.setdefault(id(each), version_of(each))
        if self._step >= _FIRST and self._listed != self._step:
            is_due = self._step <= _SURE or self._step >= self._next
            if is_due or self._list_is_outdated or self._suspects:
                self._listed = self._step
                self._list_is_outdated = False
                if self._step >= self._next:
                    self._next = self._step + min(max(self._step, self._training.every), _OFTEN)
                    self._extend_missing(self._step + 1)
                self._list_parameters()
        if self._step in (_SURE, _SURE_OF_PARTS):
            self._report_idle(optimizer)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._has_stepped = True

    def step_ends(self, number: int) -> None:
        self._report_unchanged()

    def ends(self) -> None:
        self._stack.close()
        self._report_unchanged()
        self._extend_missing(self._step + self._has_stepped)
        self._missing.clear()
        self._suspects.clear()
        self._pending = None
        self._registered.clear()

    def _list_parameters(self) -> None:
        """Compare the parameters suspected in the previous list, and suspect the new ones."""
        watched = self._training.watched
        named = list(watched.parameters())
        found = self._unheld(named, self._optimizers)
        compared: list[tuple[str, ReferenceType[Tensor], Unregistered | None, LateTensor]] = []
        suspects: dict[int, _Suspect] = {}
        for name, parameter, beside in found:
            known = self._suspects.get(id(parameter))
            now = _first_elements(parameter)
            if known is not None and known.parameter() is parameter and known.before.shape == now.shape:
                compared.append((name, ref(parameter), beside, LateTensor((known.before != now).any())))
            else:
                suspects[id(parameter)] = _Suspect(ref(parameter), now.clone())
                registered = self._registered_at(name) if self._step > _FIRST else None
                if registered is not None and registered.is_in_forward:
                    self._renewed[name] += 1
                    if self._renewed[name] == _RENEWED:
                        compared.append((name, ref(parameter), beside, LateTensor(torch.zeros((), device="cpu"))))
        self._suspects = suspects
        if compared:
            self._pending = _PendingComparison(self._step, compared)
        self._names = {key: known for key, known in self._names.items() if known[0]() is not None}
        self._frozen = {key: known for key, known in self._frozen.items() if known() is not None}
        for name, parameter in named:
            self._names[id(parameter)] = ref(parameter), name
            if not parameter.requires_grad:
                self._frozen[id(parameter)] = ref(parameter)
        self._look_for_attributes()

    def _unheld(self, named: Sequence[tuple[str, Tensor]], optimizers: Iterable[Optimizer]) -> list[_Unheld]:
        held = {id(each): each for optimizer in optimizers for each in parameters_of(optimizer)}
        own_ids = {id(each) for _, each in named}
        are_former = any(
            (known := self._names.get(key)) is not None and known[0]() is each for key, each in held.items()
        )
        updates_copies = held.keys().isdisjoint(own_ids) and not are_former
        updates_copies = updates_copies and not self._ever_with_gradient.isdisjoint(held)
        if updates_copies and not any(self._is_consumed(each) for _, each in named):
            return []  # the optimizers update copies of the parameters; else those whose gradients are left have none
        beside = [
            _Unheld(each.name, each.tensor, each)
            for each in unregistered(self._training.watched.modules())
            if id(each.tensor) not in own_ids and id(each.tensor) not in self._inputs
        ]
        candidates = [_Unheld(name, each, None) for name, each in named] + beside
        return [
            each
            for each in candidates
            if each.parameter.grad is not None
            and id(each.parameter) not in held
            and id(each.parameter) not in self._reported
        ]

    def _report_unchanged(self) -> None:
        pending = self._pending
        if pending is None or not all(flag.is_ready() for *_, flag in pending.found):
            return
        self._pending = None
        held = {id(each) for optimizer in optimizers_alive() for each in parameters_of(optimizer)}
        groups: dict[tuple[str, str], list[str]] = {}
        for name, reference, beside, changed in pending.found:
            parameter = reference()
            if parameter is None or id(parameter) in held or bool(changed.read()):
                continue
            self._reported.add(id(parameter))
            groups.setdefault(self._why(name, parameter, beside), []).append(name)
        for (why, advice), names in groups.items():
            get, they, them, their, are = (
                ("get gradients", "they", "them", "their", "are") if len(names) > 1 else _SINGULAR
            )
            sentence = (
                f"{joined(names)} {get}, and no optimizer holds {them}: {they} {are} not updated, and an optimizer's "
                f"zero_grad() does not clear {their} gradients. {why}What to do: {advice}."
            )
            self._training.add(Finding("never stepped", pending.step, sentence, tensor=names[0]))

    def _why(self, name: str, parameter: Tensor, beside: Unregistered | None) -> tuple[str, str]:
        """Return the reason why no optimizer holds a parameter, as a sentence or "", and the advice."""
        if beside is not None:
            is_tensor = beside.advice == "nn.Parameter"
            how = "is not registered" if is_tensor else "does not register its tensors"
            return (
                f"{beside.attribute} is a plain {beside.kind}, which {how}, so model.parameters() lacks "
                f"{'it' if is_tensor else 'them'}. ",
                f"make {beside.attribute} an {beside.advice} before creating the optimizer",
            )
        add = "optimizer.add_param_group({'params': ...})"
        stale = self._stale()
        former = next((each for each, known_name in stale if known_name == name), None)
        place = self._registered_at(name)
        if place is not None or stale:
            when = "" if place is None else f" in step {place.step}{at(place.place)}"
            held = counted(len(stale), "parameter")
            holds = f"; the optimizer holds {held} that the model no longer has" if stale else ""
            return (
                f"The model got new parameters{when}, after the optimizer was created: "
                f"{_replaced_by(parameter, former)}{holds}. ",
                f"create the optimizer when the model is complete, or call {add}; or freeze with requires_grad_(False)",
            )
        frozen = self._frozen.get(id(parameter))
        if frozen is not None and frozen() is parameter:
            return (
                "It had requires_grad=False in earlier steps, when the optimizer was created. ",
                f"call {add} when it is unfrozen, or pass all parameters to the optimizer from the beginning",
            )
        return (
            "",
            "pass all of the model's parameters to the optimizer once the model is complete, or call "
            f"{add}; or freeze with requires_grad_(False)",
        )

    def _registered_at(self, name: str) -> _Registered | None:
        """Return the step and line at which the loop registered a parameter or a module that holds it."""
        modules = dict(self._training.watched.modules())
        parts = name.split(".")
        for length in range(len(parts)):
            module = modules.get(".".join(parts[:length]))
            known = None if module is None else self._registered.get(module, {}).get(parts[length])
            if known is not None:
                return known
        return None

    def _stale(self) -> list[tuple[Tensor, str | None]]:
        """Return the optimizers' parameters that no watched model has and that get no gradient, with former names."""
        own_ids = {id(each) for _, each in self._training.watched.parameters()}
        found = []
        for optimizer in self._optimizers:
            for each in parameters_of(optimizer):
                if id(each) not in own_ids and each.requires_grad and each.grad is None:
                    known = self._names.get(id(each))
                    former = known[1] if known is not None and known[0]() is each else None
                    if (
                        former is not None or id(each) not in self._ever_with_gradient
                    ):  # else it is a parameter of the loop's own
                        found.append((each, former))
        return found

    def _look_for_attributes(self) -> None:
        """Look for `module.requires_grad = ...`, which sets an attribute that PyTorch does not read."""
        for path, module in self._training.watched.modules():
            name = next((each for each in ("requires_grad", "require_grad") if each in vars(module)), None)
            value = None if name is None else vars(module)[name]
            parameters = list(module.parameters()) if isinstance(value, bool) else []
            if not parameters or any(each.requires_grad is value for each in parameters):
                continue
            title = path or type(module).__name__
            state = "stay frozen" if value else "still get gradients and are trained"
            self._training.add(
                Finding(
                    "requires_grad",
                    self._step,
                    f"{title}.{name} = {value} has no effect: a module has no such property, so this sets a plain "
                    f"attribute, and its {counted(len(parameters), 'parameter')} {state}. What to do: call "
                    f"{title}.requires_grad_({value}).",
                    module=title,
                )
            )

    def _report_idle(self, optimizer: Optimizer) -> None:
        held = parameters_of(optimizer)
        idle = [
            each
            for each in held
            if each.requires_grad and id(each) not in self._ever_with_gradient and not self._is_updated_elsewhere(each)
        ]
        if idle and len(idle) == len(held):
            if self._step == _SURE and (self._pending is None or not self._stale()):
                self._report_steps_without_gradients(optimizer, held)
            return
        parts = self._unused_parts() if idle else set()
        idle = [each for each in idle if (id(each) in parts) == (self._step == _SURE_OF_PARTS)]
        if not idle:
            return
        names = [name for each in idle if (name := self._training.watched.name_of(each)) is not None]
        nameless = len(idle) - len(names)
        more = [f"{counted(nameless, 'parameter')} outside the modules that were called"] if nameless else []
        holds = f"{type(optimizer).__name__} holds {joined([*names, *more])}"
        reasons, step = self._reasons(idle), self._step
        self._add_missing(
            idle,
            lambda steps: Finding(
                "without gradient",
                step,
                f"{holds}, which got no gradient in the first {counted(steps, 'step')}; later steps may compute one. "
                f"{reasons}What to do: ts.find_unused(make_loss, model) gives the reason; or freeze with "
                "requires_grad_(False).",
                tensor=names[0] if names else None,
                last_step=steps - 1,
                certain=False,
            ),
        )

    def _add_missing(self, missing: Sequence[Tensor], finding: Callable[[int], Finding]) -> None:
        """Report parameters without a gradient. `finding` makes the text for a number of steps, which grows."""
        self._training.add(finding(self._step + 1))
        self._missing.append(([ref(each) for each in missing], finding))

    def _extend_missing(self, steps: int) -> None:
        """Extend the findings to the steps so far, as long as none of their parameters has got a gradient."""
        self._missing = [
            (references, finding)
            for references, finding in self._missing
            if all(
                (each := known()) is not None and each.grad is None and id(each) not in self._ever_with_gradient
                for known in references
            )
        ]
        for _, finding in self._missing:
            self._training.update(finding(steps))

    def _unused_parts(self) -> set[int]:
        """Return the ids of parameters that have had no gradient, while the same parameter of a sibling has had one.

        Siblings are the modules of an nn.ModuleList or nn.ModuleDict, such as the experts of a layer.
        """
        modules = dict(self._training.watched.modules())
        by_name: dict[str, tuple[list[int], list[int]]] = {}  # without and with a gradient
        for name, parameter in self._training.watched.parameters():
            parts = name.split(".")
            for place in reversed(range(len(parts) - 1)):
                if isinstance(modules.get(".".join(parts[:place])), nn.ModuleList | nn.ModuleDict):
                    alike = by_name.setdefault(".".join([*parts[:place], "*", *parts[place + 1 :]]), ([], []))
                    alike[id(parameter) in self._ever_with_gradient].append(id(parameter))
                    break
        return {key for without, got in by_name.values() if got for key in without}

    def _is_consumed(self, parameter: Tensor) -> bool:
        """Return whether the loop or a hook has taken the gradient of the last backward."""
        hooks: Any = parameter._post_accumulate_grad_hooks
        return parameter.grad is None and (id(parameter) in self._with_gradient or bool(hooks))

    def _is_updated_elsewhere(self, parameter: Tensor) -> bool:
        """Return whether other code updates the parameter, such as a hook during the backward."""
        hooks: Any = parameter._post_accumulate_grad_hooks
        return bool(hooks) or version_of(parameter) != self._versions.get(id(parameter), version_of(parameter))

    def _reasons(self, missing: Sequence[Tensor]) -> str:
        """Return the reasons why parameters have no gradient, as sentences; "" if they are not known."""
        names = [self._training.watched.name_of(each) for each in missing]
        return reasons_of_missing(
            list(self._training.watched.modules()),
            [(name, each) for name, each in zip(names, missing, strict=True) if name is not None],
            {key for key, module in self._training.called.items() if module() is not None},
            self._reached,
        )

    def _report_steps_without_gradients(self, optimizer: Optimizer, held: Sequence[Tensor]) -> None:
        why = self._reasons(held) if self._has_backward else "No backward ran in these steps. "
        title, step = type(optimizer).__name__, self._step
        self._add_missing(
            held,
            lambda steps: Finding(
                "without gradient",
                step,
                f"None of the parameters that {title} holds had a gradient when it stepped in the first "
                f"{counted(steps, 'step')}, so these steps changed nothing. {why}"
                "What to do: look for a backward() that is not called or is followed by zero_grad(), and for a "
                ".detach() or no_grad() before the loss. ts.find_unused(make_loss, model) shows where the path to each "
                "parameter is cut.",
                last_step=steps - 1,
                certain=False,
            ),
        )


_SINGULAR = ("gets gradients", "it", "it", "its", "is")


def _replaced_by(parameter: Tensor, former: Tensor | None) -> str:
    """Return a clause with the calls that may have replaced a parameter."""
    if former is not None and (former.dtype != parameter.dtype or former.device != parameter.device):
        return ".to() created them"
    if former is not None and former.shape != parameter.shape:
        return "a module was replaced or resized"
    return "a module was replaced, or load_state_dict(assign=True) or .to() created them"
