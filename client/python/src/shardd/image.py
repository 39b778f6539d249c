# SPDX-License-Identifier: Apache-2.0
"""The parameters after a step: views of the node's shared image, or copies of it.

follow() waits until the image has the weights of a step and has the parameters be them. Views are
read-only memory of the library, one copy for all ranks of a node, so release() gives the parameters
ordinary memory before that goes away. Other tensors that share it, as those of a state_dict(), keep
their addresses and values: outlive() takes the memory over from the library for them. check() finds
a parameter that somebody has replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import weakref
from typing import Any, ContextManager, Iterable, Sequence

import torch

from . import lib as _c
from . import params as _p
from .session import Session

log = logging.getLogger("shardd")
KEEP_S = 20.0  # So long the library is asked for memory that tensors share.


class Image:
    """What the parameters are.

    rows     the parameters, in the order of the model's tensors
    copy     whether each rank has writable copies, and no views
    module   whose parameters they are, or None
    """

    def __init__(self, rows: Sequence[_p.Row], copy: bool,
                 module: torch.nn.Module | None):
        self._rows, self.copy, self._module = rows, copy, module
        self._base = 0        # The address of the image, where the parameters are views.
        self.followed = False  # Whether the parameters are shardd's: not before the first step.
        # Of each session the memory that parameters were, as far as a tensor uses it.
        self._lent: dict[Session, list[weakref.ref]] = {}

    @property
    def views(self) -> bool:
        """Whether the parameters are read-only memory of the library."""
        return self._base != 0

    def is_view(self, r: _p.Row) -> bool:
        """Whether one parameter is, and was not replaced by somebody."""
        return self.views and r.param.data_ptr() == r.address

    def follow(self, s: Session, step: int) -> None:
        """Waits until the image has the weights of `step`, and lets the parameters be it."""
        plain = [i for i, r in enumerate(self._rows) if self.copy and
                 r.param.device.type == "cpu" and r.param.is_contiguous()]
        for k, i in enumerate(plain):
            r = self._rows[i]
            ticket = s.pull(i, r.numel, step, r.param.data_ptr(), _p.DTYPES[r.dtype])
            if k % 512 == 511:
                s.wait(ticket)  # Only 1024 may wait at a time.
        s.wait(s.pull_all(step))
        if self.copy:
            for i, r in enumerate(self._rows):
                if r.param.device.type != "cpu" or not r.param.is_contiguous():
                    r.param.copy_(_p.view(s.image(i), r.param, r.dtype))
                r.address = r.param.data_ptr()
        elif s.image(0) != self._base:
            self._base = s.image(0)
            refuse_ddp(self._module, True)
            lent = self._lent.setdefault(s, [])
            for i, r in enumerate(self._rows):
                r.param.data = _p.view(s.image(i), r.param, r.dtype, lent)
                r.address = r.param.data_ptr()
            lent[:] = [used for used in lent if used() is not None]
            _give_back()
            _views.add(self)
            _tell_faults()
        self.followed = True

    def pass_over(self) -> None:
        """What was computed since the last step is dropped."""

    def hold(self, params: Iterable[torch.Tensor]) -> ContextManager:
        """Context: these parameters are in memory. Here all are."""
        return contextlib.nullcontext()

    def check(self) -> None:
        """Raises RuntimeError for a parameter that is not what follow() made it."""
        for r in self._rows if self.followed else ():
            if r.param.data_ptr() != r.address:
                raise RuntimeError(
                    f"shardd: parameter {r.name!r} is not the memory that shardd updates any "
                    "more. Something replaced it after the first step, as model.to(), .half() "
                    "or load_state_dict(assign=True) do: do that before the Optimizer is made")

    def release(self) -> None:
        """Parameters become ordinary, writable memory with the values that they have."""
        if self.views:
            refuse_ddp(self._module, False)
            for r in self._rows:
                if self.is_view(r):
                    r.param.data = r.param.data.clone()
            _views.discard(self)
            _tell_faults()
        for s in list(self._lent):
            self.outlive(s)
        self._base, self.followed = 0, False

    def outlive(self, s: Session) -> None:
        """Before a session ends: tensors that share memory of its image keep it."""
        used = [x for x in (lent() for lent in self._lent.pop(s, ())) if x is not None]
        try:
            if used:
                _Kept(s.keep_image(min(KEEP_S, s.timeout)), used)
        except _c.Error as e:
            log.warning("shardd: the memory that parameters shared with %d other tensors is gone. "
                        "Do not use them: %s", len(used), e)

    def lose(self) -> None:
        """In a forked child, where the library's memory is not mapped: parameters become empty."""
        for r in self._rows if self.views else ():
            r.param.data = torch.empty(0, dtype=r.dtype)


class _Kept:
    """Memory that was taken over from the library. It ends with the last one that uses it."""

    def __init__(self, kept: _c.Kept, used: Sequence[ctypes.Array]):
        self._kept, self._left = kept, len(used)
        for x in used:
            # Not at exit, when they may be there still.
            weakref.finalize(x, self._unused).atexit = False

    def _unused(self) -> None:
        self._left -= 1
        if self._left == 0:
            _c.libshard().shard_unmap(ctypes.byref(self._kept))


# --- writes into read-only memory ---

_views: weakref.WeakSet[Image] = weakref.WeakSet()  # Those whose parameters are views.
_absent: weakref.WeakSet[Image] = weakref.WeakSet()  # Those whose parameters come and go.
_AT_0 = (b"shardd: an access to address 0 or behind it, where a parameter of stage 3 is whose "
         b"memory was given back: opt.gather(p) has it be in memory\n")
_told: Any = None  # What the library reads when a write faults. None: it has not been asked to.
_explains = os.environ.get("SHARDD_EXPLAIN_FAULTS", "1") != "0"


def explain_faults(on: bool = True) -> None:
    """Whether a write into a parameter that is the read-only image names the parameter.

    Such a write, as p.add_() or one by numpy, ends the process with SIGSEGV. So does what reads a
    parameter of stage 3 that is not in memory and asks no function of torch, as torch.tensor(p). A
    line on stderr comes first, and then what came before, as faulthandler's traceback. That is so
    from the first step of the first Optimizer on, unless $SHARDD_EXPLAIN_FAULTS is 0. It sets a
    handler of SIGSEGV: where faulthandler is enabled later than that, call this once more. False:
    no more, for all Optimizers of this process, also later ones.

    Thread-safety: the main thread calls it, as it does all that makes an Optimizer.
    """
    global _told, _explains
    _explains, _told = on, _c.Faults() if on else None
    if on:
        _tell_faults()
    else:
        _c.check(_c.libshard().shard_explain_faults(None))


def comes_and_goes(image: Image, on: bool) -> None:
    """Parameters of an image have no memory at times, or not any more."""
    (_absent.add if on else _absent.discard)(image)
    _tell_faults()


def _tell_faults() -> None:
    global _told
    if not _explains or _told is None and not _views and not _absent:
        return
    ranges = [_c.FaultRange(r.address, r.numel * r.dtype.itemsize, (
        f"shardd: a write into parameter {r.name!r}, which is read-only memory since the first "
        "step: params=\"copy\" makes it writable\n").encode())
              for i in _views for r in i._rows if r.numel]
    if _absent:  # An empty storage is at address 0.
        ranges.append(_c.FaultRange(0, max(r.numel * r.dtype.itemsize
                                           for i in _absent for r in i._rows), _AT_0))
    new = _c.Faults(ranges=(_c.FaultRange * len(ranges))(*ranges), ranges_nr=len(ranges))
    _c.check(_c.libshard().shard_explain_faults(new))
    _told = new  # The one before, which the library had until now, is freed.


def _give_back() -> None:
    """Has the system take back the memory that the parameters had, as large as the model.

    glibc keeps what is freed between things that live on, and takes large tensors from there once
    some were freed.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Other C libraries have none.
    if trim is not None:
        trim(0)


def refuse_ddp(module: torch.nn.Module | None, on: bool) -> None:
    """Has DistributedDataParallel leave the parameters of a module alone, or not any more.

    Its constructor writes into all that it does not ignore, and memory that is read-only, or is not
    there, ends the process. What ignores every parameter is refused by torch itself, in a sentence.
    The names are where DDP looks for them, at the module that it wraps, and at each part in case of
    that.
    """
    for part in module.modules() if module is not None else ():
        if on:
            part._ddp_params_and_buffers_to_ignore = [n for n, _ in part.named_parameters()]
        else:
            part.__dict__.pop("_ddp_params_and_buffers_to_ignore", None)
