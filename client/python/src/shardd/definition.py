# SPDX-License-Identifier: Apache-2.0
"""How a model comes to be in the daemons, and how a trainer finds it there.

A Definition is what this process takes the model to be: its name, its tensors and its settings. The
happy path is make() by all ranks: one of them defines the model and writes its first weights, the
others attach and read them. After the daemon of a node was gone, find_again() attaches to the same
model on another connection. A model in shardd that is not this one ends in Mismatch, which names
the tensor or the setting.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Mapping, Sequence

import torch

from . import lib as _c
from . import params as _p
from .init import in_file, page_out
from .session import Session, TensorSpec
from .settings import KIND_NUMBERS, world_of
from .tune import Difference, differences, in_use, parsed

log = logging.getLogger("shardd")

# What a daemon that is starting, or nodes that find each other again, answer for a while.
_COMES_BACK = {_c.UNREACHABLE, _c.CLOSED, _c.TIMEOUT, _c.BUSY, _c.STALE, _c.EXISTS, _c.BAD_STATE,
               _c.WORLD_CHANGED, _c.ROLLED_BACK}
# What a caller that writes first weights is told when the coordinator changes or a node goes. No
# weights are lost by that: whoever defines the model next writes them.
_WRITES_AGAIN = {_c.UNREACHABLE, _c.STALE, _c.BUSY, _c.BAD_STATE, _c.LOST}
LOOK_S = 0.1  # So often a daemon that is gone is looked for.
# What the keys of schedules begin with.
_OF_SCHEDULES = ("warmup_", "cycle_", "decay_", "lr_range_test_", "total_num_steps", "cos_min_")
ALONE_S = 1.0  # So long rank 0 waits until the others have hung up.


class Gone(_c.Closed):
    """The daemon of this node did not come back in time."""


class Definition:
    """A model as this process would define it.

    name         of the model in shardd
    rows         the parameters, in the order of the model's tensors
    dtype, grad_dtype   of most parameters in the image, and of gradients on their way
    groups       name and settings of each group
    settings     of the model, as shardd.conf has them
    moments      the names of the moments that its optimizer keeps
    checkpoints  the folder from which a model that the daemon lost is restored, or None
    """

    def __init__(self, name: str, rows: Sequence[_p.Row], dtype: torch.dtype,
                 grad_dtype: torch.dtype, groups: list[tuple[str, str]], settings: str,
                 moments: tuple[str, ...], checkpoints: str | None):
        self.name, self.rows, self.dtype, self.grad_dtype = name, rows, dtype, grad_dtype
        self.groups, self.settings, self.moments = groups, settings, moments
        self.checkpoints = checkpoints
        self.tensors = [
            TensorSpec(r.name, tuple(r.param.shape), r.group, image=_p.DTYPES[r.dtype],
                       grad=_p.DTYPES[grad_dtype]) for r in rows]
        # What the groups of the model go on with, where others train it and it is not what is asked
        # here. The clip that the model has.
        self.kept: list[dict[str, str]] | None = None
        self.clip = float(parsed(settings).get("clip", 0))

    def make(self, s: Session, resume: str, init, definer: int | None) -> int | None:
        """Makes the model or attaches to it. Afterwards all ranks have equal weights.

        resume: as Optimizer has it. init: an Initial, as Optimizer has it, or (folder, tag) of a
        checkpoint of shardd that fits(): the daemons read it, and the settings are those of this
        definition. definer: the rank whose weights count, or None for whoever comes first. Returns
        the step that the weights are of; None if others went on while they were read."""
        end, at = time.monotonic() + s.timeout, None
        while True:
            try:
                if self._attach_or_define(s, resume, definer):
                    if not isinstance(init, tuple):
                        return self._write(s, init)
                    s.detach()
                    s.restore(*init, self.name)
            except _c.Error as e:
                if e.number not in _WRITES_AGAIN or time.monotonic() > end:
                    raise
                log.warning("shardd: model %r is defined again: %s", self.name, e.sentence)
                s.detach()
                time.sleep(LOOK_S)
                continue
            try:
                self.same_layout(s)
                s.wait_for_weights()
                self._settle(s)
                at = self.read_weights(s)
                break
            except _c.Error as e:
                # A job that ended dropped its model just when this one had attached to it.
                if e.number != _c.NOT_FOUND or resume == "must" or time.monotonic() > end:
                    raise
                s.detach()
        if resume == "never" and at:
            raise _c.Error(_c.EXISTS, f"model {self.name!r} exists at {s.address} and is at "
                           f"step {at}: give another name=, drop it with `shardctl "
                           f"model drop {self.name}`, or say resume=\"auto\"", "SHARD_EXISTS")
        log.info("shardd: attached to model %r at %s, which is at step %s", self.name, s.address,
                 at)
        return at

    def _attach_or_define(self, s: Session, resume: str, definer: int | None) -> bool:
        """Returns whether the model was defined now, so that its weights are to be written."""
        if resume == "must":
            s.attach(self.name)
            return False
        # Where one rank's weights count, the others do not define the model before it has.
        waits = definer is not None and _p.hint("RANK", -1) not in (-1, definer)
        self._end_left_over(s, definer, waits)
        return self._define_or_attach(s, resume, waits)

    def is_done_with(self, s: Session, rank: int | None) -> bool:
        """Whether nobody can want the model any more, in a private daemon that would end anyway.

        rank: the one that this trainer had in the world that it left; None if it never joined."""
        there = s.status(self.name) if s.address.startswith("spawn:") else None
        low, high = (there and world_of(there["settings"])) or (0, 0)
        if low == high > 0 and rank is not None:
            return True  # All trainers that the world has were in it, and are gone or joined.
        if high != 1 and rank is None:
            return False
        # Others that left may not have hung up yet. If all wait for each other nobody drops it.
        end = time.monotonic() + (ALONE_S if rank == 0 else 0)
        while not s.alone():
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True

    def find_again(self, connect, address: str, timeout: float, rank_hint: int,
                   why: _c.Closed) -> Session:
        """Connects, attaches and joins again, when the daemon of this node is back.

        connect: makes a Session at that address. why: how the connection before ended. timeout: in
        seconds. Raises Gone if the daemon is not back by then, Lost if it has the model no more and
        there is no checkpoint, and what else it says."""
        end, last = time.monotonic() + timeout, why
        log.warning("shardd: %s: connecting again", why.sentence)
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise Gone(_c.CLOSED, f"{why.sentence}; in {timeout:g} s the model was not to "
                           f"be had again at {address}: {last.sentence}",
                           "SHARD_CLOSED") from last
            new = None
            try:
                new = connect(timeout=left, connect_timeout=min(left, 5.0))
                self._attach_again(new, address)
                new.join(rank_hint)
                return new
            except _c.Error as e:
                if new is not None:
                    new.disconnect()
                if e.number not in _COMES_BACK:
                    raise
                last = e
            except BaseException:
                if new is not None:
                    new.disconnect()
                raise
            time.sleep(min(LOOK_S, max(0.0, left)))

    def _attach_again(self, s: Session, address: str) -> None:
        """It is never made anew from first weights."""
        try:
            s.attach(self.name)
        except _c.Error as e:
            if e.number != _c.NOT_FOUND:
                raise
            if self.checkpoints is None:
                raise _c.Lost(_c.LOST, f"{e.sentence}: the daemon at {address} came back "
                              f"without it. Restore a checkpoint of {self.name!r}, or give "
                              "checkpoint_dir= so that this is done by itself",
                              "SHARD_LOST") from e
            # The folder of a model is below checkpoint_dir, and has its name.
            s.restore(os.path.join(self.checkpoints, self.name), None, self.name)
        s.wait_for_weights()
        self.same_layout(s)

    def may_drop(self, world_size: int) -> None:
        """Raises RuntimeError if there are several ranks, and nothing that lets them drop the model
        at once."""
        if world_size > 1 and not _together():
            raise RuntimeError(f"shardd: {world_size} ranks train model {self.name!r}, and all "
                               "have to let go of it at once: that needs a process group. Or give "
                               "the state as init= when the Optimizers are made")

    def drop(self, s: Session) -> None:
        """All ranks let go of the model, and one of them drops it."""
        dist, together = torch.distributed, _together()
        s.detach()
        if together:
            dist.barrier()
        if not together or dist.get_rank() == 0:
            try:
                s.drop(self.name, force=True)
            except _c.Error as e:
                if e.number != _c.NOT_FOUND:
                    raise
        if together:
            dist.barrier()

    def fits(self, manifest: Mapping) -> bool:
        """Whether the daemons can fill this model from a checkpoint with that manifest: its name,
        optimizer, groups and tensors are the same. World and all other settings may differ."""
        there = [(t["name"], tuple(t["shape"]), t["group"], t.get("flags", 0) & _c.FROZEN)
                 for t in manifest["tensors"]]
        kind = dict(w.partition("=")[::2] for w in self.settings.split())["optimizer"]
        return (manifest["name"], manifest["optimizer"], len(manifest["groups"]), there) == (
            self.name, kind, len(self.groups), [tuple(t)[:4] for t in self.tensors])

    def same_layout(self, s: Session) -> None:
        """Raises Mismatch unless the model that is attached to has the tensors of this one."""
        there = s.layout()
        for a, b in zip(self.tensors, there):
            if (a.name, a.shape) != (b.name, b.shape):
                raise _c.Mismatch(_c.MISMATCH, f"model {self.name!r} in shardd has {b.name!r} of "
                                  f"shape {b.shape} where this model has {a.name!r} of shape "
                                  f"{a.shape}: give this one another name=", "SHARD_MISMATCH")
            for what, here, has in (("is", a.image, b.image), ("has gradients in", a.grad, b.grad)):
                if here != has:
                    raise _c.Mismatch(
                        _c.MISMATCH, f"{a.name!r} of model {self.name!r} in shardd {what} "
                        f"{_p.dtype_of(has)} and here {_p.dtype_of(here)}: make them one, or give "
                        "this one another name=", "SHARD_MISMATCH")
        if len(self.tensors) != len(there):
            raise _c.Mismatch(_c.MISMATCH, f"model {self.name!r} in shardd has {len(there)} "
                              f"tensors and this model {len(self.tensors)}: give it another name=",
                              "SHARD_MISMATCH")

    def read_weights(self, s: Session) -> int | None:
        """Copies the image into the parameters, which are still ordinary memory. Returns the step
        that it is of; None if others went on meanwhile."""
        steps = set()
        for i, r in enumerate(self.rows):
            if in_file(r.param):  # It becomes the image at once.
                x = torch.empty(1, dtype=r.dtype)
                steps.add(s.read(_c.IMAGE, i, x.data_ptr(), 1, _p.DTYPES[r.dtype]))
                continue
            x = torch.empty(r.numel, dtype=r.dtype)
            at = s.read(_c.IMAGE, i, x.data_ptr(), r.numel, _p.DTYPES[r.dtype])
            if r.numel:
                steps.add(at)
            with torch.no_grad():
                r.param.copy_(x.view(r.param.size()))
        return steps.pop() if len(steps) == 1 else None

    def _end_left_over(self, s: Session, definer: int | None, waits: bool) -> None:
        """Has the definer drop what a run that crashed before its first step left in a private
        daemon, whose world would wait for trainers that do not come. The others wait for that."""
        end = time.monotonic() + s.timeout
        while definer is not None and self._is_left_over(s):
            if not waits:
                self._drop_left_over(s)
                return
            if time.monotonic() > end:
                raise _c.Timeout(_c.TIMEOUT, f"rank {definer} has not defined model {self.name!r} "
                                 f"in {s.timeout:g} s, and its weights are what this rank, "
                                 f"{_p.hint('RANK', -1)}, begins with", "SHARD_TIMEOUT")
            time.sleep(0.02)

    def _drop_left_over(self, s: Session) -> None:
        try:
            s.drop(self.name)
        except _c.Error as e:
            if e.number not in (_c.NOT_FOUND, _c.BUSY):
                raise
            return
        log.warning("shardd: model %r at %s had made no step, in a world of another size: it is "
                    "dropped and defined anew", self.name, s.address)

    def _is_left_over(self, s: Session) -> bool:
        """Whether the model there is of a run with another number of trainers, all of which have
        gone before their first step. Only a private daemon has it for nobody else."""
        if not s.address.startswith("spawn:"):
            return False
        there = s.status(self.name)
        return there is not None and there["step"] == there["joined"] == 0 and \
            world_of(there["settings"]) != world_of(self.settings)

    def _define_or_attach(self, s: Session, resume: str, waits: bool) -> bool:
        try:
            return s.define(self.name, self.tensors, self.groups, _p.DTYPES[self.dtype],
                            _p.DTYPES[self.grad_dtype], self.settings, s.timeout if waits else 0)
        except _c.Mismatch as e:
            # Another world size or timeout in a model that lives on is no other model.
            if resume == "never" or "setting" not in e.sentence:
                raise
            s.attach(self.name)
            return False

    def _settle(self, s: Session) -> None:
        """Has the model that is attached to and this definition agree on its settings.

        As of the groups of a new optimizer in torch, what is asked counts: betas, eps,
        weight_decay, momentum and clip are set. Where others train the model it keeps what it has,
        and so does this trainer. Mismatch: the optimizer or its schedule is another one."""
        there = s.status(self.name)
        if there is None:
            return  # It was dropped, and the next call on it says so.
        found, self.kept = differences(self.settings, self.groups, there), None
        now, groups = in_use(there)
        if there["joined"] > 0 or "clip" not in parsed(self.settings):
            self.clip = float(now["clip"])
        if not found:
            return
        said = "; ".join(str(d) for d in found)
        wrong = [d for d in found if self._is_fixed(d)]
        if wrong:
            raise _c.Mismatch(_c.MISMATCH, f"model {self.name!r} exists at {s.address} with "
                              f"another {', '.join(d.path for d in wrong)}, which cannot change "
                              f"({said}): give this one another name=, drop that one with "
                              f"`shardctl model drop {self.name}`, or ask for what it has",
                              "SHARD_MISMATCH")
        mine = [d for d in found if d.settable]
        if mine and there["joined"] > 0:
            self.kept, mine = groups, []
        for d in mine:
            s.set(d.path, d.here)
        left = "; ".join(str(d) for d in found if d not in mine)
        if mine:
            log.warning("shardd: model %r has what is asked here from now on: %s", self.name,
                        "; ".join(map(str, mine)))
        if left:
            log.warning("shardd: model %r goes on with the settings that it has: %s", self.name,
                        left)

    def _is_fixed(self, d: Difference) -> bool:
        """Whether training would not be what is asked, and nothing can make it so."""
        if d.group is not None:
            return not d.settable
        return d.key in ("optimizer", "schedule", "lr") or d.key.startswith(_OF_SCHEDULES)

    def _write(self, s: Session, init) -> int:
        """Writes what the model begins with, seals it, and returns the step that it is of."""
        copied = False
        for i, r in enumerate(self.rows):
            if init is not None and init.masters:
                x = _given(init.masters, r, "masters")
                with torch.no_grad():
                    r.param.copy_(x)
                copied = True
            else:
                x = r.param
            _write_one(s, _c.MASTER, i, r, x)
            page_out(r.param)
            for kind, tensors in (init.moments.items() if init is not None else ()):
                if r.name in tensors and kind in self.moments:
                    _write_one(s, KIND_NUMBERS[kind], i, r, _given(tensors, r, kind))
        # The daemons begin with one number for the step and Adam's t, and t decides about weights.
        step = 0 if init is None else init.step if init.applied is None else init.applied
        s.seal(step)
        log.info("shardd: defined model %r at %s: %d tensors, %d parameters", self.name, s.address,
                 len(self.rows), _p.total(self.rows))
        if copied:
            log.info("shardd: model %r begins with weights of step %d%s", self.name, init.step,
                     f", which is step {step} here: {init.step - step} steps were skipped"
                     if init.step != step else "")
        return step


def _together() -> bool:
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _write_one(s: Session, kind: int, i: int, r: _p.Row, x: torch.Tensor) -> None:
    x = x.detach().to(device="cpu", dtype=torch.float32).contiguous()
    s.write(kind, i, x.data_ptr(), r.numel, _c.F32)


def _given(tensors: Mapping, r: _p.Row, what: str) -> torch.Tensor:
    if r.numel == 0:
        return torch.empty(r.param.shape)  # Others that save leave it out.
    try:
        x = tensors[r.name]
    except KeyError:
        raise ValueError(f"shardd: init has no {what} of parameter {r.name!r}") from None
    if x.shape != r.param.shape:
        raise ValueError(f"shardd: init has {what} of {r.name!r} in shape {tuple(x.shape)}, and "
                         f"the parameter has {tuple(r.param.shape)}")
    return x
