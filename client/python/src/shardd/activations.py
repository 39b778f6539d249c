# SPDX-License-Identifier: Apache-2.0
"""What autograd saves between forward and backward: computed again, in host memory, or in parts.

checkpoint() is torch.utils.checkpoint.checkpoint(), without reentrant autograd. Beyond that it has
a say in how the inputs are kept, which are all that is left of a region: in host memory, or a part
of them on each rank of a group whose ranks have the same inputs. offload_activations() keeps what
operations save in host memory, and nothing is computed again. Both use hooks of autograd for what
it saves: one packs a tensor in forward, the other one gives it back in backward.

What a hook packs is a copy, so an operation in place on the tensor afterwards does no harm. What it
leaves where it is, is given back only while it is unchanged, as autograd itself sees to.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable

import torch
from torch.utils import _pytree as tree
from torch.utils.checkpoint import checkpoint as _again

SAMPLE = 256  # So many elements of an input tell whether the ranks of a group have the same one.
_OF_TORCH = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def checkpoint(function: Callable, *args, partition: Any = False, cpu: bool = False, **more) -> Any:
    """function(*args, **more), whose activations are computed again in backward.

    partition  a process group of torch.distributed whose ranks all call this with the same inputs,
               as those of tensor parallelism do. Each rank keeps its part of them, and backward
               gathers the parts, so that all ranks have to go through backward in the same order.
               True: the group of all ranks. It is of use where data is not sharded over them
    cpu        the inputs, or this rank's part of them, are kept in host memory
    more       keywords of torch.utils.checkpoint.checkpoint() or, all others, of the function

    Inputs are tensors, also those in tuples, lists and dicts. Of integers, parameters and tensors
    with fewer elements than the group has ranks each rank keeps all. The state of torch's random
    numbers is the same in both computations. RuntimeError in backward: the ranks had other inputs.
    """
    of_torch = {k: more.pop(k) for k in _OF_TORCH if k in more}
    group = torch.distributed.group.WORLD if partition is True else partition or None
    if partition and (group is None or not torch.distributed.is_initialized()):
        raise ValueError("shardd: checkpoint(partition=...) needs a process group: call "
                         "torch.distributed.init_process_group() first")
    parts = group is not None and torch.distributed.get_world_size(group) > 1
    if parts and torch.distributed.get_rank(group) < 0:
        raise ValueError("shardd: checkpoint(partition=...): this rank is not in that group")
    flat, spec = tree.tree_flatten((args, more))

    def run(*flat):
        args, more = tree.tree_unflatten(list(flat), spec)
        return function(*args, **more)

    if not parts and not cpu:
        return _again(run, *flat, use_reentrant=False, **of_torch)

    def pack(x: torch.Tensor):
        if _of_parameter(x):
            return _Kept(x)
        if parts and x.is_floating_point() and \
                x.numel() >= torch.distributed.get_world_size(group):
            return _once(x, (id(group), cpu), lambda: _Part(x, group, cpu))
        return _once(x, "host", lambda: _Host(x)) if cpu and not _on_host(x) else _Kept(x)

    with torch.autograd.graph.saved_tensors_hooks(pack, _given_back):
        return _again(run, *flat, use_reentrant=False, **of_torch)


@contextlib.contextmanager
def offload_activations(min_bytes: int = 1 << 20):
    """What operations in here save for backward is kept in host memory, and is copied back then.

    min_bytes: smaller tensors stay on the device. Parameters stay, too, and what is in host memory
    already. Host memory is pinned. Copies are made in the order of the computation, so they cost
    its time.
    """
    def pack(x: torch.Tensor):
        if x.nbytes < min_bytes or _of_parameter(x) or _on_host(x):
            return _Kept(x)
        return _once(x, "host", lambda: _Host(x))

    with torch.autograd.graph.saved_tensors_hooks(pack, _given_back):
        yield


# --- what is kept of a tensor ---

# By the id of a tensor and how it is kept: who lives on while autograd has it.
_packed: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _once(x: torch.Tensor, how, make: Callable[[], Any]):
    """What several operations save is one copy, as a mask of all layers, as long as somebody else
    has the tensor."""
    known = _packed.get((id(x), how))
    if known is not None and known.of() is x and known.version == x._version:
        return known
    new = make()
    new.of, new.version = weakref.ref(x), x._version
    _packed[id(x), how] = new
    return new


class _Kept:
    """The tensor, where it is. Without its place in the graph, which would be a circle."""

    def __init__(self, x: torch.Tensor):
        self._x, self._version = x.detach(), x._version

    def back(self) -> torch.Tensor:
        if self._x._version != self._version:
            raise RuntimeError(
                f"shardd: a {_said(self._x)} that backward needs was changed by an operation in "
                f"place: it is at version {self._x._version}, and version {self._version} was "
                "saved. torch.autograd.set_detect_anomaly(True) shows where")
        return self._x


class _Host:
    """A copy in host memory, with the strides of the tensor."""

    def __init__(self, x: torch.Tensor):
        self._device = x.device
        self._x = torch.empty_like(x, device="cpu", pin_memory=x.is_cuda, requires_grad=False)
        with torch.no_grad():
            self._x.copy_(x, non_blocking=True)

    def back(self) -> torch.Tensor:
        return self._x.to(self._device, non_blocking=True)


class _Part:
    """This rank's part of a tensor that all ranks of a group have."""

    def __init__(self, x: torch.Tensor, group, cpu: bool):
        self._group = group
        n, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        y = x.detach()
        # Elements are cut as they lie in memory, so that strides are the same afterwards.
        self._order = sorted(range(y.dim()), key=lambda d: -y.stride(d))
        y = y.permute(self._order).contiguous()
        self._size, flat = y.size(), y.view(-1)
        self._each = -(-flat.numel() // n)
        mine = flat[rank * self._each:(rank + 1) * self._each]
        self._part: Any = _Host(mine) if cpu and not _on_host(x) else _Kept(mine.clone())
        self._stride = max(1, flat.numel() // SAMPLE)
        self._sample = flat[::self._stride].contiguous()

    def back(self) -> torch.Tensor:
        mine = self._part.back()
        dist, n = torch.distributed, torch.distributed.get_world_size(self._group)
        whole = mine.new_empty(n * self._each)
        parts = list(whole.chunk(n))
        own = mine.new_zeros(self._each)
        own[:mine.numel()] = mine
        # As bytes, because not every backend knows every dtype.
        dist.all_gather([p.view(torch.uint8) for p in parts], own.view(torch.uint8),
                        group=self._group)
        flat = whole[:self._size.numel()]
        self._check(flat[::self._stride].contiguous())
        back = [0] * len(self._order)
        for at, d in enumerate(self._order):
            back[d] = at
        return flat.view(self._size).permute(back)

    def _check(self, sample: torch.Tensor) -> None:
        """Raises RuntimeError where a part is of another input. On a GPU the kernel does."""
        text = ("shardd: checkpoint(partition=...): the ranks of the group had different inputs of "
                f"size {tuple(self._size)}: partition is for ranks that compute on the same ones")
        same = (sample.view(torch.uint8) == self._sample.view(torch.uint8)).all()
        if sample.is_cuda:
            torch._assert_async(same, text)
        elif not same:
            raise RuntimeError(text)


def _given_back(kept) -> torch.Tensor:
    return kept.back()


def _on_host(x: torch.Tensor) -> bool:
    return x.device.type in ("cpu", "meta")


def _of_parameter(x: torch.Tensor) -> bool:
    """Whether the memory is a parameter's, which is there anyway."""
    return isinstance(x, torch.nn.Parameter) or isinstance(x._base, torch.nn.Parameter)


def _said(x: torch.Tensor) -> str:
    return f"{x.dtype} tensor of size {tuple(x.size())}"
