# SPDX-License-Identifier: Apache-2.0
"""What torch calls of an Optimizer: hooks at its parameters and modules, and the end of the process.

Each has a weak reference to the Optimizer, which may be gone before them.
"""

from __future__ import annotations

import sys

import torch

from . import lib as _c

# The attempt at the step in hand is over, and the training goes on.
OVER = (_c.WorldChanged, _c.RolledBack, _c.Closed)


def on_grad(owner, i: int, p: torch.Tensor) -> None:
    """The hook of a parameter. autograd calls it when .grad has the gradient of this pass."""
    opt = owner()
    if opt is None or opt._closed:
        return
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


def on_load(owner, module, state_dict, *rest) -> None:
    opt = owner()
    if opt is not None and not opt._closed and opt._image.followed and \
            any(id(p) in opt._row_of for p in module.parameters()):
        raise RuntimeError("shardd: load_state_dict() would write parameters that belong to shardd "
                           "and are read-only since the first step. Load before the Optimizer is "
                           "made, or restore a checkpoint of shardd")


def close_at_exit(owner) -> None:
    opt = owner()
    if opt is not None:
        opt.close(drop=False if getattr(sys, "last_value", None) is not None else None)
