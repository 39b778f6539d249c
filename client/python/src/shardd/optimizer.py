# SPDX-License-Identifier: Apache-2.0
"""shardd.Optimizer: a torch.optim.Optimizer whose state lives in the daemons.

It registers a hook at each parameter. As backward makes a gradient, the hook copies it into memory
that the daemon shares and pushes it. step() commits, waits for the decision, and the parameters are
the node's shared image from then on: read-only memory, one copy for all ranks of a node.

The happy path of a step is on_grad() for each parameter, then step(). The parameters become views
at the end of the first step and not before, so that DDP, .to(), compile() and the like may still
write them until then. Each thing that a user might do wrong with such parameters ends in a
sentence: the checks are in _check(), params.py and image.py. Here is the order of a step and of
what comes between two steps. How the model comes to be is in definition.py, what becomes of a
gradient in gradients.py, what the parameters are in image.py, and the words for settings are in
settings.py.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
from typing import Any, Callable, Mapping, Sequence

import torch

from . import cuda as _cuda
from . import lib as _c
from . import params as _p
from . import settings as _s
from . import torch_state, tune
from .definition import Definition, Gone
from .gradients import unwrap_ddp
from .hooks import OVER, Hook, close_at_exit, on_grad, on_load
from .init import in_file
from .older import before_load
from .session import Result, Saving, Session, default_address

log = logging.getLogger("shardd")

FREE_VALUES = _c.VALUES - _p.Untrained.VALUES  # Of those that ranks give to a step.


class _Unfit(_c.WorldChanged):
    """A step has begun, and the gradients at hand are none of it: they were computed on weights of
    another step, or on samples that are another rank's in this world."""

    def __init__(self, sentence: str):
        super().__init__(_c.WORLD_CHANGED, sentence, "SHARD_WORLD_CHANGED")


class Optimizer(torch.optim.Optimizer):
    """An optimizer whose fp32 master weights and moments are in shardd.

    Ranks need no DDP and no process group. The update uses the mean over ranks of what .grad would
    be in plain torch, so a loop that is right with DDP is right here. A parameter that has no
    gradient in a step has one of zeros: weight decay acts and moments move. Frozen parameters and
    buffers are equal on all ranks if their models are made so: the first step compares them.

    model        nn.Module, named_parameters(), parameters or torch's parameter groups
    kind         "adamw", "adam", "sgd", "adagrad", "lion", or a torch.optim.Optimizer that exists:
                 its class, hyper-parameters and param_groups are taken over: its scheduler acts
    lr, betas, eps, weight_decay, momentum, nesterov   as in torch, and so are param_groups: what
                 all ranks change alike between step() and backward() counts in the next step
    name         of the model in shardd; default $SHARDD_MODEL, else the script's. If a model of
                 that name exists this optimizer goes on with it: that is resume
    address      unix:/path, tcp://host:port, spawn:NAME. Default: $SHARD_ADDRESS, the node's
                 daemon, or a private daemon that is started now. secret: over TCP, the file of the
                 key. tls: over TCP, off, psk, or a folder with tls.crt, tls.key and ca.crt.
                 Defaults: $SHARD_SECRET and $SHARD_TLS
    clip         the largest global norm of the gradient; 0: no clip. The step clips, as
                 clip_grad_norm_ does. Default: that of a model that exists, else 0
    accumulate   backward passes in each step. With it gradients leave during the last one; a step
                 of fewer is fine. As in torch gradients are summed (in fp32), and the loop divides
                 the loss. More than that many are an error
    dtype        torch dtype of the image, which is what the parameters are; default: theirs, which
                 may differ, as fp32 norms in a bf16 model
    grad_dtype   of all gradients on their way; default: that of most elements of parameters
    world        (min, max) trainers, or how many; default $WORLD_SIZE, which is then fixed
    loss_scale   None, "dynamic" or a number: use opt.scale(loss) then
    params       "image": read-only views of the node's shared image. "copy": own, writable memory.
                 Default: $SHARDD_PARAMS, or "image" on the CPU. Code of others that writes into
                 parameters, as an EMA that swaps them, ends the process with SIGSEGV where they are
                 the image: then say "copy"
    grads        "push": they leave as backward makes them. "keep": .grad stays until step()
    on_change    what step() does when a trainer came or went meanwhile, a node was lost, or the
                 daemon of this node started again. "skip": as after an overflow nothing is updated,
                 step_was_skipped is True. "raise": shardd.WorldChanged or RolledBack, and the loop
                 may go on. "retry": shardd.steps() gives the same samples again, and step() is an
                 error outside of it. In each case the parameters are the weights of the next step
    init_from    the rank whose initial weights count; default: rank 0 if $RANK is set, else the
                 first one that comes
    checkpoint_dir, checkpoint_every   the daemons save so often, and a new model of this name
                 begins with its newest checkpoint there
    resume       "auto": go on with what there is. "never": an existing model is an error. "must":
                 none is one
    init         what a new model begins with, instead of the parameters: a shardd.Initial, of a
                 checkpoint, of torch's optimizer state or of DeepSpeed
    timeout      seconds that any call waits for others
    settings     any other key of [model] in shardd.conf, as schedule="WarmupLR"

    Thread-safety: as torch's, one thread at a time; hooks may run in autograd's threads.
    Raises shardd.Error with one sentence: what, which tensor, rank or node, and what to do.
    """

    one_lr = False  # Whether schedule= gives all groups the same learning rate.
    _step_supports_amp_scaling = True  # GradScaler leaves the gradients to step(), which refuses.

    def __init__(self, model, kind: str | torch.optim.Optimizer = "adamw", lr: float | None = None,
                 *, name: str | None = None, address: str | None = None,
                 secret: str | None = None, tls: str | None = None, clip: float | None = None,
                 accumulate: int = 1,
                 dtype: torch.dtype | None = None, grad_dtype: torch.dtype | None = None,
                 world: int | tuple[int, int] | None = None,
                 loss_scale: str | float | None = None, params: str | None = None,
                 stage3: bool | Mapping | None = None, device: Any = None,
                 grads: str = "push", on_change: str = "skip", init_from: int | None = None,
                 checkpoint_dir: str | None = None, checkpoint_every: int = 0,
                 resume: str = "auto", init=None, timeout: float = 300.0, **settings):
        self._closed = True  # Until there is something to close.
        self._why_closed = " is closed: make a new one"
        groups, names, module = _p.named(model)
        theirs = kind if isinstance(kind, torch.optim.Optimizer) else None
        if theirs is not None:
            kind, groups = _s.taken_over(theirs)
        if kind not in _s.KINDS:
            raise TypeError(f"shardd.Optimizer: kind is {kind!r}, and can be "
                            f"{', '.join(_s.KINDS)}. LBFGS, Muon, LAMB and others that need more "
                            "than one pass or a norm per tensor cannot be kept by shardd")
        params = params or os.environ.get("SHARDD_PARAMS") or None
        for word, value, known in (("params", params, (None, "image", "copy")),
                                   ("grads", grads, ("push", "keep")),
                                   ("on_change", on_change, ("skip", "raise", "retry")),
                                   ("resume", resume, ("auto", "never", "must"))):
            if value not in known:
                raise ValueError(f"shardd.Optimizer: {word} is {value!r}, and can be {known}")
        if accumulate < 1:
            raise ValueError(f"shardd.Optimizer: accumulate is {accumulate}, and is at least 1")
        self.accumulate, self.on_change = accumulate, on_change
        self.name = name or _p.free_name(self)
        self.clip, self._clip_now = None if clip is None else float(clip), None
        self.result: Result | None = None
        self.overflow = self.step_was_skipped = False
        self.weight = 1.0  # What this rank's gradient counts. The update divides by their sum.
        # What loop.py sets: the shardd.steps() that runs; step, rank and world size that the batch
        # in hand is for; its backward passes, if not `accumulate`; and what the gradient of a pass
        # is multiplied by.
        self._loop: Any = None
        self._share: tuple[int, int, int] | None = None
        self._passes: int | None = None
        self._gain = 1.0
        self._calls = 0  # Of step().
        self._keep = grads == "keep"
        self._values: list[float] = []  # What this rank gives to the step.
        self._module, self._names = module, names
        self._session: Session | None = None
        self._lost_sessions: list[Session] = []  # Their image is what the parameters are yet.
        self._checkpoints = os.path.abspath(checkpoint_dir) if checkpoint_dir else None
        self._made = False
        self._hooks: list = []

        self.kind, defaults = _s.of_torch(kind, settings)
        if lr is not None:
            defaults["lr"] = float(lr)
        for g in groups:
            _s.check_group(g, self.kind)
        super().__init__(groups, defaults)
        self._made = True
        if theirs is not None:
            self.param_groups = _s.shared_groups(theirs, self.param_groups)

        self._collect(dtype, grad_dtype)
        stage3 = {} if stage3 is True else None if stage3 is False else stage3
        where = torch.device(self._rows[0].param.device if None in (stage3, device) else device)
        params = params or ("image" if where.type == "cpu" else "copy")
        if where.type != "cpu" and params == "image":
            raise ValueError(f'shardd.Optimizer: parameters are on {where}, so params="copy"')
        ddp = unwrap_ddp(self._module)
        self.fetched = stage3 is not None and params == "copy"
        if self.fetched and self._module is None:
            raise TypeError("shardd.Optimizer: stage3 fetches what a module uses before it does: "
                            "give the Module as model, and no parameters")
        self._address = address or default_address(self.name)
        _p.take_over((r.param for r in self._rows), self.name, self._address)
        session, image, gradients = _cuda.parts(self._rows, where, stage3 if self.fetched else None)
        self._image = image(self._rows, params == "copy", self._module)
        self._grads = gradients(self._rows, self.grad_dtype, accumulate, ddp)
        self._connect = functools.partial(session, self._address, secret=secret, tls=tls)
        self._session = self._connect(timeout=timeout)
        self._closed = False
        try:
            self._define(world, loss_scale, checkpoint_every, resume, init_from, init, timeout,
                         settings)
        except BaseException:
            self._session.disconnect()
            self._closed = True
            raise
        self.state = torch_state.State(self)
        self._install()
        try:
            self._start()
        except BaseException:
            self.close(drop=False)
            raise

    # --- construction ---

    def _collect(self, dtype, grad_dtype) -> None:
        """Which parameters are trained, under which names, in which dtype."""
        self._rows, self._frozen = _p.collect(self.param_groups, self._names)
        self._row_of = {id(r.param): r for r in self._rows}
        self.dtype = _p.main_dtype(self._rows, dtype)
        self.grad_dtype = grad_dtype or self.dtype
        if self.grad_dtype not in _p.DTYPES:
            raise TypeError(f"shardd.Optimizer: grad_dtype is {self.grad_dtype}")

    def _settings(self, low, high, loss_scale, checkpoint_every, timeout, more) -> str:
        words: dict[str, Any] = {
            "optimizer": self.kind, "min_world": low, "max_world": high,
            "timeout": f"{max(1, int(1000 * timeout))}ms", "lr": float(self.param_groups[0]["lr"])}
        if self.clip is not None:
            words["clip"] = self.clip
        if loss_scale is not None:
            words["loss_scale"] = loss_scale
        elif self.grad_dtype is torch.float16:
            words["loss_scale"] = 1
        if self._checkpoints:
            words["checkpoint_dir"] = self._checkpoints
            words["checkpoint_every"] = checkpoint_every
            words["restore_at_start"] = "yes"
        words.update(more)
        return _s.words(words)

    def _define(self, world, loss_scale, checkpoint_every, resume, init_from, init, timeout,
                more) -> None:
        """Makes the model or attaches to it. Afterwards all ranks have equal weights."""
        self._defined_with = (world, loss_scale, checkpoint_every, resume, init_from, init, timeout,
                              more)
        size = _p.hint("WORLD_SIZE", 1) if world is None else world
        low, high = (size, size) if isinstance(size, int) else size
        self._scheduled = str(more.get("schedule", "none")) != "none"
        self._rates = _s.Rates(self.param_groups, self.one_lr) if self._scheduled else None
        self._model = Definition(
            self.name, self._rows, self.dtype, self.grad_dtype,
            _s.group_words(self.param_groups, self.kind, self._rates),
            self._settings(low, high, loss_scale, checkpoint_every, timeout, more),
            self._moments(), self._checkpoints)
        # An elastic world has no rank that is there for certain, so whoever comes first defines it.
        self._definer = 0 if init_from is None and low == high else init_from
        self._weights_of = self._model.make(self._session, resume, init, self._definer)
        if self._model.kept is not None:
            tune.take(self._model.kept, self.param_groups)
        self.clip = self._model.clip
        self._tune = tune.Tune(self.kind, self.param_groups)
        self._applied: int | None = None  # Nobody has asked yet.
        self._untrained = _p.Untrained(self._module, self._rows, self._frozen)
        self._opt_called = self.global_step > 0  # Then a new scheduler may make steps at once.
        _p.note_written(self._rows)

    def _start(self) -> None:
        """Where parameters have no memory of their own the image is needed at once."""
        if self._at_once():
            self._ready()

    def _at_once(self) -> bool:
        return self.fetched or any(in_file(r.param) for r in self._rows)

    def _install(self) -> None:
        self._forget_step()
        for i, r in enumerate(self._rows):
            self._hooks.append(r.param.register_post_accumulate_grad_hook(
                Hook(on_grad, self, i)))
        if self._module is not None:
            for part in self._module.modules():
                self._hooks.append(before_load(part, Hook(on_load, self)))
        _p.guard_fork(self)
        atexit.register(Hook(close_at_exit, self))

    # --- the gradients ---

    def _forget_step(self) -> None:
        self._begun = self._scaled = False
        self._committing = 0                # The step that commit was called for.
        self._dead: _c.Error | None = None  # Why what backward makes is dropped.
        self._grads.forget()
        self._image.pass_over()

    def _begin(self) -> None:
        """Begins the step, unless it has begun. A changed world is no reason to drop gradients that
        were computed on the weights that it has."""
        s = self._session
        if self._begun:
            return
        self._join()
        while True:
            try:
                self._tune.tell(s, self.name, self.param_groups)
                step = s.begin(self.weight)
                break
            except (_c.WorldChanged, _c.RolledBack):
                s.acknowledge()
                self._tune.look_again()
        self._begun, self._step = True, step
        self._grads.bind(s)
        if self._weights_of != step - 1:
            # Others went on since these weights were read, so these gradients are of old ones.
            raise _Unfit(f"the model is at step {step - 1}, and the weights of this rank were of "
                         f"step {self._weights_of}")
        if self._share not in (None, (step, s.world.rank, s.world.world_size)):
            raise _Unfit(f"this is rank {s.world.rank} of {s.world.world_size} in step {step}, and "
                         "its samples were those of rank {1} of {2} in step {0}".format(
                             *self._share))

    def _join(self) -> None:
        """Joins the world, unless this trainer is in it. $RANK is a hint and no more."""
        if self._session.world is not None:
            return
        if not self._image.followed:
            self._check()
            _p.refuse_written(self._rows, self._module)
        self._session.join(_p.hint("RANK", -1))

    def _take(self, i: int, g: torch.Tensor) -> None:
        """One gradient, as backward made it. It is summed here, and pushed when it is complete."""
        self._begin()
        if self.weight == _c.NO_SAMPLES:
            return
        if self._session.loss_scale != 1.0 and not self._scaled:
            raise RuntimeError("shardd: this model has a loss scale: call "
                               "opt.scale(loss).backward() in place of loss.backward()")
        r = self._rows[i]
        if r.param.dtype != r.dtype:
            self._check()  # Which says it; torch would refuse the marker in other words.
        with torch.no_grad():
            self._grads.take(self._session, i, g, self._gain, self._passes)

    @contextlib.contextmanager
    def no_sync(self):
        """A backward pass in here is not the last one of its step: gradients are only summed."""
        before, self._grads.syncing = self._grads.syncing, False
        try:
            yield
        finally:
            self._grads.syncing = before

    def mean_over(self, samples: float) -> None:
        """For batches that differ from rank to rank, before the first backward of a step: the loss
        of this rank is a mean over so many samples, or tokens. The update is then that of the mean
        over all of them. 0: this rank has none, and whatever backward makes here does not count. It
        holds for later steps, too, until it is said again, and all ranks say it."""
        if self._loop is not None or self._share is not None:
            raise RuntimeError("shardd: opt.mean_over() is for loops that cut batches themselves: "
                               "shardd.steps() and shardd.Sampler count samples without it")
        if self._begun:
            raise RuntimeError("shardd: opt.mean_over() comes before the first backward() of a "
                               "step, and this one has begun")
        self.weight = float(samples) if samples else _c.NO_SAMPLES
        self._gain = float(samples)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """loss times the loss scale of this step, which begins with it. For fp16 gradients."""
        self._alive()
        if self._dead is None:
            try:
                self._begin()
            except OVER as e:
                self._dead = e
        self._scaled = True
        return loss * self._session.loss_scale

    # --- the step ---

    @torch.no_grad()
    def step(self, closure=None, values: Sequence[float] = ()) -> torch.Tensor | None:
        """Commits the step and waits for the decision. Afterwards the parameters are the new ones.

        If nothing was updated, because a gradient was Inf or NaN or because trainers came or went,
        step_was_skipped is True. `result` says more. Raises Timeout if other ranks do not come, and
        Diverged if too many steps in a row were skipped.

        closure runs backward and returns the loss, which step() returns. As in torch it is called
        once, before the update. values: up to 13 numbers of this rank, as its loss and its tokens.
        Afterwards result.values has them summed over the ranks.
        """
        self._alive()
        if len(values) > FREE_VALUES:
            raise ValueError(f"shardd: step() takes {FREE_VALUES} values, and got {len(values)}")
        self._values = [float(v) for v in values]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_step()
        return loss

    def _take_step(self) -> None:
        if getattr(self, "grad_scale", None) is not None:
            raise RuntimeError("shardd: a GradScaler of torch scaled these gradients, and the loss "
                               "scale is the daemon's: use shardd.GradScaler(opt), or opt.scale() "
                               "with loss_scale=\"dynamic\"")
        self._calls += 1
        if self._loop is not None:
            self._loop.stepped()
        elif self.on_change == "retry":
            raise RuntimeError('shardd: on_change="retry" gives samples again, and only '
                               'shardd.steps() can do that: use its loop, or on_change="skip"')
        self._check()
        try:
            if self._dead is None:
                self._commit()
                self._forget_step()
                return
            change = self._dead
        except OVER as e:
            change = e
        except _c.Mismatch as e:
            change = self._tune.unlike(e, self._committing, self.global_step)
        change = self._follow(change)
        if self.on_change == "raise" and self.result.reason == "world":
            raise change

    def _commit(self) -> None:
        s = self._session
        self._begin()
        self._tune.check(self.param_groups)
        if self._rates is not None:
            self._rates.check(self.param_groups)
        if s.loss_scale != 1.0 and not self._scaled:
            self._check_given()
        if self.weight == _c.NO_SAMPLES:
            self._grads.drop()
        else:
            self._grads.finish(s, self._gain)
        if self._loop is not None:
            s.set_blob(self._loop.blob())
        self._committing = self._step
        values = [*self._values, *[0.0] * (FREE_VALUES - len(self._values))]
        try:
            got = s.commit(None if self._scheduled else [float(g["lr"]) for g in self.param_groups],
                           values + self._untrained.told(), self._clip_now)
        finally:
            self._begun = False
        self.result = got._replace(values=got.values[:FREE_VALUES])
        self._tune.agreed = True
        self.overflow = self.result.reason == "nonfinite"
        self.step_was_skipped = not self.result.applied
        if self._rates is not None:
            self._rates.show(self.param_groups, self.result.lr)
        self._refresh(self.result.step)
        self._applied = self.result.applied_steps
        self._untrained.compare(got.values[FREE_VALUES:])

    def _check_given(self) -> None:
        """What is in .grad was scaled by nobody that is known here."""
        if any(r.param.grad is not None and r.param.grad is not r.marker for r in self._rows):
            raise RuntimeError("shardd: this model has a loss scale: call "
                               "opt.scale(loss).backward() in place of loss.backward()")

    def _refresh(self, step: int) -> None:
        """Has the parameters be the weights of `step`."""
        self._image.follow(self._session, step)
        self._weights_of, self._applied = step, None

    def _follow(self, change: _c.Error) -> _c.Error:
        """The attempt is over. Finds out which step is next, and has the parameters follow where
        the weights moved on. Returns what to tell the user if on_change is "raise"."""
        for r in self._rows:
            r.param.grad = None
        before, tried, begun = self._weights_of, self._committing, self._begun
        self._forget_step()
        self._tune.look_again()
        told, self._begun = change, begun and isinstance(change, _Unfit)
        while True:
            try:
                if isinstance(change, _c.Closed):
                    self._reconnect(change)
                elif not self._begun:
                    self._session.acknowledge()
                self._catch_up()
                break
            except Gone:
                raise
            except OVER as e:
                change, self._begun = e, False
        why = self._session.world.why or told.sentence
        r = self.result
        if tried and r and r.reason != "world" and r.step == tried <= self._weights_of:
            return told  # It was decided, and only what came after was disturbed.
        # Where a coordinator was lost, or this node, the others may have committed the step.
        self.step_was_skipped = not tried or self._weights_of < tried
        self.overflow, self.result = False, self._session.no_result(
            tried or self._weights_of + 1, self.param_groups[0]["lr"])
        log.info("shardd: step %d is next: %s", self._weights_of + 1, why)
        if isinstance(told, _c.Closed):
            back = self._weights_of < (before or 0)
            told = (_c.RolledBack if back else _c.WorldChanged)(
                _c.ROLLED_BACK if back else _c.WORLD_CHANGED,
                f"{told.sentence}; connected again, step {self._weights_of + 1} is next",
                "SHARD_ROLLED_BACK" if back else "SHARD_WORLD_CHANGED")
        return told

    def _catch_up(self) -> None:
        """Has the parameters be the weights that the next step is computed on."""
        step = (self._step if self._begun else self._session.world.step) - 1
        if step != self._weights_of or self._lost_sessions and self._image.followed or \
                self._at_once() and not self._image.followed:
            self._refresh(step)
        for s in self._lost_sessions:
            self._image.outlive(s)
            s.disconnect()
        self._lost_sessions.clear()

    @torch.no_grad()
    def _ready(self) -> int:
        """Joins, and has the parameters be the weights of the last step. Returns the next one.

        For a loop that computes its forward pass afterwards, so that it is on no old weights."""
        self._alive()
        change: _c.Error | None = None
        while True:
            try:
                if isinstance(change, _c.Closed):
                    self._reconnect(change)
                elif change is not None:
                    self._session.acknowledge()
                self._join()
                self._catch_up()
                return self._weights_of + 1
            except Gone:
                raise
            except OVER as e:
                change, self._begun = e, False

    def _reconnect(self, why: _c.Closed) -> None:
        """The daemon of this node is gone: connects, attaches and joins again when it is back.

        The old connection stays until the parameters are the new image, because they are its
        memory. Raises what the daemon says, or Closed if it is not back within the timeout."""
        old, timeout = self._session, self._session.timeout
        hint = old.world.rank if old.world is not None else _p.hint("RANK", -1)
        new = self._model.find_again(self._connect, self._address, timeout, hint, why)
        new.timeout, new.loss_scale = timeout, old.loss_scale
        self._session = new
        self._grads.unbind()
        self._lost_sessions.append(old)

    # --- what a user might do wrong ---

    def _alive(self) -> None:
        if self._closed:
            raise RuntimeError(f"shardd: this Optimizer{self._why_closed}")

    def _check(self) -> None:
        self._image.check()
        for r in self._rows:
            if r.param.dtype != r.dtype:
                raise RuntimeError(f"shardd: parameter {r.name!r} was {r.dtype} when the Optimizer "
                                   f"was made, and is {r.param.dtype} now")
        for name, p in self._frozen:
            if p.requires_grad:
                raise RuntimeError(f"shardd: parameter {name!r} was frozen when the Optimizer was "
                                   "made, and requires a gradient now: make a new Optimizer under "
                                   "another name=")

    def add_param_group(self, group: dict) -> None:
        """Only while the Optimizer is made: the layout of a model never changes."""
        if self._made:
            raise RuntimeError("shardd: a model in shardd cannot grow: make a new Optimizer with "
                               "all parameter groups, under another name=")
        torch_state.add_param_group(self, group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what backward made since the last step. After step() there is nothing to drop."""
        self._alive()
        if self._grads.drop() and self._dead is None:
            try:
                self._session.abandon("zero_grad() after backward()")
            except OVER:
                pass  # It is over already, and the next call on the model says why.
            self._begun = False
            self._image.pass_over()
        self._scaled = False
        for _, p in self._frozen:
            p.grad = None

    # --- what others ask ---

    @property
    def rank(self) -> int:
        """This trainer, from 0 on, in the world as it is. Before the first step: $RANK, or 0."""
        w = self._session.world
        return w.rank if w else _p.hint("RANK", 0)

    @property
    def world_size(self) -> int:
        """All trainers in the world as it is. Before the first step: $WORLD_SIZE, or 1."""
        w = self._session.world
        return w.world_size if w else _p.hint("WORLD_SIZE", 1)

    @property
    def global_step(self) -> int:
        """The last step that was committed; 0 before the first one."""
        return self._weights_of or 0

    @property
    def applied(self) -> int:
        """How many steps have changed the weights so far: the t of Adam's bias correction. A model
        that is gone on with, and one that went back, has what the daemons know."""
        if self._applied is None:
            self._alive()
            there = self._session.status(self.name)
            self._applied = there["applied"] if there is not None else 0
        return self._applied

    def _moments(self) -> tuple[str, ...]:
        return _s.moments_of(self.kind, self.param_groups)

    def read(self, p: torch.Tensor | str, kind: str = "master",
             dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The whole of a parameter, its master weights or a moment, as a new tensor.

        kind: "master", "image", "exp_avg", "exp_avg_sq", "momentum_buffer" or "sum".
        """
        self._alive()
        if kind not in _s.KIND_NUMBERS:
            raise ValueError(f"shardd: kind is {kind!r}, and can be {sorted(_s.KIND_NUMBERS)}")
        i = next((i for i, r in enumerate(self._rows) if r.param is p or r.name == p), None) \
            if isinstance(p, str) else self._index(p)
        if i is None:
            raise KeyError(f"shardd: no parameter {p!r} is trained")
        r = self._rows[i]
        x = torch.empty(r.numel, dtype=dtype)
        self._session.read(_s.KIND_NUMBERS[kind], i, x.data_ptr(), r.numel, _p.DTYPES[dtype])
        return x.view(r.param.size())

    def gather(self, *params: torch.Tensor):
        """Context: with stage3 these parameters are in memory in here. Otherwise all are."""
        self._alive()
        return self._image.hold(params)

    def _index(self, p: torch.Tensor) -> int | None:
        row = self._row_of.get(id(p))
        return None if row is None else self._rows.index(row)

    def clip_grad_norm_(self, max_norm: float | None = None) -> torch.Tensor:
        """The norm of the last step. max_norm counts for the step in hand, as where torch's own
        clip_grad_norm_() stands, and from then on. All ranks give the same."""
        self._alive()
        if max_norm is not None:
            self.clip = self._clip_now = float(max_norm)
        return torch.tensor(self.result.grad_norm if self.result else 0.0)

    def save(self, dir: str | None = None, tag: str | None = None, wait: bool = True,
             client: str | None = None) -> Saving | None:
        """Has the daemons write a checkpoint of the last step. One rank calls it.

        dir: the folder of checkpoints, which all nodes share: the checkpoint is dir/tag. Default,
        and also where dir is checkpoint_dir itself: the folder of this model's name in there, which
        is where a new model of that name looks.
        tag: its name in there; default: global_step and the number.
        wait: until it is whole, and before it for a save that is under way, as of checkpoint_every.
        If not, this returns a Saving, and training goes on beside it.
        client: a folder of plain files that become its folder client, as buffers or schedulers in
        any format. They are there when the checkpoint is. Not over TCP.
        """
        self._alive()
        if dir is not None:
            dir = os.path.abspath(dir)
            os.makedirs(dir, exist_ok=True)
            if self._checkpoints and os.path.realpath(dir) == os.path.realpath(self._checkpoints):
                dir = None
        return self._save(dir, tag, client, wait)

    def _save(self, dir: str | None, tag: str | None, client: str | None,
              wait: bool) -> Saving | None:
        """save(), where dir is what the daemons take."""
        client = os.path.abspath(client) if client else None
        if not wait:
            return self._session.save(dir, tag, client)
        self._session.save_after_others(dir, tag, client)
        return None

    def state_dict(self) -> dict:
        """A reference to the model in shardd, and the groups: 1 KiB. The numbers stay there. For
        get_state_dict() of torch.distributed.checkpoint it is full_state_dict()."""
        if torch_state.asked_by_dcp():
            return self.full_state_dict()
        all_of_them = [p for g in self.param_groups for p in g["params"]]
        number = {id(p): i for i, p in enumerate(all_of_them)}
        return {"shardd": {"name": self.name, "step": self.global_step},
                "param_groups": [{**g, "params": [number[id(p)] for p in g["params"]]}
                                 for g in self.param_groups],
                "state": {}}

    def full_state_dict(self, by: str = "index") -> dict:
        """All moments as state_dict() of the same optimizer of torch: copies, in this process.

        by: "index": parameters are numbers, as torch's own state_dict() has them. "name": they are
        names, as in torch.distributed.checkpoint. The weights are read(p).
        """
        self._alive()
        return torch_state.of_optimizer(self, by)

    def load_state_dict(self, state_dict: dict) -> None:
        """Goes on with the state of another optimizer, of shardd or of torch.

        A state_dict() of shardd is a reference: its groups are taken, its model and step compared.
        One of torch.optim, with parameters by number or by name, gives moments, step and groups:
        the model is dropped and made anew with them and with the weights that it has. All ranks
        call that, and several ranks need a process group for it. ValueError: it is of another kind
        of optimizer or of other parameters, and nothing has changed.
        """
        self._alive()
        if "shardd" in state_dict:
            torch_state.load_reference(self, state_dict)
        else:
            torch_state.load_into(self, state_dict)

    def _again(self, init) -> None:
        """Drops the model and makes it anew of `init`. All ranks call it."""
        self._let_go()
        world, loss_scale, every, _, init_from, _, timeout, more = self._defined_with
        self._define(world, loss_scale, every, "auto", init_from, init, timeout, more)
        self._start()

    def _let_go(self) -> None:
        """Drops the model, so that it can be made anew. All ranks call it. Parameters become
        ordinary memory until the next step."""
        self._model.may_drop(self.world_size)
        self._image.release()
        self._grads.unbind()
        for r in self._rows:
            r.param.grad = None
        self._model.drop(self._session)
        self.result = None
        self._forget_step()

    def __getstate__(self):
        raise TypeError("shardd: an Optimizer cannot be copied or pickled: its state is in the "
                        "daemons. Attach to the model by its name instead")

    # --- the end ---

    def close(self, drop: bool | None = None) -> None:
        """Parameters become ordinary memory, and this trainer leaves the world.

        drop: whether the model ends, too; default: if the daemon is a private one (spawn:), because
        it would end with its trainers anyway, and this one is the last that can want the model. So
        a trainer that never joined leaves it to the others, and where the world has no fixed size
        it stays while anybody else is connected.
        """
        if self._closed:
            return
        self._closed = True
        for h in self._hooks:
            h.remove()
        s = self._session
        rank = s.world.rank if s.world is not None else None
        self._image.release()
        self._grads.unbind()
        for r in self._rows:
            if isinstance(r.param.grad, _p.PushedGrad):
                r.param.grad = None
        try:
            if self._begun and s.world is not None:
                s.abandon("the trainer ends")
            if s.world is not None:
                s.leave(min(20.0, s.timeout))
            if drop or drop is None and self._model.is_done_with(s, rank):
                s.detach()
                s.drop(self.name)
        except _c.Error as e:
            log.debug("shardd: at the end: %s", e)
        for one in (s, *self._lost_sessions):
            one.disconnect()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close(drop=False if kind else None)

    def _in_child(self) -> None:
        """In a forked child: the memory of the library is not mapped there.

        The child must not hold the connection either: the daemon would not notice the end of a
        trainer that is killed while a DataLoader's worker lives on."""
        if not self._closed:
            self._session.disconnect()
        self._closed = True
        self._image.lose()


def _of(kind: str) -> Callable[..., Optimizer]:
    def make(model, lr: float | None = None, **more) -> Optimizer:
        return Optimizer(model, kind, lr, **more)
    make.__doc__ = Optimizer.__doc__
    return make


AdamW, Adam, SGD, Adagrad, Lion = map(_of, ("adamw", "adam", "sgd", "adagrad", "lion"))
