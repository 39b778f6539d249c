# SPDX-License-Identifier: Apache-2.0
"""shardd: train with optimizer state that outlives the trainers.

    import shardd
    opt = shardd.AdamW(model, lr=3e-4, clip=1.0)   # in place of DDP and torch.optim.AdamW
    for x, y in loader:
        loss = model(x, y)
        loss.backward()
        opt.step()
        opt.zero_grad()

Importing shardd imports no torch; what needs it does when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .lib import (Closed, Diverged, DuplicatePush, Error, Lost, Mismatch, RolledBack, Timeout,
                  Unsupported, WorldChanged)
from .session import Result, Saving, World

if TYPE_CHECKING:  # What __getattr__() gives, for editors and type checkers.
    from . import dcp as dcp, hf as hf
    from .activations import checkpoint, offload_activations
    from .checkpoints import (Checkpoint, Damaged, Initial, export_torch, export_universal,
                              from_checkpoint, to_safetensors)
    from .deepspeed import initialize
    from .deepspeed.zero import GatheredParameters
    from .image import explain_faults
    from .init import Init
    from .loop import Sampler, steps
    from .optimizer import Adagrad, Adam, AdamW, Lion, Optimizer, SGD
    from .scaler import GradScaler

__version__ = "0.1.0"

_LAZY = {"Optimizer": "optimizer", "AdamW": "optimizer", "Adam": "optimizer", "SGD": "optimizer",
         "Adagrad": "optimizer", "Lion": "optimizer", "GradScaler": "scaler",
         "Checkpoint": "checkpoints", "Damaged": "checkpoints", "Initial": "checkpoints",
         "from_checkpoint": "checkpoints", "to_safetensors": "checkpoints",
         "export_torch": "checkpoints", "export_universal": "checkpoints",
         "steps": "loop", "Sampler": "loop",
         "Init": "init", "checkpoint": "activations", "offload_activations": "activations",
         "explain_faults": "image",
         "initialize": "deepspeed", "GatheredParameters": "deepspeed.zero"}

__all__ = ["Closed", "Diverged", "DuplicatePush", "Error", "Lost", "Mismatch", "Result",
           "RolledBack", "Saving", "Timeout", "Unsupported", "World", "WorldChanged", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in ("dcp", "hf"):
        return importlib.import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(importlib.import_module("." + _LAZY[name], __name__), name)
    raise AttributeError(f"module 'shardd' has no attribute {name!r}")
