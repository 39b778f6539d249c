# SPDX-License-Identifier: Apache-2.0
"""What torch calls of an Optimizer: hooks at its parameters and modules, and the end of the process.

Each has a weak reference to the Optimizer, which may be gone before them.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from . import lib as _c

# The attempt at the step in hand is over, and the training goes on.
OVER = (_c.WorldChanged, _c.RolledBack, _c.Closed)


class Hook:
    """function(owner, *given, *what torch gives), while there is an owner that is open. A copy of
    it, as in a module that is copied or saved as a whole, does nothing."""

    def __init__(self, function, owner: Any, *given: Any):
        self._function, self._owner, self._given = function, weakref.ref(owner), given

    def __call__(self, *of_torch: Any) -> None:
        owner = self._owner()
        if owner is not None and not owner._closed:
            self._function(owner, *self._given, *of_torch)

    def __deepcopy__(self, memo):
        return nothing

    def __reduce__(self):
        return _copy, ()


def nothing(*of_torch: Any) -> None:
    """What a Hook is in a copy."""


def _copy():
    return nothing


def on_grad(opt, i: int, p: torch.Tensor) -> None:
    """The hook of a parameter. autograd calls it when .grad has the gradient of this pass."""
    if opt._dead is not None:
        p.grad = None
        return
    if opt._keep:
        return  # It stays until step(), and torch sums.
    g, p.grad = p.grad, None
    try:
        opt._take(i, g)
    except OVER as e:
        opt._dead = e


def on_load(opt, module, state_dict, *rest) -> None:
    """The hook of a module, which torch calls before load_state_dict() writes."""
    if opt._image.followed and any(id(p) in opt._row_of for p in module.parameters()):
        raise RuntimeError("shardd: load_state_dict() would write parameters that belong to shardd "
                           "and are read-only since the first step. Load before the Optimizer is "
                           "made, or restore a checkpoint of shardd")


def close_at_exit(opt) -> None:
    opt.close(drop=False if getattr(sys, "last_value", None) is not None else None)
