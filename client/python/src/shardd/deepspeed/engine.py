# SPDX-License-Identifier: Apache-2.0
"""initialize() and DeepSpeedEngine: a loop that was written for DeepSpeed trains with shardd.

The engine has DeepSpeed's meaning where that differs from torch's: backward() divides the loss by
the accumulation steps, step() counts micro-batches and commits at the boundary only, and a gradient
is clipped at 1.0 if nobody says a number. Below it is one shardd.Optimizer, which the engine
drives: gradients are summed in the arena and leave in step(), or, where
set_gradient_accumulation_boundary() says that this backward pass is the last one,
already as backward makes them.

The happy path is initialize(), and then backward() and step(). The optimizer is made in
optimizer.py, and what a checkpoint has beside the model is written and read in saving.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import re
import sys
import warnings
from typing import Any

import torch

from . import comm, saving, zero
from .config import DTYPE_NAMES, Config, ConfigError
from .monitor import Monitors, Timers, count_flops, log
from .optimizer import make_optimizer, schedule_params
from .schedules import SCHEDULES


class DeepSpeedEngine(torch.nn.Module):
    """A model that trains by forward(), backward() and step(), as DeepSpeed's engine does.

    Made by initialize(). module is the model, optimizer a DeepSpeedOptimizer or None, lr_scheduler
    what config or user gave, config the ds_config as the user gave it.
    """

    def __init__(self, model: torch.nn.Module, config: Config, optimizer=None,
                 model_parameters=None, lr_scheduler=None, training_data=None, collate_fn=None):
        super().__init__()
        self.module, self._config = model, config
        self.config = config.raw
        self.world_size, self.global_rank = comm.world_size(), comm.rank()
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.global_steps = self.global_samples = self.micro_steps = self.skipped_steps = 0
        self.training_dataloader = self.training_data = None
        self.optimizer = self.client_optimizer = self.lr_scheduler = self.loss = None
        self._boundary: bool | None = None
        self._scaled = False  # By scale(), for the backward pass to come.
        self._in_step = self._in_backward = self._step_applied = self._destroyed = False
        self.inside_no_sync_ctxt = False
        self._backwards = 0
        self._gas = config.gradient_accumulation_steps
        self._first_micro = 0  # micro_steps when the step in hand began.
        self._elastic = config.world[0] != config.world[1]
        self._dtype = getattr(torch, config.dtype) if config.dtype else None
        self._cast()
        if config.stage == 3:
            zero.mark_leaves(model, config)
        if config.stage < 3:
            self._move(set())
        self._make_optimizer(optimizer, model_parameters)
        if config.stage == 3:
            self._move(set(self.optimizer._row_of) if self.optimizer is not None else set())
        self._make_scheduler(lr_scheduler)
        self._make_loader(training_data, collate_fn)
        self.monitor = Monitors(config, self.global_rank)
        self._timers = Timers(bool(config.get("wall_clock_breakdown")) and self.global_rank == 0)
        self._say()

    # --- construction ---

    def _cast(self) -> None:
        c = self._config
        word, to, keep = c.param_dtype, c.buffer_dtype, c.keep_in_fp32
        dtype = self._dtype or (getattr(torch, word) if word else None)
        if dtype is None:
            return
        for p in self.module.parameters():
            if p.is_floating_point():
                p.data = p.data.to(dtype)
        kept = _stay_fp32(self.module, keep, dtype)
        for name, b in self.module.named_buffers():
            if b.is_floating_point():
                if name in kept:
                    b.data = b.data.float()
                elif to is not None:
                    b.data = b.data.to(getattr(torch, to))

    def _move(self, fetched: set[int]) -> None:
        """To the GPU of this rank, if it has one: all but what is fetched there when it is used."""
        where = comm.device()
        if where.type == "cpu":
            return
        torch.cuda.set_device(where)
        if not fetched:
            self.module.to(where)
            return
        for p in self.module.parameters():
            if id(p) not in fetched:
                p.data = p.data.to(where)
        for m in self.module.modules():
            for name, b in m._buffers.items():
                m._buffers[name] = b.to(where) if b is not None else None

    def _make_optimizer(self, client, model_parameters) -> None:
        self.optimizer, self.client_optimizer = make_optimizer(self.module, self._config, client,
                                                               model_parameters)
        if self.optimizer is not None:
            self.optimizer.sums = self._config.sums
            self.global_steps = self.optimizer.global_step

    def _make_scheduler(self, client) -> None:
        name, opt = self._config.get("scheduler.type"), self.optimizer
        if client is not None:
            self.lr_scheduler = client(opt) if callable(client) and not hasattr(client, "step") \
                else client
        elif name is not None and opt is not None:
            kind = SCHEDULES.get(name) or getattr(torch.optim.lr_scheduler, name, None)
            if kind is None:
                raise ConfigError(f"shardd: ds_config: scheduler.type is {name!r}, and can be "
                                  f"{', '.join(SCHEDULES)}, or one of torch.optim.lr_scheduler")
            target: Any = opt
            if opt._scheduled:  # The daemons write param_groups. This one only tells.
                target = torch.optim.Adam([{"params": [torch.zeros(1)], "lr": g["lr"],
                                            "betas": g["betas"]} for g in opt.param_groups])
            params = schedule_params(self._config)
            if name in SCHEDULES:
                params = {k: int(v) if isinstance(v, float) and v == int(v) and
                          k.endswith(("_steps", "_size", "_count")) else v
                          for k, v in params.items()}
            self.lr_scheduler = kind(target, **params)
            self._show_lr()

    def _show_lr(self) -> None:
        """Where the daemons have the schedule, param_groups only show what it says."""
        opt, shown = self.optimizer, getattr(self.lr_scheduler, "optimizer", None)
        if opt._scheduled and shown is not None:
            for g, told in zip(opt.param_groups, shown.param_groups):
                g["lr"] = told["lr"]

    def _make_loader(self, data, collate_fn) -> None:
        if data is None:
            return
        sampler = None
        if self.world_size > 1 or self._elastic:
            sampler = torch.utils.data.distributed.DistributedSampler(
                data, self.world_size, min(self.global_rank, self.world_size - 1))
        self.training_data = data
        self.training_dataloader = torch.utils.data.DataLoader(
            data, batch_size=self.train_micro_batch_size_per_gpu(), sampler=sampler,
            shuffle=sampler is None, collate_fn=collate_fn,
            drop_last=bool(self._config.get("dataloader_drop_last")))

    def _say(self) -> None:
        c = self._config
        if c.get("log_level"):
            level = str(c.get("log_level")).upper()
            if not isinstance(logging.getLevelName(level), int):
                raise ConfigError(f"shardd: ds_config: log_level is {c.get('log_level')!r}")
            logging.getLogger("shardd").setLevel(level)
        if c.get("disable_python_gc"):
            gc.disable()
        if self.global_rank == 0:
            for note in c.notes:
                logging.getLogger("shardd").info("shardd: ds_config: %s", note)
            if c.get("dump_state") and self.optimizer is not None:
                log.info("model %r at %s: %s", self.optimizer.name, self.optimizer._session.address,
                         {"clip": c.clip, "world": c.world, **c.settings()})
        counts_one = _accelerate_counts_one()
        if counts_one:
            warnings.warn("shardd: " + counts_one, stacklevel=4)

    # --- the step ---

    def forward(self, *inputs, **kwargs):
        """The model's forward(). What it returns goes to backward(), or has .backward() called."""
        c = self._config
        with self._timers.time("forward"), contextlib.ExitStack() as around:
            if c.get("fp16.enabled") and c.get("fp16.auto_cast"):
                inputs, kwargs = _half(inputs), _half(kwargs)
            if c.get("torch_autocast.enabled"):
                word = c.get("torch_autocast.dtype", "bfloat16")
                around.enter_context(torch.autocast(
                    self.device.type, getattr(torch, DTYPE_NAMES.get(word, word))))
            if c.get("flops_profiler.enabled") and self.module.training and \
                    self.global_steps == c.get("flops_profiler.profile_step", 1):
                around.enter_context(count_flops(self.module, c.get("flops_profiler.output_file"),
                                                 self.global_rank))
            if self.optimizer is not None and torch.is_grad_enabled():
                inputs, kwargs = _replaced((inputs, kwargs), self._hook_input)
            out = self.module(*inputs, **kwargs)
        if self.optimizer is not None and torch.is_grad_enabled():
            _each_tensor(out, self._hook_output)
        return out

    def _hook_output(self, t: torch.Tensor) -> None:
        """Where the script calls .backward() itself, its gradient is scaled as backward() would."""
        if not t.requires_grad or t.grad_fn is None:
            return

        def scale(g):
            if self._in_backward:
                return g
            self._prepare()
            torch.autograd.Variable._execution_engine.queue_callback(self._mark)
            if self._managed:
                g = g / self._gas
            return self.optimizer.scale(g) if self._scales() and not self._scaled else g

        t.register_hook(scale)
        t.grad_fn.metadata[_OUTPUT] = id(self)

    def _hook_input(self, t: torch.Tensor) -> torch.Tensor:
        """A forward pass whose input is made of what an earlier one returned: the hook of that
        output scales again what comes through here, so that it is taken back here."""
        if not t.requires_grad or not _is_of(t, id(self)):
            return t

        def unscale(g):
            if self._in_backward:
                return g
            if self._scales():  # What is as small as that is 0 in fp16.
                raise RuntimeError("shardd: the output of this engine went into its forward() "
                                   "again, and gradients are fp16: call engine.backward(loss) in "
                                   "place of loss.backward()")
            return g * self._gas if self._managed else g

        t = t.view_as(t)
        t.register_hook(unscale)
        return t

    @property
    def _managed(self) -> bool:
        return bool(self._config.get("managed_gradient_accumulation", True))

    def _scales(self) -> bool:
        return self._config.get("fp16.enabled", False)

    def _prepare(self) -> None:
        """Says whether what backward makes now leaves at once, or is summed until step()."""
        self.optimizer.unmark()
        if self._elastic and self.micro_steps == self._first_micro and self.optimizer.begin():
            self._fit_world()
        last = self._boundary is True and not self.inside_no_sync_ctxt
        overlap = self._config.get("shardd.overlap")
        if overlap is None:
            now = last and self._config.stage >= 2
        else:
            now = overlap and self.is_gradient_accumulation_boundary()
        self.optimizer._grads.syncing = bool(now) and not self.inside_no_sync_ctxt

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True):
        """Computes gradients of loss / gradient_accumulation_steps, and returns that loss.

        scale_wrt_gas: False if the caller has divided already.
        """
        assert self.optimizer is not None, \
            "must provide optimizer during init in order to use backward"
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise AssertionError("loss must be a scalar tensor. If you need to pass output "
                                 "gradients, backward() of output tensors")
        self.optimizer._alive()
        self._prepare()
        if scale_wrt_gas:
            loss = loss / self._gas
        self._backwards += 1
        self._in_backward = True
        try:
            with self._timers.time("backward"):
                scaled = self.optimizer.scale(loss) if self._scales() else loss
                scaled.backward(retain_graph=retain_graph)
        finally:
            self._in_backward = False
        self._mark()
        self.loss = loss.detach()
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """loss times the loss scale of this step, for a script that calls .backward() of it. Where
        it is not called the gradient is scaled behind the loss, at what forward() returned."""
        assert self.optimizer is not None, \
            "must provide optimizer during init in order to use scale"
        assert isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad, \
            "loss must be a scalar tensor with grad_fn. For non-scalar tensors, use " \
            "tensor.backward(grad)"
        if not self._scales():
            return loss
        self._prepare()
        self._scaled = True
        return self.optimizer.scale(loss)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro-batch in hand is the last one of its step."""
        if self._boundary is not None:
            return self._boundary
        if not self._managed:
            return self._in_step
        return (self.micro_steps - self._first_micro + 1) % self._gas == 0

    def _mark(self) -> None:
        """At the end of the last backward pass of a step: .grad says where the gradients are."""
        self._scaled = False
        if not self.inside_no_sync_ctxt and (not self._managed or
                                             self.is_gradient_accumulation_boundary()):
            self.optimizer.mark()

    def _fit_world(self) -> None:
        """Where the world has another size now: train_batch_size is kept, by another number of
        accumulation steps, if a whole number does that."""
        opt, c, before = self.optimizer, self._config, self.train_batch_size()
        self.global_rank = opt.rank
        if opt.world_size == self.world_size:
            return
        self.world_size = opt.world_size
        one = self.train_micro_batch_size_per_gpu() * self.world_size
        if self._managed and self._boundary is None:  # Else the script counts them itself.
            self._gas = max(1, round(c.train_batch_size / one))
        self._fit_loader()
        now = self.train_batch_size()
        text = ("%d trainers now: gradient_accumulation_steps is %d, and train_batch_size is %d "
                "(it was %d, and %d in the ds_config)", self.world_size, self._gas, now, before,
                c.train_batch_size)
        (log.info if now == c.train_batch_size else log.warning)(*text)

    def _fit_loader(self) -> None:
        """The next pass over the training data is split between the trainers that there are now.
        The pass that is under way ends as it began, so that a sample may come twice or not at all
        in it. shardd.steps() is the loop in which that does not happen."""
        s = getattr(self.training_dataloader, "sampler", None)
        if isinstance(s, torch.utils.data.distributed.DistributedSampler):
            epoch = s.epoch
            s.__init__(s.dataset, self.world_size, self.global_rank, s.shuffle, s.seed, s.drop_last)
            s.set_epoch(epoch)

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Says by hand whether the backward pass to come is the last one of its step."""
        assert self._managed, \
            "set_gradient_accumulation_boundary() is not supported with " \
            "managed_gradient_accumulation=False; the caller owns the boundary by calling step()"
        self._boundary = is_boundary

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes in here only sum. For stages 0 and 1, and step() is an error in here."""
        assert self._config.stage < 2, \
            "no_sync context manager is incompatible with gradient partitioning logic of ZeRO " \
            f"stage {self._config.stage}"
        assert not self.inside_no_sync_ctxt, "no_sync context manager reentry is unsupported"
        self.inside_no_sync_ctxt = True
        try:
            yield
        finally:
            self.inside_no_sync_ctxt = False

    @contextlib.contextmanager
    def coalesce_grad_reduction(self):
        """Backward passes in here are summed and leave together in step(), as they do anyway."""
        assert self._managed, \
            "coalesce_grad_reduction() is not supported with managed_gradient_accumulation=False; " \
            "step() is the boundary already"
        assert not self.inside_no_sync_ctxt, "no_sync context manager reentry is unsupported"
        self.inside_no_sync_ctxt = True
        try:
            yield
        finally:
            self.inside_no_sync_ctxt = False

    def allreduce_gradients(self, bucket_size: int = 500_000_000) -> None:
        """Nothing: gradients leave by themselves, in step() at the latest. For loops that call it
        between backward() and step()."""

    def step(self, lr_kwargs: dict | None = None) -> None:
        """Counts a micro-batch, and at the boundary commits the step and waits for the decision."""
        assert not self.inside_no_sync_ctxt, \
            "It is illegal to call Engine.step() inside no_sync context manager"
        assert self.optimizer is not None, "must provide optimizer during init in order to use step"
        self._step_applied, self._in_step = False, True
        try:
            boundary = self.is_gradient_accumulation_boundary()
            if boundary:
                self._take_step(lr_kwargs or {})
        finally:
            self._in_step = False
        self.micro_steps += 1
        if boundary:
            self._first_micro = self.micro_steps
            if self._elastic:
                self._fit_world()

    def _take_step(self, lr_kwargs: dict) -> None:
        opt, c = self.optimizer, self._config
        if c.get("zero_optimization.ignore_unused_parameters") is False:
            for r in opt._rows:
                if not r.seen:
                    raise AssertionError(
                        f"shardd: parameter {r.name!r} has no gradient in this step, and "
                        "zero_optimization.ignore_unused_parameters is false")
        with self._timers.time("step"):
            opt.step()
        # Accelerate looks at overflow, to hold back its scheduler.
        opt.overflow = opt.step_was_skipped
        self._step_applied = not opt.step_was_skipped
        if not self._step_applied:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            try:
                self.lr_scheduler.step(**lr_kwargs)
            except TypeError:
                self.lr_scheduler.step(self.train_batch_size())
            self._show_lr()
        self.global_steps += 1
        per_micro = self.train_batch_size() // self._gas
        self.global_samples += self.train_batch_size() if self._managed \
            else per_micro * self._backwards
        self._backwards = 0
        every = c.get("steps_per_print")
        if every and self.global_rank == 0 and self.global_steps % every == 0:
            log.info("step=%d, skipped=%d, lr=%s, mom=%s", self.global_steps, self.skipped_steps,
                     self.get_lr(), self.get_mom())
        self._timers.tell(opt.result)
        if self.monitor.enabled:
            scale = [("Train/Samples/loss_scale", opt.cur_scale)] if self._scales() else []
            loss = [("Train/Samples/train_loss", float(self.loss) * self._gas)] \
                if self.loss is not None else []
            self.monitor.write([*loss, ("Train/Samples/lr", self.get_lr()[0]), *scale],
                               self.global_samples)

    def was_step_applied(self) -> bool:
        """Whether the last step() changed the weights."""
        return self._step_applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what backward made since the last step."""
        if self.optimizer is not None and not self._destroyed:
            self.optimizer.zero_grad()

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step's gradient, before the clip and without the loss scale."""
        return self.optimizer._global_grad_norm if self.optimizer is not None else None

    def get_lr(self) -> list[float]:
        """The learning rate of each group."""
        return [g["lr"] for g in self.optimizer.param_groups]

    def get_mom(self) -> list:
        """betas of each group in the next step, or momentum where the optimizer has none."""
        opt, groups = self.optimizer, self.optimizer.param_groups
        shown = getattr(self.lr_scheduler, "optimizer", None)
        if opt._scheduled and shown is not None:
            groups = shown.param_groups
        return [g.get("betas", g.get("momentum")) for g in groups]

    # --- what others ask ---

    def train_batch_size(self) -> int:
        """Samples in each step, of all trainers. In an elastic world: of those that there are."""
        if not self._elastic:
            return self._config.train_batch_size
        return self.train_micro_batch_size_per_gpu() * self._gas * self.world_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples in each forward pass of each trainer."""
        return self._config.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        """Backward passes in each step."""
        return self._gas

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Another global batch, by another number of accumulation steps."""
        one = self.train_micro_batch_size_per_gpu() * self.world_size
        if train_batch_size % one:
            raise ValueError("Train batch size must be divisible by micro-batch data parallelism")
        self._gas = self._config.gradient_accumulation_steps = train_batch_size // one
        self._config.train_batch_size = train_batch_size

    def zero_optimization_stage(self) -> int:
        """The stage of ZeRO in the ds_config."""
        return self._config.stage

    def zero_optimization(self) -> bool:
        """Whether a stage of ZeRO is on."""
        return self._config.stage > 0

    def zero_optimization_partition_weights(self) -> bool:
        """Whether parameters have memory only while they are used."""
        return self.optimizer is not None and self.optimizer.fetched

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether the stage is 2 or 3."""
        return self._config.stage >= 2

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """True: weights are whole on each node."""
        return True

    def fp16_enabled(self) -> bool:
        """Whether weights and gradients are fp16."""
        return self._dtype is torch.float16

    def bfloat16_enabled(self) -> bool:
        """Whether weights and gradients are bf16."""
        return self._dtype is torch.bfloat16

    def gradient_clipping(self) -> float:
        """The largest norm of a gradient."""
        return self._config.clip

    def optimizer_name(self) -> str | None:
        """The type in the ds_config, or that of the optimizer that was given."""
        if self.client_optimizer is not None:
            return type(self.client_optimizer).__name__
        name = self._config.get("optimizer.type")
        return name.lower() if name else None

    def scheduler_name(self) -> str | None:
        """The type of the scheduler in the ds_config."""
        return self._config.get("scheduler.type")

    def loss_scale(self) -> float:
        """The loss scale of the next step."""
        return self.optimizer.cur_scale

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def communication_data_type(self) -> torch.dtype:
        """The dtype of gradients on their way."""
        return self.optimizer.grad_dtype if self.optimizer is not None else torch.float32

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            pass
        modules = self.__dict__.get("_modules", {})
        if "module" in modules and hasattr(modules["module"], name):
            return getattr(modules["module"], name)
        config = self.__dict__.get("_config")
        if config is not None:
            for path in (name, f"zero_optimization.{name.removeprefix('zero_')}",
                         f"{name.removesuffix('_enabled')}.enabled"):
                value = config.get(path)
                if value is not None:
                    return lambda: value
            if name.endswith("_enabled"):
                return lambda: False
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def compile(self, backend=None, compile_kwargs: dict | None = None, **more) -> None:
        """torch.compile() of the model, in place."""
        words = dict(compile_kwargs or {})
        if backend is not None:
            words["backend"] = backend
        self.module.compile(**words)

    def deepspeed_io(self, dataset, batch_size=None, collate_fn=None, **more):
        """A DataLoader over this rank's part of a dataset."""
        keep = self.training_dataloader, self.training_data
        self._make_loader(dataset, collate_fn)
        made, (self.training_dataloader, self.training_data) = self.training_dataloader, keep
        return made

    # --- checkpoints ---

    def module_state_dict(self, exclude_frozen_parameters: bool = False) -> dict:
        """state_dict() of the model."""
        frozen = {n for n, p in self.module.named_parameters() if not p.requires_grad} \
            if exclude_frozen_parameters else set()
        return {k: v for k, v in self.module.state_dict().items() if k not in frozen}

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False):
        """A copy of the model's state_dict() on rank 0, and None on the others."""
        if self.global_rank != 0:
            return None
        return saving.clone_tensors(self.module_state_dict(exclude_frozen_parameters))

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def save_16bit_model(self, save_dir: str, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """Rank 0 writes the model's state_dict() into one file."""
        state = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if state is not None:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(state, os.path.join(save_dir, save_filename))
        comm.barrier_if_any()
        return True

    save_fp16_model = save_16bit_model

    def save_checkpoint(self, save_dir: str, tag: str | None = None,
                        client_state: dict | None = None, save_latest: bool = True,
                        exclude_frozen_parameters: bool = False) -> bool:
        """Has the daemons write save_dir/tag, with what only trainers know in its folder client.

        All ranks call it. tag: default global_step and the number. client_state: plain values and
        tensors that load_checkpoint() gives back. save_latest: False leaves the file latest alone.
        A checkpoint of that tag is replaced.
        """
        saving.save(self, save_dir, str(tag or f"global_step{self.global_steps}"),
                    dict(client_state or {}), save_latest, exclude_frozen_parameters)
        return True

    def load_checkpoint(self, load_dir: str, tag: str | None = None,
                        load_module_strict: bool = True, load_optimizer_states: bool = True,
                        load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn=None):
        """Goes on with a checkpoint of save_checkpoint(), with whatever number of trainers.

        All ranks call it. tag: default: the newest. Returns (path, client_state), or (None, {})
        where the folder has no checkpoint. load_optimizer_states=False: only weights;
        moments begin at 0.
        """
        return saving.load(self, load_dir, tag, load_module_strict, load_optimizer_states,
                           load_lr_scheduler_states, load_module_only)

    def empty_partition_cache(self) -> None:
        """In stage 3, frees what was fetched."""
        if self.optimizer is not None:
            self.optimizer._image.pass_over()

    def destroy(self) -> None:
        """Ends training: parameters become ordinary memory, and this trainer leaves."""
        if not self._destroyed:
            self._destroyed = True
            self.monitor.close()
            if self.optimizer is not None:
                self.optimizer.close()


# --- helpers ---


def initialize(args=None, model=None, optimizer=None, model_parameters=None, training_data=None,
               lr_scheduler=None, distributed_port=29500, mpu=None, dist_init_required=None,
               collate_fn=None, config=None, mesh_param=None, config_params=None):
    """Makes an engine. Returns (engine, optimizer, dataloader, lr_scheduler), as DeepSpeed does.

    args: its deepspeed_config is the file if config is None. model: an nn.Module. optimizer: of
    torch.optim, or a function of parameters that returns one. model_parameters: those to train, or
    groups of them. lr_scheduler: or a function of an optimizer that returns one. config: a dict or
    a path. Raises ConfigError for a ds_config that cannot be followed.
    """
    assert model is not None, "deepspeed.initialize requires a model"
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"shardd: initialize(): model is a {type(model).__name__}, not a Module")
    if config is None:
        config = config_params
    from_args = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    if config is None:
        config = from_args
    elif from_args:
        raise AssertionError("Not sure how to proceed, we were given both a deepspeed_config and "
                             "config")
    assert config is not None, "DeepSpeed requires --deepspeed_config to specify configuration file"
    try:
        raw = Config(config, world_size=comm.world_size(), mpu=mpu)
    except ConfigError as e:
        counts_one = _accelerate_counts_one()
        raise ConfigError(f"{e}. {counts_one}") if counts_one else e from None
    if mpu is not None or mesh_param is not None:
        raise ConfigError("shardd: initialize(): mpu and mesh_param name groups of model "
                          "parallelism: train each part as a model of its own name, as \"gpt.tp0\"")
    low, high = raw.world
    if dist_init_required is not False and low == high:
        comm.init_distributed()  # Also for one rank: Transformers gathers its losses by it.
    engine = DeepSpeedEngine(model, raw, optimizer, model_parameters, lr_scheduler, training_data,
                             collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _accelerate_counts_one() -> str:
    """A sentence where Accelerate believes that each of several ranks is alone, else nothing."""
    state = sys.modules.get("accelerate.state")
    shared = getattr(getattr(state, "PartialState", None), "_shared_state", {})
    if not shared or comm.world_size() < 2 or \
            getattr(state.PartialState(), "num_processes", 0) != 1:
        return ""
    return (f"WORLD_SIZE is {comm.world_size()}, and Accelerate counts one process on each rank, "
            "so that all ranks train on the same batches. On a machine without a GPU say "
            "TrainingArguments(use_cpu=True), or accelerate.PartialState(cpu=True) before the "
            "Accelerator, which leaves DeepSpeed out if it is told cpu=True itself")


def _stay_fp32(module: torch.nn.Module, told: list[str] | None, dtype: torch.dtype) -> set[str]:
    """The names of the buffers that stay fp32 in a model of this dtype. In a pattern * stands for
    anything, and it may be found anywhere in a name. told: None: the lists that modules of
    Transformers have, of which one is for fp16 alone."""
    if dtype is torch.float32:
        return set()
    rules = [("", w) for w in told or ()]
    if told is None:
        lists = ["_keep_in_fp32_modules_strict"]
        lists += ["_keep_in_fp32_modules"] if dtype is torch.float16 else []
        rules = [(f"{prefix}." if prefix else "", w) for prefix, m in module.named_modules()
                 for at in lists for w in getattr(m, at, None) or ()]
    return {name for name, _ in module.named_buffers() for prefix, w in rules
            if name.startswith(prefix) and re.search(w.replace("*", ".*"), name[len(prefix):])}


_OUTPUT = "shardd.engine"  # In the metadata of a node of autograd: whose output it made.


def _is_of(t: torch.Tensor, engine: int) -> bool:
    """Whether a tensor was computed from an output of this engine."""
    seen, left = set(), [t.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.metadata.get(_OUTPUT) == engine:
            return True
        seen.add(node)
        left += [n for n, _ in node.next_functions]
    return False


def _replaced(x, call):
    """x with call(t) for each tensor t in it."""
    if isinstance(x, torch.Tensor):
        return call(x)
    if type(x) is dict:
        return {k: _replaced(v, call) for k, v in x.items()}
    if type(x) in (list, tuple):
        return type(x)([_replaced(v, call) for v in x])
    return x


def _each_tensor(x, call) -> None:
    if isinstance(x, torch.Tensor):
        call(x)
    elif isinstance(x, dict):
        for v in x.values():
            _each_tensor(v, call)
    elif isinstance(x, (list, tuple)):
        for v in x:
            _each_tensor(v, call)
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        for f in dataclasses.fields(x):
            _each_tensor(getattr(x, f.name, None), call)


def _half(x):
    if isinstance(x, torch.Tensor):
        return x.half() if x.is_floating_point() else x
    if isinstance(x, dict):
        return {k: _half(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_half(v) for v in x)
    return x
