# SPDX-License-Identifier: Apache-2.0
"""deepspeed.zero and deepspeed.utils.safe_*.

On the CPU parameters are whole in every process: they are the node's shared image, which costs a
process nothing. On a GPU, in stage 3, shardd.stage3 fetches them. GatheredParameters has them be in
memory, and sees to it that what one rank writes is the same everywhere. What changes masters or
moments from outside is rare, and is done by making the model anew from the changed numbers: all
ranks call it, as with DeepSpeed.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from typing import Any, Callable

import torch

from ..init import Init as _Init
from . import comm
from .config import DTYPE_NAMES, LEAF_MODULES, Config, load
from .optimizer import DeepSpeedOptimizer, optimizer_of

log = logging.getLogger("shardd")


class ZeroParamStatus(enum.Enum):
    """Where a parameter is. Here it is always AVAILABLE."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class Init(contextlib.ContextDecorator):
    """shardd.Init for modules that are made in here, with the dtype of the ds_config, or `dtype`.

    module: one that exists already is cast. The other arguments of DeepSpeed's Init say how parts
    of parameters are kept, and there are none.
    """

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True,
                 remote_device=None, pin_memory=False, config_dict_or_path=None, config=None,
                 enabled=True, dtype=None, mpu=None, **more):
        self._init = _Init(enabled=False)
        source = config_dict_or_path if config_dict_or_path is not None else config
        if not enabled:
            return
        if dtype is None and source is not None:
            raw = load(source)
            for block, name in (("bf16", "bfloat16"), ("bfloat16", "bfloat16"),
                                ("fp16", "float16")):
                if (raw.get(block) or {}).get("enabled") is True:
                    dtype = getattr(torch, name)
        if isinstance(dtype, str):
            dtype = getattr(torch, DTYPE_NAMES[dtype])
        self._init = _Init(dtype=dtype, enabled=enabled)
        if module is not None and dtype is not None:
            module.to(dtype)

    def __enter__(self):
        self._init.__enter__()
        return self

    def __exit__(self, *what):
        return self._init.__exit__(*what)


class GatheredParameters:
    """In here parameters are whole, and with modifier_rank they may be written by that rank.

    Before the engine is made they are ordinary memory, and the others get what that rank wrote.
    Afterwards the model is made anew with it, with its moments as they are.
    """

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        if not enabled or params is None:
            params = []
        elif isinstance(params, torch.Tensor):
            params = [params]
        elif isinstance(params, dict):
            params = list(params.values())
        self._params = [p for p in params if p is not None]
        self._rank = modifier_rank

    def __enter__(self):
        self._engines: dict[int, DeepSpeedOptimizer] = {}
        self._held = contextlib.ExitStack()
        for p in self._params:
            with contextlib.suppress(KeyError):
                opt = optimizer_of(p)
                self._engines[id(opt)] = opt
        for opt in self._engines.values():
            self._held.enter_context(opt.gather(*self._params))
            for p in self._params if self._rank is not None else ():
                row = opt._row_of.get(id(p))
                if row is not None and opt._image.is_view(row):
                    p.data = p.data.clone()

    def __exit__(self, kind, value, trace):
        with self._held:
            if self._rank is None or kind is not None:
                return False
            if comm.is_initialized() and comm.world_size() > 1:
                for p in self._params:
                    comm.broadcast(p.data, self._rank)
            written = {id(p): p.detach().float().cpu().clone() for p in self._params}
        for opt in self._engines.values():
            numbers = opt.numbers()
            for p in self._params:
                row = opt._row_of.get(id(p))
                if row is not None:
                    numbers.masters[row.name] = written[id(p)]
            _renew(opt, numbers)
        return False


def register_external_parameter(module, parameter) -> None:
    """Nothing: a parameter is fetched wherever it is looked up."""
    if not isinstance(module, torch.nn.Module) or not isinstance(parameter, torch.nn.Parameter):
        raise RuntimeError("Parameter is not a torch.nn.Parameter")


def unregister_external_parameter(module, parameter) -> None:
    """Nothing."""


@contextlib.contextmanager
def unwrap_model_for_generation(model):
    """The model, to generate with."""
    yield getattr(model, "module", model)


# --- utils.safe_* ---


def _row(p):
    try:
        opt = optimizer_of(p)
    except KeyError:
        return None, None
    return opt, opt._row_of[id(p)]


def safe_get_full_fp32_param(param) -> torch.Tensor | None:
    """The master weights of a parameter, or None if none are kept."""
    opt, row = _row(param)
    return opt.read(param) if opt is not None else None


def safe_get_full_optimizer_state(param, optim_state_key: str) -> torch.Tensor | None:
    """A moment of a parameter, as "exp_avg"; None if the optimizer keeps none of that name."""
    opt, row = _row(param)
    if opt is None or optim_state_key not in opt._moments():
        return None
    return opt.read(param, optim_state_key)


def _local_grad(opt, row) -> torch.Tensor | None:
    """This rank's sum, where it lies before step(). It may be written unless it was pushed."""
    if not row.seen:
        return None
    held = row.arena if row.pushed or opt.grad_dtype is torch.float32 else row.sum
    return held.view(row.param.shape)


def safe_get_full_grad(param) -> torch.Tensor | None:
    """What the step in hand will use of a parameter: the mean over ranks, or their sum where the
    ds_config says so, in fp32; None if there is none.

    With several ranks all of them call it."""
    opt, row = _row(param)
    if opt is None:
        return None
    held = _local_grad(opt, row)
    if held is None:
        return None
    grad = held.float() / opt._session.loss_scale
    if comm.is_initialized() and comm.world_size() > 1:
        comm.all_reduce(grad)
        grad /= comm.world_size() * opt.weight
    return grad


def safe_set_full_grad(param, value) -> None:
    """Replaces the gradient of the step in hand, before step(). All ranks give the same."""
    opt, row = _row(param)
    held = _local_grad(opt, row) if opt is not None else None
    if held is None:
        raise RuntimeError("shardd: safe_set_full_grad(): this parameter has no gradient now")
    if row.pushed:
        raise RuntimeError(f"shardd: safe_set_full_grad(): the gradient of {row.name!r} was pushed "
                           'already: say "shardd": {"overlap": false} in the ds_config')
    with torch.no_grad():
        held.copy_(value.to(held.dtype) * opt._session.loss_scale)


def safe_update_full_grad_vectorized(param_list, update_func: Callable) -> None:
    """Replaces the gradient of each parameter by update_func(gradient, parameter)."""
    for p in param_list:
        grad = safe_get_full_grad(p)
        if grad is not None:
            safe_set_full_grad(p, update_func(grad, p))


def _renew(opt, numbers) -> None:
    """Makes the model anew of these numbers. What backward made for the step in hand would go with
    the old one, and nobody would see that it is gone."""
    if any(r.seen for r in opt._rows):
        raise RuntimeError("shardd: weights and moments can be changed between two steps, and "
                           "gradients wait for a step now: call engine.step() first, or "
                           "engine.zero_grad() if they are not wanted")
    opt.again(numbers)


def _change(param, kind: str, value: torch.Tensor) -> None:
    opt, row = _row(param)
    if opt is None:
        raise KeyError("shardd: this parameter is trained by no engine")
    numbers = opt.numbers()
    value = value.detach().float().reshape(param.shape).clone()
    if kind == "master":
        numbers.masters[row.name] = value
    elif kind in numbers.moments:
        numbers.moments[kind][row.name] = value
    else:
        raise KeyError(f"shardd: {opt.kind} keeps no {kind!r}, but {sorted(numbers.moments)}")
    _renew(opt, numbers)


def safe_set_full_fp32_param(param, value) -> None:
    """Replaces master weights, and so the parameter. All ranks call it, between two steps."""
    _change(param, "master", value)


def safe_set_full_optimizer_state(param, value, optim_state_key: str) -> None:
    """Replaces a moment. All ranks call it, between two steps."""
    _change(param, optim_state_key, value)


def _part(x: torch.Tensor | None) -> torch.Tensor | None:
    """This rank's part of a tensor, as ZeRO-3 would cut it."""
    if x is None:
        return None
    n, r = comm.world_size(), comm.rank()
    size = -(-x.numel() // n)
    return x.flatten()[r * size:(r + 1) * size]


def _whole(param, part: torch.Tensor) -> torch.Tensor:
    """The tensor whose parts all ranks gave."""
    if not comm.is_initialized() or comm.world_size() == 1:
        return part.reshape(param.shape)
    parts: list[Any] = [None] * comm.world_size()
    comm.all_gather_object(parts, part.detach().cpu())
    return torch.cat([x.flatten() for x in parts])[:param.numel()].reshape(param.shape)


def safe_get_local_fp32_param(param):
    """This rank's part of the master weights."""
    return _part(safe_get_full_fp32_param(param))


def safe_get_local_optimizer_state(param, optim_state_key):
    """This rank's part of a moment."""
    return _part(safe_get_full_optimizer_state(param, optim_state_key))


def safe_get_local_grad(param):
    """This rank's part of the gradient of the step in hand."""
    return _part(safe_get_full_grad(param))


def safe_set_local_fp32_param(param, value):
    """Each rank replaces its part of the master weights."""
    safe_set_full_fp32_param(param, _whole(param, value))


def safe_set_local_optimizer_state(param, value, optim_state_key):
    """Each rank replaces its part of a moment."""
    safe_set_full_optimizer_state(param, _whole(param, value), optim_state_key)


def safe_set_local_grad(param, value):
    """Each rank replaces its part of the gradient."""
    safe_set_full_grad(param, _whole(param, value))


# --- leaf modules: fetched as a whole, where parameters are fetched ---

LEAF_MAX = 1e9  # A module with more parameters than that is no leaf for being fine.


def mark_leaves(model, config: Config) -> None:
    """Marks the modules that a ds_config says. A word that none has is told in the log."""
    which, fine = config.leaf_modules, config.leaf_granularity
    for word in which["classes"]:
        if not _mark(model, [word], True, False) and word not in LEAF_MODULES["classes"]:
            _no_leaf("classes", word)
    for word in set_z3_leaf_modules_by_name(model, which["names"], True, False)[1]:
        _no_leaf("names", word)
    for word in set_z3_leaf_modules_by_suffix(model, which["name_suffixes"], True, False)[1]:
        _no_leaf("name_suffixes", word)
    if fine > 0 and not _mark_fine(model, fine):
        log.warning("shardd: ds_config: module_granularity_threshold=%g: no module is as fine",
                    fine)


def _no_leaf(key: str, word: str) -> None:
    log.warning("shardd: ds_config: zero_optimization.leaf_module.%s: no module is %r", key, word)


def _mark_fine(model, fine: float) -> bool:
    """Marks modules that have at most so many parameters for each module in them, the outermost
    first. Containers of torch, which may have no forward, and modules without parts are none."""
    grains: dict[int, float] = {}
    _weigh(model, grains)

    def mark(m) -> bool:
        if grains.get(id(m), fine + 1) <= fine:
            m._z3_leaf = True
            return True
        return any([mark(child) for child in m.children()])

    return mark(model)


def _weigh(module, grains: dict[int, float]) -> tuple[int, int]:
    """How many modules with parameters there are, and how many parameters. Fills in the granularity
    of those that may be leaves, by id."""
    if not any(True for _ in module.parameters()):
        return 0, 0
    parts, size = 0, sum(p.numel() for p in module.parameters(recurse=False))
    for child in module.children():
        n, of_child = _weigh(child, grains)
        parts, size = parts + n, size + of_child
    if type(module).__name__ in torch.nn.modules.container.__all__:
        return parts, size
    parts += 1
    if any(True for _ in module.children()) and size <= LEAF_MAX:
        grains[id(module)] = size // parts
    return parts, size


def set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found: bool = True) -> list:
    """Marks the modules of these classes, before initialize(). Returns them.

    leaf_module_classes: classes, or their names with or without the module that they are in.
    Raises ValueError if the model has none of them, unless raise_if_not_found is False.
    """
    return _mark(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found: bool = True) -> list:
    """Takes the marks of these classes away. Returns the modules."""
    return _mark(model, leaf_module_classes, False, raise_if_not_found)


def _mark(model, which, flag: bool, must: bool) -> list:
    names = {c for c in which if isinstance(c, str)}
    classes = tuple(c for c in which if not isinstance(c, str))
    found = [m for m in model.modules() if isinstance(m, classes) or names & {
        type(m).__name__, f"{type(m).__module__}.{type(m).__qualname__}"}]
    if not found and must:
        raise ValueError(f"No modules of type {which} found in model {model}")
    for m in found:
        m._z3_leaf = flag
    return found


def set_z3_leaf_modules_by_name(model, module_names, flag: bool = True,
                                raise_if_not_found: bool = True) -> tuple[list, list[str]]:
    """Marks modules by their names in named_modules(). Returns them, and the names of none."""
    by_name = dict(model.named_modules())
    return _mark_named(model, {n: [by_name[n]] if n in by_name else [] for n in module_names}, flag,
                       raise_if_not_found)


def set_z3_leaf_modules_by_suffix(model, module_name_suffixes, flag: bool = True,
                                  raise_if_not_found: bool = True) -> tuple[list, list[str]]:
    """Marks modules by the ends of their names. Returns them, and the ends of none."""
    return _mark_named(model, {end: [m for n, m in model.named_modules() if n.endswith(end)]
                               for end in module_name_suffixes}, flag, raise_if_not_found)


def _mark_named(model, found: dict[str, list], flag: bool, must: bool) -> tuple[list, list[str]]:
    missing = [n for n, modules in found.items() if not modules]
    if missing and must:
        raise ValueError(f"No modules named {missing} found in model {model}")
    once = {id(m): m for modules in found.values() for m in modules}
    for m in once.values():
        m._z3_leaf = flag
    return list(once.values()), missing


def set_z3_leaf_module(model, flag: bool) -> None:
    """Marks one module."""
    model._z3_leaf = flag


def get_z3_leaf_modules(model) -> list:
    """The marked modules."""
    return [m for m in model.modules() if z3_leaf_module(m)]


def z3_leaf_module(model) -> bool:
    """Whether a module is marked."""
    return getattr(model, "_z3_leaf", False)
