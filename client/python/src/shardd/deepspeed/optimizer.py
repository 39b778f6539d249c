# SPDX-License-Identifier: Apache-2.0
"""DeepSpeedOptimizer: a shardd.Optimizer with DeepSpeed's names, and how a ds_config makes one.

make_optimizer() is what the engine calls. The happy path afterwards is that of shardd.Optimizer.
What DeepSpeed allows beyond it, to change masters and moments from outside and to go on with a
checkpoint of another world, is again(): the model is dropped and made anew from other numbers.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import Any

import torch

from .. import params as _p
from ..checkpoints import Initial
from ..hooks import OVER
from ..optimizer import Optimizer
from ..settings import KINDS, shared_groups, taken_over
from . import comm
from .config import Config, number
from .monitor import log

_optimizers: weakref.WeakSet = weakref.WeakSet()
_names: dict[str, int] = {}  # How many models of a name this process has made.


def optimizer_of(p: torch.Tensor) -> "DeepSpeedOptimizer":
    """The optimizer that trains a parameter. Raises KeyError if none does."""
    for opt in list(_optimizers):
        if not opt._closed and id(p) in opt._row_of:
            return opt
    raise KeyError("shardd: this parameter is trained by no engine")


class SummedGrad(_p.PushedGrad):
    """Stands in .grad where the gradient was taken and waits for step(), and says so.

    DeepSpeed has none there in ZeRO. This rank's own would not do: what clips it by hand would
    clip each rank's gradient, and not their mean.
    """

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name = next((a.name_of_param for a in _p._flat(args) if isinstance(a, SummedGrad)), "?")
        if func._schema.name in ("aten::detach", "aten::detach_", "aten::alias"):
            return args[0]
        if func._schema.name in ("aten::add", "aten::add_"):
            raise RuntimeError(
                f"shardd: {name!r} gets a gradient after the last backward pass of this step, and "
                "not by engine.backward(): call that, or engine.step() first")
        raise RuntimeError(
            f"shardd: the gradient of {name!r} is not in .grad ({func._schema.name}): it waits for "
            "engine.step(). To clip, say gradient_clipping in the ds_config and take "
            "clip_grad_norm_ out; the norm is engine.get_global_grad_norm() after the step. To "
            "look at it or change it: deepspeed.utils.safe_get_full_grad(p), "
            "safe_set_full_grad(p, x)")


class LossScaler:
    """What scripts read of the loss scale. It is the daemons', and is as it is now at each look."""

    def __init__(self, opt: "DeepSpeedOptimizer"):
        self._opt = opt

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether it follows overflows."""
        return self._opt.dynamic_loss_scale

    dynamic = dynamic_loss_scale

    @property
    def cur_scale(self) -> float:
        """That of the next step."""
        return self._opt.cur_scale

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Steps that were made or skipped."""
        return self._opt.global_step

    @property
    def scale_window(self) -> int:
        """Steps without an overflow until it grows."""
        return self._opt._more.get("loss_scale_window", 1000)

    @property
    def min_loss_scale(self) -> float:
        """It gets no smaller."""
        return self._opt._more.get("min_loss_scale", 1.0)

    min_scale = min_loss_scale


class DeepSpeedOptimizer(Optimizer):
    """What initialize() returns as optimizer: a shardd.Optimizer with the names of DeepSpeed's.

    It keeps what it was defined with, so that the model can be made anew from other numbers.
    """

    one_lr = True  # As DeepSpeed's schedules have it.

    def __init__(self, groups, module: torch.nn.Module, **arguments):
        self._module_of_engine = module
        self.sums = False  # Whether gradients are summed over the trainers, and not averaged.
        self._markers: dict[int, SummedGrad] = {}
        super().__init__(groups, **arguments)
        _optimizers.add(self)

    def _collect(self, *dtypes) -> None:
        self._module = self._module_of_engine
        super()._collect(*dtypes)

    # --- the step ---

    @property
    def weight(self) -> float:
        """What this rank's gradient counts. Where gradients are summed over the trainers, all of
        the world that there is count 1 together."""
        return 1.0 / self.world_size if self.sums else self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        self._weight = value

    def begin(self) -> bool:
        """Begins the step, so that its world is known. False: that is over already."""
        if self._dead is None:
            try:
                self._begin()
            except OVER as e:
                self._dead = e
        return self._dead is None

    def mark(self) -> None:
        """Has .grad of each parameter whose gradient was summed say where it is."""
        if self._closed or self._dead is not None:
            return
        for r in self._rows:
            if r.seen and not r.pushed and r.param.grad is None:
                if id(r.param) not in self._markers:
                    self._markers[id(r.param)] = SummedGrad(r.param, r.name)
                r.param.grad = self._markers[id(r.param)]

    def unmark(self) -> None:
        """Takes that away, before the next backward pass and before the step."""
        for r in self._rows:
            if isinstance(r.param.grad, SummedGrad):
                r.param.grad = None

    def _forget_step(self) -> None:
        super()._forget_step()
        self._grads.syncing = False  # The engine says when it is.

    def _take_step(self) -> None:
        self.unmark()
        super()._take_step()

    def _check_given(self) -> None:
        """Nothing: hooks have taken what backward made, so that the script itself wrote what is in
        .grad now. DeepSpeed takes that as scaled."""

    # --- the definition ---

    def _define(self, world, loss_scale, checkpoint_every, resume, init_from, init, timeout,
                more) -> None:
        self._loss_scale = loss_scale
        self._definition = (world, loss_scale, checkpoint_every, "auto", init_from)
        self._more, self._define_timeout = dict(more), timeout
        super()._define(world, loss_scale, checkpoint_every, resume, init_from, init, timeout,
                        more)

    @property
    def cur_scale(self) -> float:
        """The loss scale of the next step."""
        if self.result is not None and self.result.reason != "world":
            return self.result.next_loss_scale
        there = None if self._closed else self._session.status(self.name)
        return there["loss_scale"] if there is not None else 1.0

    loss_scale = cur_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale follows overflows."""
        return self._more.get("loss_scale", self._loss_scale) == "dynamic"

    @property
    def loss_scaler(self) -> "LossScaler":
        """The loss scale under the names of DeepSpeed's optimizers."""
        return LossScaler(self)

    loss_scale_config = loss_scaler

    @property
    def _global_grad_norm(self) -> float | None:
        r = self.result
        norm = r.grad_norm if r is not None and r.reason != "world" else None
        # DeepSpeed says inf for a gradient with Inf or NaN.
        return math.inf if norm is not None and math.isnan(norm) else norm

    @property
    def optimizer(self) -> "DeepSpeedOptimizer":
        """Itself: DeepSpeed wraps an optimizer of torch here."""
        return self

    def again(self, init: Initial | tuple[str, str], **settings) -> None:
        """Drops the model and makes it anew: of `init`, or of a checkpoint (dir, tag) that the
        daemons read. The settings are those that it was defined with, and `settings`.

        All ranks call it. Parameters become ordinary memory until the next step.
        """
        self._let_go()
        self._more.update(settings)
        self._define(*self._definition, init, self._define_timeout, self._more)
        if isinstance(init, tuple) and comm.rank() == 0:
            # What was set while the saved run trained came back with it.
            self._session.set("clip", repr(self.clip))
        self._start()

    def numbers(self) -> Initial:
        """All masters and moments, read from the daemons, as what a model may begin with."""
        return Initial(self.global_step, {r.name: self.read(r.param) for r in self._rows},
                       {k: {r.name: self.read(r.param, k) for r in self._rows}
                        for k in self._moments()}, self.applied)


def make_optimizer(module: torch.nn.Module, c: Config, client, model_parameters):
    """What a ds_config says, or an optimizer of the user's own, as a DeepSpeedOptimizer.

    client: of torch.optim, a function of parameters that returns one, or None. model_parameters: as
    initialize() has them. Returns it and the user's own; (None, None) for an engine that only
    computes forward passes.
    """
    named = {id(p): n for n, p in module.named_parameters()}
    given = c.optimizer()
    if callable(client) and not isinstance(client, torch.optim.Optimizer):
        client = client(list(model_parameters if model_parameters is not None
                             else module.parameters()))
    if client is not None:
        kind, groups = taken_over(client)
        if given is not None:
            log.info("the optimizer of the ds_config is not used: initialize() was given one")
        words: dict[str, Any] = {}
        if getattr(client, "adam_w_mode", True) is False and kind == "adamw":
            kind = "adam"
    elif given is not None:
        kind, words = given
        groups = _groups(model_parameters if model_parameters is not None
                         else module.parameters())
    else:
        return None, None
    for g in groups:
        params = g["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        g["params"] = [(named.get(id(p), f"t{i}"), p) for i, p in enumerate(params)]
    words.setdefault("weight_decay", 0.0)
    if client is not None:
        words.pop("weight_decay")
    grad = c.grad_dtype
    settings = {**c.settings(), **(_schedule_of_daemon(c) if "betas" in KINDS[kind] else {})}
    low, high = c.world
    made = DeepSpeedOptimizer(
        groups, module, kind=kind, name=_model_name(c), address=c.get("shardd.address"),
        secret=c.get("shardd.secret"), tls=c.get("shardd.tls"), clip=c.clip, world=(low, high),
        grad_dtype=getattr(torch, grad) if grad else None,
        params=c.get("shardd.params"), stage3=c.stage3,
        device=comm.device() if comm.device().type != "cpu" else None,
        checkpoint_dir=c.get("shardd.checkpoint_dir"),
        checkpoint_every=c.get("shardd.checkpoint_every", 0),
        resume=c.get("shardd.resume") or _resume(),
        timeout=c.get("shardd.timeout", 300.0),
        loss_scale=settings.pop("loss_scale", None), **words, **settings)
    if client is not None:
        # A scheduler that was made for the other one writes into these.
        made.param_groups = shared_groups(client, made.param_groups)
    return made, client


def schedule_params(c: Config) -> dict:
    """scheduler.params of a ds_config, with numbers that are written as text as numbers."""
    return {k: number(k, v, float) if isinstance(v, str) and k != "warmup_type" else v
            for k, v in (c.get("scheduler.params") or {}).items()}


def _schedule_of_daemon(c: Config) -> dict:
    """OneCycle moves beta1, which only the daemons can do in mid-run."""
    params = schedule_params(c)
    if c.get("scheduler.type") != "OneCycle" or not params.get("cycle_momentum", True):
        return {}
    return {"schedule": "OneCycle", **{k: v for k, v in params.items()
                                       if v is not None and k != "last_batch_iteration"}}


def _groups(params) -> list[dict]:
    """model_parameters as groups."""
    params = list(params)
    if params and isinstance(params[0], dict):
        return [dict(g) for g in params]
    return [{"params": [p[1] if isinstance(p, tuple) else p for p in params]}]


def _model_name(c: Config) -> str:
    """A name of its own for each model of a process: the second one is NAME-1."""
    name = c.get("shardd.name") or os.environ.get("SHARDD_MODEL") or _p.script_name()
    n = _names[name] = _names.get(name, -1) + 1
    return f"{name}-{n}" if n else name


def _resume() -> str:
    """DeepSpeed's initialize() begins anew. After torchrun has started ranks again, the model that
    is there is this run's own. So it is under Ray Train, where it has the name of the run."""
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) or _p.ray_run()
    return "auto" if again else "never"
