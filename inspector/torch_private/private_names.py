"""The private names of torch that tapescope uses, grouped by the capability that stops working without them.

Nothing checks them at import. When a release of torch drops a name, the first use of that capability raises an error
that says so. `tests/inspector/torch_private/test_private_names.py` holds the table against the code and against torch.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import FunctionType, ModuleType, TracebackType
from typing import Any, NamedTuple

OLDEST_TESTED, NEWEST_TESTED = "2.11", "2.15"
"""The oldest and the newest version of torch on which `make versions` runs the tests."""


def is_untested(version: str) -> bool:
    """Return whether this version of torch is newer than the newest one tested."""
    return _minor(version) > _minor(NEWEST_TESTED)


def _minor(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


class Capability(NamedTuple):
    """A capability, and the names of torch that it needs.

    Attributes:
        title: the capability, as the start of a sentence.
        still: a sentence about what still works without it, without its full stop.
        names: dotted names; an instance's attribute follows its class. `a|b` means that either is enough, since
            versions differ, `a*` any name that starts with `a`, and `a?` a name that
            only some versions have and the code does without.
    """

    title: str
    still: str
    names: tuple[str, ...]


def _capability(title: str, still: str, names: str) -> Capability:
    return Capability(title, still, tuple(names.split()))


_NOTHING = "nothing else works without it, so install a version that is tested"
_ALL_BUT = "all else works as long as it is not used"

CAPABILITIES = (
    _capability(
        "reading a graph",
        _NOTHING,
        """
        torch.Tensor._base torch.Tensor._cdata torch.Tensor._is_view torch.Tensor._version torch.Tensor._is_zerotensor
        torch.Tensor._indices torch.Tensor._values torch._conj torch._neg_view torch.Tensor._post_accumulate_grad_hooks
        torch.Tensor._backward_hooks torch.UntypedStorage._cdata torch.UntypedStorage._new_with_weak_ptr
        torch.autograd.graph.Node._input_metadata torch.autograd.graph.Node._sequence_nr
        torch._C._ImperativeEngine torch._C._disabled_torch_function_impl torch.Tensor._make_wrapper_subclass
        torch._C._jit_get_schemas_for_operator
        torch.autograd.graph.Node._raw_saved_* torch.autograd.graph.Node._saved_* torch.autograd._get_sequence_nr
        torch.autograd.Function._backward_cls._forward_cls torch.autograd.Function._backward_cls._raw_saved_tensors
        torch.autograd.Function._backward_cls._fwd_used_autocast?
        torch.nn.modules.module._WrappedHook torch._C.TensorBase torch._ops.OpOverload torch._ops.OpOverloadPacket
        torch._ops.OpOverload._schema torch._ops.OpOverload._opname torch.utils._pytree.tree_leaves
        torch.utils._pytree.tree_map_only torch.utils._python_dispatch.is_traceable_wrapper_subclass
        torch._subclasses.fake_tensor.FakeTensor torch._subclasses.fake_tensor.FakeTensorMode
        torch._subclasses.fake_tensor.DataDependentOutputException
        torch._subclasses.fake_tensor.DynamicOutputShapeException
        torch._subclasses.fake_tensor.UnsupportedOperatorException
        """,
    ),
    _capability(
        "leaving the modes of a thread",
        _NOTHING,
        """
        torch._C.DisableTorchFunction torch._C._DisableAutocast torch._C._DisableTorchDispatch torch._C._InferenceMode
        torch._C._are_functorch_transforms_active torch._C._get_privateuse1_backend_name torch._C._get_tracing_state
        torch._C._set_tracing_state torch._C._set_grad_enabled torch._C._set_fwd_grad_enabled
        torch._C._is_fwd_grad_enabled torch._C._is_any_autocast_enabled torch._C._is_torch_function_mode_enabled
        torch._C._get_dispatch_stack_at torch._C._len_torch_dispatch_stack
        torch._C._len_torch_function_stack torch._C._pop_torch_dispatch_stack
        torch._C._push_on_torch_dispatch_stack torch._C._pop_torch_function_stack torch._C._push_on_torch_function_stack
        torch._C._dispatch_tls_is_dispatch_key_excluded torch._C._dispatch_tls_set_dispatch_key_excluded
        torch._C._is_grad_layout_enforcement_enabled? torch._C._set_grad_layout_enforcement_enabled?
        torch._C.DispatchKey.ADInplaceOrView torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
        torch._C._autograd._saved_tensors_hooks_set_tracing torch._C._autograd._saved_tensors_hooks_is_enabled
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
        torch._C._autograd._top_saved_tensors_default_hooks torch._C._autograd._push_saved_tensors_default_hooks
        torch._C._autograd._pop_saved_tensors_default_hooks torch.overrides._get_current_function_mode_stack
        torch.overrides._pop_mode torch.overrides._push_mode torch.utils._python_dispatch.TorchDispatchMode
        torch.utils._python_dispatch._disable_current_modes
        torch.utils._python_dispatch._get_current_dispatch_mode_stack
        """,
    ),
    _capability(
        "answering in the engine's place",
        _NOTHING,
        """
        torch._C._current_autograd_node torch._C._current_graph_task_execution_order torch._C._current_graph_task_id
        torch._C._will_engine_execute_node torch.autograd._make_grads torch.autograd.graph._engine_run_backward
        torch.autograd.variable.Variable._execution_engine
        """,
    ),
    _capability(
        "keeping torch.compile away",
        _NOTHING,
        """
        torch._C._dynamo.eval_frame.set_eval_frame torch._C._dynamo.eval_frame.set_code_exec_strategy
        torch._C._dynamo.eval_frame._FrameAction torch._C._dynamo.eval_frame._FrameExecStrategy
        torch._higher_order_ops.utils._set_compilation_env torch._dynamo.eval_frame._stance
        torch._dynamo.eval_frame._maybe_set_eval_frame torch._dynamo.compiled_autograd.compiled_autograd_enabled
        torch._dynamo.eval_frame.OptimizedModule._orig_mod torch._functorch.config.activation_memory_budget
        torch._functorch.config.patch         torch._inductor torch._library.autograd
        """,
    ),
    _capability(
        "capturing a forward",
        "ts.graph, ts.backward and ts.debug take a loss that was made outside of ts.capture()",
        """
        torch.nn.modules.module._global_forward_hooks torch.nn.modules.module._global_forward_pre_hooks
        torch.nn.modules.module._global_forward_hooks_always_called torch.nn.modules.module._has_any_global_hook
        torch.nn.modules.module._global_backward_hooks torch.nn.modules.module._global_backward_pre_hooks
        torch.nn.Module._wrapped_call_impl torch.nn.Module._call_impl torch.nn.Module._compiled_call_impl
        torch.nn.Module._forward_hooks torch.nn.Module._forward_pre_hooks torch.nn.Module._backward_hooks
        torch.nn.Module._backward_pre_hooks
        torch._C._functions.AccumulateGrad torch._C._autograd._push_node_creation_hook?
        torch._C._autograd._pop_node_creation_hook?
        torch._C._functorch.is_functorch_wrapped_tensor torch._C._functorch.get_unwrapped
        torch.jit._recursive.concrete_type_store torch.jit._state._python_cu
        """,
    ),
    _capability(
        "another order on PyTorch's own engine",
        'engine="direct" runs a backward in any order',
        """
        torch.autograd.graph.Node._set_sequence_nr torch._C._is_multithreading_enabled torch._C._is_view_replay_enabled
        torch._C._get_graph_exec_group torch._C._set_graph_exec_group
        torch.autograd.grad_mode._force_original_view_tracking
        """,
    ),
    _capability(
        "telling who holds a tensor",
        "ts.graph and ts.backward work, also with another order of tasks",
        "torch.Tensor._use_count torch.Tensor._view_func_unsafe torch._C._storage_Use_Count",
    ),
    _capability(
        "going back, and keeping a step to replay it",
        "a backward can be stepped forward",
        """
        torch._C._autograd._unsafe_set_version_counter torch._C._swap_tensor_impl torch._foreach_copy_
        torch.utils.data.dataloader._BaseDataLoaderIter
        """,
    ),
    _capability(
        "measuring memory",
        "ts.simulate predicts it, and a backward can be stepped",
        """
        torch._C._autograd._disable_profiler torch._C._autograd._enable_profiler torch._C._autograd._prepare_profiler
        torch._C._autograd._profiler_enabled torch._C._profiler torch._C._profiler._ExperimentalConfig
        torch.autograd.profiler._is_profiler_enabled torch.ops.profiler._record_function_enter_new
        torch.ops.profiler._record_function_exit
        """,
    ),
    _capability(
        "reading the history of CUDA's allocator",
        "memory on the CPU is measured, and predicted on any device",
        "torch._C._cuda_isHistoryEnabled torch.cuda.memory._record_memory_history torch.cuda.memory._snapshot",
    ),
    _capability(
        "predicting a step on fake tensors",
        "memory can be measured (ts.profile, ts.record_steps)",
        """
        torch._compile._disable_dynamo torch._dynamo.config torch._refs._reshape_view_helper torch._decomp
        torch._meta_registrations torch._prims torch._subclasses.fake_tensor.FakeTensorMode._dispatch_impl
        torch._subclasses.fake_tensor.FakeTensorMode._mode_key torch.ops.aten._to_copy torch.ops.aten._unsafe_view
        torch._subclasses.fake_tensor.FakeTensorConverter._get_memo torch.Tensor._typed_storage
        torch.ops.aten._fused_adagrad_ torch.ops.aten._fused_sgd_ torch.ops.aten._local_scalar_dense
        torch.optim.optimizer._use_grad_for_differentiable
        """,
    ),
    _capability(
        "telling what a checkpoint keeps",
        _ALL_BUT,
        """
        torch.utils.checkpoint._CachedTorchDispatchMode torch.utils.checkpoint._CheckpointFrame
        torch.utils.checkpoint._current_user_saved_tensors_hooks? torch.utils.checkpoint._checkpoint_internal?
        torch.utils.checkpoint._user_hooks?
        """,
    ),
    _capability(
        "watching a training loop",
        "single steps can be measured and stepped",
        """
        torch._foreach_norm torch._foreach_sub_ torch.nn.modules.batchnorm._NormBase
        torch.amp.grad_scaler.GradScaler._maybe_opt_step torch.amp.grad_scaler.GradScaler._scale
        torch.optim.Optimizer._optimizer_step_pre_hooks torch.nn.utils.clip_grad._clip_grads_with_norm_
        torch.optim.SGD._step_supports_amp_scaling torch.utils.data.dataloader._BaseDataLoaderIter._num_workers
        """,
    ),
    _capability(
        "reading what DistributedDataParallel and process groups do",
        _ALL_BUT,
        """
        torch.distributed.distributed_c10d._get_default_group torch.distributed.distributed_c10d._get_default_store
        torch.distributed.distributed_c10d._world torch.distributed.ProcessGroup._get_sequence_number_for_group
        torch.distributed.Reducer._get_zeros_like_grad_buckets torch.nn.parallel.distributed._DDPSink
        torch.nn.parallel.DistributedDataParallel._post_forward torch.nn.parallel.DistributedDataParallel._pre_forward
        torch.nn.parallel.DistributedDataParallel._static_graph_delay_allreduce_enqueued
        torch.nn.modules._functions.BackwardHookFunction
        """,
    ),
    _capability(
        "reading what fully_shard and FSDP do",
        _ALL_BUT,
        """
        torch.distributed._composable_state._module_state_mapping torch.distributed.fsdp._flat_param.FlatParameter._fqns
        torch.distributed.fsdp._fully_shard._fsdp_state._get_module_fsdp_state
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._comm_ctx
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._fsdp_param_groups|_fsdp_param_group
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._state_ctx
        torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._training_state
        torch.distributed.fsdp._fully_shard._fsdp_state.RegisterPreBackwardFunction|FSDPState
        torch.distributed.fsdp._fully_shard._fsdp_param_group.RegisterPostBackwardFunction
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._partial_reduce_output
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._post_forward_indices
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._sharded_state
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._to_sharded
        torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._to_sharded_post_forward
        torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam._param_fqn
        torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam._unsharded_param
        torch.distributed.tensor._api._FromTorchTensor torch.distributed.tensor._api._ToTorchTensor
        torch.distributed.tensor._utils.compute_local_shape_and_global_offset
        """,
    ),
)


def explain(error: AttributeError | ImportError) -> str | None:
    """Return a sentence for an error from looking up one of these names in tapescope's code; None for other errors.

    The sentence names the capability, the version of torch, and what still works.
    """
    missing = _missing_name(error) or ""
    module, _, attribute = missing.rpartition(".")
    for capability in CAPABILITIES if missing else ():
        for name in capability.names:
            owner, _, last = name.rpartition(".")
            # For attributes of objects, only the last part is known.
            is_attribute = attribute in last.split("|") and module in ("", owner)
            if missing == name or name.startswith(f"{missing}.") or is_attribute:
                import torch

                return (
                    f"{capability.title} needs {name}, which torch {torch.__version__} does not have: "
                    f"{capability.still}. tapescope is tested with torch {OLDEST_TESTED} to {NEWEST_TESTED}"
                )
    return None


def _missing_name(error: AttributeError | ImportError) -> str | None:
    """Return the name that was looked up: dotted for a module, the attribute alone for other objects."""
    if isinstance(error, ImportError):
        found = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
        missing = f"{found[2]}.{found[1]}" if found else error.name or ""
        return missing if missing.partition(".")[0] == "torch" else None
    own = __name__.partition(".")[0]
    if type(error.obj).__module__.partition(".")[0] == own:  # traitlets looks up optional names of a deck
        return None
    traceback: TracebackType | None = error.__traceback__
    asks = ""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name != "__getattr__":  # some modules of torch define it
            asks = str(traceback.tb_frame.f_globals.get("__name__"))
        traceback = traceback.tb_next
    if asks.partition(".")[0] != own:
        return None
    return f"{error.obj.__name__}.{error.name}" if isinstance(error.obj, ModuleType) else error.name


def missing_names() -> dict[Capability, list[str]]:
    """Return by capability the names that the installed torch does not have. Imports every module in the table."""
    found = {each: [name for name in each.names if not _is_there(name)] for each in CAPABILITIES}
    return {capability: names for capability, names in found.items() if names}


def _is_there(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    try:
        holder = _object(owner)
    except (AttributeError, ImportError):
        return False
    if last.endswith("*"):
        return any(each.startswith(last[:-1]) for each in dir(holder))
    return last.endswith("?") or any(_has(holder, each) for each in last.split("|"))


def _object(name: str) -> Any:
    import torch

    if name == "torch.autograd.graph.Node":  # an abstract class; concrete nodes have more attributes
        return torch.ones((), requires_grad=True).exp().grad_fn
    parts = name.split(".")
    found: Any = torch
    for count, part in enumerate(parts[1:], 2):  # torch.optim deletes the attributes for its modules
        found = getattr(found, part) if hasattr(found, part) else import_module(".".join(parts[:count]))
    return found


def _has(holder: Any, name: str) -> bool:
    """Return whether an object has an attribute, or a class's code mentions one that its instances get."""
    if hasattr(holder, name):
        return True
    if isinstance(holder, ModuleType):
        try:
            import_module(f"{holder.__name__}.{name}")
        except ImportError:
            return False
        return True
    kinds = holder.__mro__ if isinstance(holder, type) else ()
    members = [each for kind in kinds for each in vars(kind).values()]
    codes = [each.__code__ for each in members if isinstance(each, FunctionType)]
    return any(name in vars(kind).get("__annotations__", ()) for kind in kinds) or any(
        name in (*code.co_names, *code.co_consts) for code in codes
    )
