# SPDX-License-Identifier: Apache-2.0
"""What torch 2.4 has under another name, or not at all. torch >= 2.5 needs nothing of it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def before_load(module: torch.nn.Module, hook) -> Any:
    """Calls hook(module, ...) before load_state_dict(). The handle that removes it."""
    public = getattr(module, "register_load_state_dict_pre_hook", None)
    if public is not None:
        return public(hook)
    return module._register_load_state_dict_pre_hook(hook, with_module=True)


def safe_globals(classes: list) -> Any:
    """While it is open, torch.load(weights_only=True) makes objects of these classes, too."""
    public = getattr(torch.serialization, "safe_globals", None)
    return public(classes) if public is not None else _added(classes)


@contextlib.contextmanager
def _added(classes: list):
    """safe_globals() of what torch 2.4 has."""
    before = list(torch.serialization.get_safe_globals())
    torch.serialization.add_safe_globals(classes)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
