"""Weights and optimiser state of a DeepSpeed engine as plain named tensors, whatever the ZeRO stage.

DeepSpeed's own checkpoints are pickles tied to a stage and a number of ranks. Gathered float32 tensors are neither:
they go into safetensors files and can be read back under another stage or world size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from protlat.errors import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")


def gather_weights(engine: Any, keep: bool = True) -> dict[str, torch.Tensor]:
    """Float32 master weights of what is trained by name, whole, on the CPU; every rank must call.

    Parameters
    ----------
    keep : bool
        False on ranks that only take part, which get an empty dictionary.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    weights = {}
    for name, parameter in _trained(engine):
        value = safe_get_full_fp32_param(parameter) if _is_partitioned(parameter) else parameter.detach()
        if keep:
            weights[name] = value.detach().to("cpu", torch.float32, copy=True).contiguous()
    return weights


def gather_moments(engine: Any, keep: bool = True) -> tuple[dict[str, torch.Tensor], int]:
    """AdamW's two running means as ``exp_avg.NAME`` and ``exp_avg_sq.NAME``, and its step count; every rank must call."""
    from deepspeed.utils import safe_get_full_optimizer_state

    state = _base_optimizer(engine).state
    _link_moments(engine)
    moments = {}
    for name, parameter in _trained(engine):
        for key in MOMENTS:
            partitioned = _is_partitioned(parameter)
            value = safe_get_full_optimizer_state(parameter, key) if partitioned else state[parameter][key]
            if keep:
                moments[f"{key}.{name}"] = value.detach().to("cpu", torch.float32, copy=True).contiguous()
    steps = {int(values["step"]) for values in state.values()}
    assert len(steps) == 1, f"every weight takes part in every step, but step counts are {sorted(steps)}"
    return moments, steps.pop()


def restore_state(
    engine: Any,
    weights: Callable[[str], torch.Tensor],
    moments: Callable[[str], torch.Tensor],
    n_steps: int,
) -> None:
    """Put gathered weights and moments into a fresh engine; every rank must call.

    The model must have held the same weights when the engine was built: the working copies are made from them there,
    and only the master copies, which DeepSpeed derives from the rounded working ones, are set here.

    Parameters
    ----------
    weights : callable
        Master weight by name.
    moments : callable
        Running mean by ``exp_avg.NAME`` or ``exp_avg_sq.NAME``.
    n_steps : int
        AdamW's step count.
    """
    base = _base_optimizer(engine)
    for master in _masters(engine):
        step = torch.tensor(float(n_steps), dtype=torch.float32)
        base.state[master] = {"step": step, **{key: torch.zeros_like(master) for key in MOMENTS}}
    _link_moments(engine)
    for name, parameter in _trained(engine):
        _set_full(engine, parameter, weights(name), None)
        for key in MOMENTS:
            _set_full(engine, parameter, moments(f"{key}.{name}"), key)
    engine.global_steps = n_steps
    engine.micro_steps = n_steps * engine.gradient_accumulation_steps()


def _trained(engine: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """What the optimiser moves; frozen weights come from the model that a run began with."""
    return [(name, parameter) for name, parameter in engine.module.named_parameters() if parameter.requires_grad]


def _link_moments(engine: Any) -> None:
    """Tell each weight which slice of the flat moments is its own.

    DeepSpeed does this itself after the first step, but stages 1 and 2 do it when only the first group has moments.
    """
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def _set_full(engine: Any, parameter: Any, value: torch.Tensor, key: str | None) -> None:
    shape = getattr(parameter, "ds_shape", parameter.shape)
    if tuple(value.shape) != tuple(shape):
        raise CheckpointError(f"checkpoint: a tensor has shape {tuple(value.shape)} where the model has {tuple(shape)}")
    value = value.to(device=engine.device, dtype=torch.float32)
    if hasattr(parameter, "ds_id"):
        from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

        # Stage 3 pads a weight so that every rank holds an equal part.
        part_size = parameter.ds_tensor.numel()
        rank = engine.optimizer._get_param_partition_rank(parameter)
        flat = torch.nn.functional.pad(value.flatten(), (0, part_size * engine.dp_world_size - value.numel()))
        part = flat[rank * part_size : (rank + 1) * part_size]
        if key is None:
            safe_set_local_fp32_param(parameter, part)
        else:
            safe_set_local_optimizer_state(parameter, part, key)
    elif hasattr(parameter, "_hp_mapping"):
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        if key is None:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, key)
    else:
        target = parameter.data if key is None else _base_optimizer(engine).state[parameter][key]
        target.copy_(value)


def _is_partitioned(parameter: torch.nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")


def _base_optimizer(engine: Any) -> torch.optim.Optimizer:
    base = getattr(engine.optimizer, "optimizer", engine.optimizer)
    assert isinstance(base, torch.optim.Optimizer)
    return base


def _masters(engine: Any) -> list[torch.Tensor]:
    """The float32 tensors that AdamW itself updates on this rank."""
    partitions = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    if partitions is not None:  # stage 3 empties AdamW's groups between steps
        return list(partitions)
    return [master for group in _base_optimizer(engine).param_groups for master in group["params"]]
