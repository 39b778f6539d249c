# SPDX-License-Identifier: Apache-2.0
"""A parameter whose memory was given back: what it tells, and the sentence that all else ends in.

Its storage is empty, and torch would read from address 0, which is the end of the process. So while
it is absent its class is another one, whose __torch_function__ lets through what asks for size,
dtype, device, gradient and the like, and refuses what would read or write elements. What is derived
meanwhile and shares the storage, as .data, is refused likewise until the storage is filled. Code
that does not go through torch's functions, as another C library, is not seen.
"""

from __future__ import annotations

import functools
from typing import Iterator

import torch

# Attributes are told, and so are these functions and what makes a new tensor of the same size.
_TOLD = frozenset((
    "__dir__", "__len__", "size", "stride", "dim", "ndimension", "numel", "nelement",
    "element_size", "storage_offset", "untyped_storage", "data_ptr", "get_device",
    "is_floating_point", "is_complex", "is_contiguous", "is_pinned", "is_shared", "is_same_size",
    "is_set_to", "_is_view", "register_hook", "register_post_accumulate_grad_hook",
    "requires_grad_", "retain_grad", "detach", "alias", "__set__", "__delete__"))
_VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag"))  # Attributes that are computed.


class _Absent:
    """What is mixed into the class of a tensor."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        word = getattr(func, "__name__", str(func))
        if word == "__get__":
            word = func.__self__.__name__
            told = word not in _VIEWS
        else:
            told = word in _TOLD or word.endswith("_like") or word.startswith("new_") or \
                word == "type" and len(args) == 1 and not kwargs
        with torch._C.DisableTorchFunctionSubclass():
            gone = None if told else next(_gone((args, kwargs)), None)
            if gone is not None:
                raise RuntimeError(_sentence(gone, word))
            found = func(*args, **kwargs)
            if told and type(found) is torch.Tensor:
                _inherit(found, next(_gone((args, kwargs)), None))
            return found

    def __repr__(self, *, tensor_contents=None):
        with torch._C.DisableTorchFunctionSubclass():
            if _empty(self):
                return (f"<parameter {self._shardd_name!r}, {tuple(self.shape)} {self.dtype} on "
                        f"{self.device}, which is not in memory now>")
            return torch.Tensor.__repr__(self)

    def __format__(self, how):
        return format(repr(self), how)


@functools.lru_cache(maxsize=None)
def _class(cls: type) -> type:
    return type(cls.__name__, (_Absent, cls), {"__module__": cls.__module__})


def _empty(x: torch.Tensor) -> bool:
    return x.untyped_storage().nbytes() == 0 and x.numel() > 0


def _gone(args) -> Iterator[torch.Tensor]:
    for a in args:
        if isinstance(a, _Absent):
            if _empty(a):
                yield a
        elif isinstance(a, (list, tuple)):
            yield from _gone(a)
        elif isinstance(a, dict):
            yield from _gone(a.values())


def _inherit(x: torch.Tensor, gone) -> None:
    """x is absent as well if it shares the storage."""
    if gone is not None and x.untyped_storage()._cdata == gone.untyped_storage()._cdata:
        x.__class__ = _class(torch.Tensor)
        x._shardd_name = gone._shardd_name


def _sentence(x, word: str) -> str:
    return (f"shardd: parameter {x._shardd_name!r} is not in memory now, and {word} needs it: in "
            "stage 3 it is there while a module uses it. Put `with opt.gather(p):` around this, or "
            "with DeepSpeed's names `with deepspeed.zero.GatheredParameters(p):`. "
            "model.state_dict() gives copies in host memory")


def is_absent(p: torch.Tensor) -> bool:
    """Whether leave() was called for a parameter, and not come()."""
    return isinstance(p, _Absent)


def leave(p: torch.Tensor, name: str) -> None:
    """The storage of a parameter is empty from now on. name: what the sentence calls it."""
    if not is_absent(p):
        p._shardd_name = name
        p.__class__ = _class(type(p))


def come(p: torch.Tensor) -> None:
    """It is about to be filled: the parameter is of its own class again."""
    if is_absent(p):
        p.__class__ = type(p).__mro__[2]
