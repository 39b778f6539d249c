# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way from backward to the daemon.

take() gets each gradient as backward made it. It is summed with those of earlier backward passes of
its step, in the memory that the daemon shares or, where that is of 16 bits, in fp32 beside it, and
pushed when it is complete. finish() pushes what is left when the step is committed. A gradient too
many is an error that names the parameter.
"""

from __future__ import annotations

import logging
import warnings
from typing import Sequence

import torch

from . import params as _p
from .session import Session

log = logging.getLogger("shardd")

# So many elements that are complete at once are pushed by one call. The daemon sums them while the
# next ones are copied.
TOGETHER = 1 << 18


class Gradients:
    """What this rank has of the gradients of the step in hand.

    rows        the parameters, in the order of the model's tensors
    dtype       of gradients in the daemon's memory
    accumulate  backward passes that a step has
    ddp         whether a DDP around the model writes into .grad, too
    """

    def __init__(self, rows: Sequence[_p.Row], dtype: torch.dtype, accumulate: int, ddp: bool):
        self._rows, self._dtype, self._ddp = rows, dtype, ddp
        self._accumulate, self._base = accumulate, 0
        self.syncing = True  # False: a backward pass that is not the last one of its step.

    def forget(self) -> None:
        """What is here is of a step that is over."""
        self.syncing = True
        for r in self._rows:
            r.seen, r.pushed = 0, False

    def drop(self) -> bool:
        """Takes out all gradients of the step in hand. Returns whether any was pushed already."""
        pushed = any(r.pushed for r in self._rows)
        for r in self._rows:
            r.param.grad, r.seen, r.pushed = None, 0, False
        return pushed

    def bind(self, s: Session) -> None:
        """Has gradients be written where the daemon of this session reads them."""
        if s.arena(0) != self._base:
            self._base = s.arena(0)
            for i, r in enumerate(self._rows):
                r.arena = _p.view(s.arena(i), r.param, self._dtype)

    def unbind(self) -> None:
        """The daemon's memory is not to be written any more."""
        self._base = 0
        for r in self._rows:
            r.arena = None

    def take(self, s: Session, i: int, g: torch.Tensor, gain: float, passes: int | None) -> None:
        """One gradient of row i, as backward made it.

        gain: what it is multiplied by. passes: the backward passes of this step, if not
        `accumulate`."""
        r, passes = self._rows[i], passes or self._accumulate
        if g.is_sparse:
            g = _dense(g, r.name)
        if self._ddp and r.seen:
            raise RuntimeError(f"shardd: {r.name!r} gets a second gradient in this step, and DDP "
                               "around the model wrote into .grad between: take DDP away, because "
                               "shardd sums over the ranks itself")
        g = _weighed(g, gain)
        r.seen += 1
        if r.seen > 1 and r.pushed:
            raise RuntimeError(f"shardd: {r.name!r} gets gradient {r.seen} of this step, and "
                               f"{passes} are expected: say accumulate={r.seen} or more, "
                               "wrap all backward passes but the last in opt.no_sync(), or call "
                               "opt.step() between them")
        last = self.syncing and r.seen >= passes
        if r.seen == 1 and last or self._dtype is torch.float32:
            if r.seen == 1:
                self._put(r, g)
            else:
                self._add(r, g)
        elif r.seen == 1:
            r.sum = g.float() if r.sum is None else r.sum.copy_(g)
        else:
            r.sum.add_(g)
            if last:
                self._put(r, r.sum)
        if last:
            self._push(s, [i])
            if r.marker is None:
                r.marker = _p.PushedGrad(r.param, r.name)
            r.param.grad = None if self._ddp else r.marker  # DDP writes into .grad.

    def finish(self, s: Session, gain: float) -> None:
        """The gradients of this step are complete: what was not pushed yet is pushed now. A .grad
        that is there is the gradient of a parameter whose hook has taken none."""
        ready: list[int] = []
        waiting = 0
        for i, r in enumerate(self._rows):
            g, r.param.grad = r.param.grad, None
            if r.pushed:
                if not self._ddp and g is not r.marker:
                    raise RuntimeError(
                        f"shardd: .grad of {r.name!r} was changed or taken away after its gradient "
                        'was pushed, which counts: give grads="keep" to change gradients')
                continue
            if g is not None and not (self._ddp and r.seen):
                self._put(r, _weighed(_dense(g, r.name) if g.is_sparse else g, gain))
            elif not r.seen:
                s.push_none(i)
                continue
            elif self._dtype is not torch.float32:
                self._put(r, r.sum)
            ready.append(i)
            waiting += r.numel
            if waiting >= TOGETHER:
                self._push(s, ready)
                ready, waiting = [], 0
        if ready:
            self._push(s, ready)

    def _put(self, r: _p.Row, g: torch.Tensor) -> None:
        """The gradient is g, in the dtype in which it is pushed."""
        r.arena.copy_(g)

    def _add(self, r: _p.Row, g: torch.Tensor) -> None:
        r.arena.add_(g)

    def _push(self, s: Session, tensors: list[int]) -> None:
        s.push_many(tensors)
        for i in tensors:
            self._rows[i].pushed = True


def _weighed(g: torch.Tensor, gain: float) -> torch.Tensor:
    """A gradient as it counts in the mean over the global batch of shardd.steps()."""
    return g if gain == 1.0 else g.float() * gain


def _dense(g: torch.Tensor, name: str) -> torch.Tensor:
    warnings.warn(f"shardd: the sparse gradient of {name!r} is sent as a dense one",
                  stacklevel=3)
    return g.coalesce().to_dense()


def unwrap_ddp(m: torch.nn.Module | None) -> bool:
    """DDP would average the gradients once more, for nothing. Returns whether there is one."""
    if m is None or type(m).__name__ != "DistributedDataParallel":
        return False
    m.register_comm_hook(None, _no_reduce)
    log.warning("shardd: the DDP around the model does not reduce any more: shardd does. "
                "Leave DDP out to save its buckets. What it leaves in .grad is 0")
    return True


def _no_reduce(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
