# SPDX-License-Identifier: Apache-2.0
"""Parameters of a torch model as tensors of shardd: names, layout, and what stands in their way.

Here a torch.nn.Parameter becomes a row with a name, a dtype and an address, and memory that the
library gives becomes a tensor. A parameter that cannot be trained is refused here, with its name.
Nothing here talks to a daemon.
"""

from __future__ import annotations

import ctypes as C
import logging
import os
import sys
import weakref
from typing import Iterable, Mapping, Sequence

import torch

from . import lib as _c
from .init import in_file

log = logging.getLogger("shardd")

DTYPES = {torch.float32: _c.F32, torch.bfloat16: _c.BF16, torch.float16: _c.F16}


def dtype_of(number: int) -> torch.dtype:
    """What an enum shard_dtype is for torch."""
    return next(d for d, n in DTYPES.items() if n == number)


def ties(module: torch.nn.Module) -> dict[str, str]:
    """Names of parameters that are another one under a second name, to the first one."""
    first: dict[int, str] = {}
    return {n: first[id(p)] for n, p in module.named_parameters(remove_duplicate=False)
            if first.setdefault(id(p), n) != n}


def view(address: int, like: torch.Tensor, dtype: torch.dtype,
         lent: "list[weakref.ref] | None" = None) -> torch.Tensor:
    """A contiguous tensor of the shape of `like` over memory of the library.

    Elements lie row by row there, whatever the strides of `like` are, so that a checkpoint means
    the same to everybody. The memory belongs to the library. A ctypes array counts as writable for
    torch, so that it does not warn about memory that is read-only. lent: gets a reference that is
    dead once no tensor uses the memory any more.
    """
    numel = like.numel()
    if numel == 0:
        return torch.empty(like.size(), dtype=dtype)
    buffer = (C.c_char * (numel * dtype.itemsize)).from_address(address)
    if lent is not None:
        lent.append(weakref.ref(buffer))
    return torch.frombuffer(buffer, dtype=dtype, count=numel).view(like.size())


class Row:
    """One parameter: its name, its group, and what became of its gradient in the step in hand."""

    __slots__ = ("name", "param", "group", "numel", "dtype", "arena", "sum", "seen", "pushed",
                 "address", "version", "sum_before", "marker")

    def __init__(self, name: str, param: torch.nn.Parameter, group: int):
        self.name, self.param, self.group, self.numel = name, param, group, param.numel()
        self.dtype = param.dtype
        self.arena: torch.Tensor | None = None  # Where its gradient is written.
        self.sum: torch.Tensor | None = None    # fp32 sum of micro-batches, of 16-bit gradients.
        self.seen = 0                           # Gradients of this step.
        self.pushed = False
        self.address = 0                        # Of the parameter, once it is shardd's.
        # To notice a change before the first step.
        self.version, self.sum_before = param._version, None
        self.marker: torch.Tensor | None = None  # Stands in .grad for what was pushed.


def collect(groups: list[dict], names: dict[int, str]) -> tuple[list[Row], list]:
    """Which parameters are trained, as rows, and (name, parameter) of those that are frozen.

    groups: as torch has them. names: of parameters, by id. Raises TypeError for a parameter that
    shardd cannot train, and ValueError if there is none at all. One without elements counts in no
    step: it is there because the checkpoints of the model have it.
    """
    rows: list[Row] = []
    frozen = []
    for gi, g in enumerate(groups):
        for p in g["params"]:
            name = names.get(id(p), f"t{len(rows)}")
            if not p.requires_grad:
                frozen.append((name, p))
                continue
            why = _refuse(name, p)
            if why:
                raise TypeError(f"shardd.Optimizer: {why}")
            rows.append(Row(name, p, gi))
    if total(rows) == 0:
        raise ValueError("shardd.Optimizer: no parameter requires a gradient")
    return rows, frozen


def images(weights: Mapping[str, tuple[torch.dtype, int]]) -> tuple[torch.dtype | None, dict]:
    """Of weights with dtype and elements by name: the dtype of most elements, and the others by
    name. None, and none, where one is no dtype that an image can have."""
    counts: dict[torch.dtype, int] = {}
    for dtype, numel in weights.values():
        counts[dtype] = counts.get(dtype, 0) + numel
    if not counts or not set(counts) <= set(DTYPES):
        return None, {}
    main = max(counts, key=lambda d: counts[d])
    return main, {n: d for n, (d, _) in weights.items() if d != main}


def main_dtype(rows: list[Row], dtype: torch.dtype | None) -> torch.dtype:
    """The dtype that most elements have, or `dtype`: then TypeError unless all have it."""
    if dtype is None:
        return images({r.name: (r.dtype, r.numel) for r in rows})[0]
    for r in rows:
        if r.dtype != dtype:
            raise TypeError(f"shardd.Optimizer: parameter {r.name!r} is {r.dtype} and dtype is "
                            f"{dtype}: call model.to({dtype}) first, so that the model computes in "
                            "what it reads")
    return dtype


def _refuse(name: str, p: torch.Tensor) -> str | None:
    """Why a parameter cannot be trained by shardd, or None."""
    if type(p).__name__ == "DTensor" or hasattr(p, "device_mesh"):
        return (f"parameter {name!r} is a DTensor: shardd shards parameters itself, so make the "
                "Optimizer before fully_shard(), or leave fully_shard() out")
    if p.is_sparse or p.layout is not torch.strided:
        return f"parameter {name!r} is sparse, and only strided ones can be trained"
    if p.is_complex():
        return f"parameter {name!r} is complex: give its real view (torch.view_as_real)"
    if p.is_quantized or not p.is_floating_point():
        return f"parameter {name!r} is {p.dtype}: set requires_grad=False, or give a real dtype"
    if p.dtype not in DTYPES:
        return (f"parameter {name!r} is {p.dtype}, and the image can be torch.float32, "
                "torch.bfloat16 or torch.float16")
    if p.is_meta:
        return None
    if any(stride == 0 and size > 1 for stride, size in zip(p.stride(), p.size())):
        return (f"parameter {name!r} has strides {tuple(p.stride())} for shape {tuple(p.shape)}: "
                "its elements overlap. Make it contiguous first")
    return None


def named(model) -> tuple[list[dict], dict[int, str], torch.nn.Module | None]:
    """Groups and names out of what users give as a model.

    model is a torch.nn.Module, an iterable of parameters, of (name, parameter), or of torch's
    parameter groups. Returns the groups, the name of each parameter by id, and the module or None.
    Of tied parameters the first name counts.
    """
    module = model if isinstance(model, torch.nn.Module) else None
    found: dict[int, str] = {}
    if module is not None:
        inner = getattr(module, "module", None)
        wrapped = type(module).__name__ in ("DistributedDataParallel", "DataParallel")
        for name, p in (inner if wrapped else module).named_parameters():
            found.setdefault(id(p), name)
        return [{"params": list(module.parameters())}], found, module
    groups: list[dict] = []
    loose: list = []
    for item in model:
        if isinstance(item, dict):
            groups.append(dict(item))
        elif isinstance(item, tuple):
            found.setdefault(id(item[1]), item[0])
            loose.append(item[1])
        else:
            loose.append(item)
    if loose:
        if groups:
            raise TypeError("shardd.Optimizer: parameters and parameter groups are mixed")
        groups = [{"params": loose}]
    at = 0
    for g in groups:
        params = [g["params"]] if isinstance(g["params"], torch.Tensor) else list(g["params"])
        for k, p in enumerate(params):
            if isinstance(p, tuple):
                found.setdefault(id(p[1]), p[0])
                params[k] = p[1]
            found.setdefault(id(params[k]), f"t{at}")
            at += 1
        g["params"] = params
    if not groups:
        raise ValueError("shardd.Optimizer: there are no parameters")
    return groups, found, None


class PushedGrad(torch.Tensor):
    """Stands where the gradient of a parameter was, and says where it went.

    The gradient has left for the daemon, so that the memory is free. Whoever looks at .grad
    afterwards, as clip_grad_norm_ does, would see no gradient and go on with a norm of 0.0.
    """

    @staticmethod
    def __new__(cls, param: torch.Tensor, name: str):
        self = torch.Tensor._make_wrapper_subclass(
            cls, param.size(), strides=param.stride(), dtype=param.dtype, device=param.device)
        self.name_of_param = name
        return self

    def __repr__(self, *, tensor_contents=None):
        return f"PushedGrad({self.name_of_param!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        name = next((a.name_of_param for a in _flat(args) if isinstance(a, PushedGrad)), "?")
        if func._schema.name in ("aten::detach", "aten::detach_", "aten::alias"):
            return args[0]
        if func._schema.name in ("aten::add", "aten::add_"):
            raise RuntimeError(
                f"shardd: {name!r} gets a second gradient in this step, and its first one was "
                "pushed already. Say Optimizer(accumulate=N) for N backward passes in each step, "
                "wrap all but the last one in opt.no_sync(), or call opt.step() between them")
        if "_amp_" in func._schema.name:
            raise RuntimeError("shardd: a GradScaler of torch finds no gradients here, because "
                               "they were pushed to the daemon, which has the loss scale: use "
                               "shardd.GradScaler(opt), or opt.scale() with loss_scale=\"dynamic\"")
        raise RuntimeError(
            f"shardd: the gradient of {name!r} was pushed to the daemon as backward made it, and "
            f"is not here any more ({func._schema.name}). To clip, give clip=1.0 to "
            "shardd.Optimizer and take clip_grad_norm_ out; the norm is in opt.result.grad_norm. "
            "Hugging Face's Trainer always clips: shardd.hf.TrainerCallback(trainer) is for that. "
            'To look at gradients or change them, give grads="keep"')


def _flat(args):
    for a in args:
        if isinstance(a, (list, tuple)):
            yield from _flat(a)
        else:
            yield a


# --- fork ---

_owners: weakref.WeakSet = weakref.WeakSet()


def guard_fork(owner) -> None:
    """owner._in_child() is called in a forked child, where the library's memory is not mapped."""
    _owners.add(owner)


def _in_child() -> None:
    for owner in list(_owners):
        owner._in_child()


os.register_at_fork(after_in_child=_in_child)


# --- a second Optimizer of the same parameters ---

_taken: set[str] = set()  # Names of models that were not closed by the script itself.


def take_over(params: Iterable[torch.Tensor], by: str, address: str) -> None:
    """Closes the Optimizer of this process that trains these parameters now, for a new one of the
    model `by`. With both, each gradient would go to one of them and be missed by the other, and the
    new one would write first weights into memory that is read-only.

    What it trained is trained on from where it is, with moments that begin anew: as in torch, where
    the old one is forgotten. Only a model of the same name and address is gone on with. Raises
    RuntimeError for an Optimizer that trains other parameters, too, and then closes none.
    """
    ids = {id(p) for p in params}
    old = [o for o in list(_owners) if not o._closed and not ids.isdisjoint(o._row_of)]
    for o in old:
        both = [r.name for r in o._rows if id(r.param) in ids]
        if len(both) < len(o._rows):
            raise RuntimeError(
                f"shardd: parameter {both[0]!r} is trained by the Optimizer of model {o.name!r}, "
                f"and so are {len(o._rows) - len(both)} that the new one does not have. A "
                "parameter has one Optimizer: call close() of that one first, or destroy() of its "
                "engine")
    for o in old:
        log.info("shardd: model %r has the parameters of model %r now, whose Optimizer is closed",
                 by, o.name)
        _taken.add(o.name)
        same = (o.name, o._address) == (by, address)
        o.close(drop=False if same else None)
        o._why_closed = (f", of model {o.name!r}, was closed when a later one, of model {by!r}, was "
                         "made of the same parameters: use that one")


def ray_run() -> str:
    """The name of the run of Ray Train that this process is a worker of, or nothing."""
    train = sys.modules.get("ray.train")
    try:
        return train.get_context().get_experiment_name() or "" if train is not None else ""
    except (RuntimeError, AttributeError):  # Ray without Train's context: this is no worker of it.
        return ""


def script_name() -> str:
    """The name of a model if nobody says one: that of the program that runs. All workers of Ray
    Train run the same program, of Ray's, so that theirs is the run's name."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0] or "model"
    stem = (ray_run() or os.path.splitext(os.path.basename(main))[0]).lower()
    clean = "".join(c if c.isalnum() and c.isascii() or c in "._-" else "-" for c in stem)
    return clean.strip("-.")[:64] or "model"


_names: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def free_name(owner) -> str:
    """The name of the model of an Optimizer that is given none: $SHARDD_MODEL, or that of the
    script. A second one in this process, as of a GAN, gets a number, as it does on other ranks.
    So does one that takes parameters over, lest it goes on with the model that they had."""
    first = name = os.environ.get("SHARDD_MODEL") or script_name()
    number = 1
    while name in _taken or name in _names and not _names[name]._closed:
        number += 1
        name = f"{first}-{number}"
    _names[name] = owner
    return name


def hint(name: str, otherwise: int) -> int:
    """A number that torchrun or a user left in the environment. Nothing depends on it."""
    word = os.environ.get(name, "")
    return int(word) if word.lstrip("-").isdecimal() else otherwise


INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """A number below 2^40 that depends on all bits of all elements, in the order of the rows."""
    total_of_all = 0
    for t in tensors:
        bits = t.detach().contiguous().view(-1)
        if t.is_complex():
            bits = torch.view_as_real(bits).view(-1)
        bits = bits.view(INTEGERS[bits.element_size()])
        total_of_all = (total_of_all * 1000003 + int(bits.sum(dtype=torch.int64))) % (1 << 40)
    return total_of_all


def note_written(rows: Iterable[Row]) -> None:
    """The daemons have the weights of these rows now."""
    for r in rows:
        r.version = r.param._version
        r.sum_before = None if in_file(r.param) else checksum([r.param])


def refuse_written(rows: Iterable[Row], module: torch.nn.Module | None) -> None:
    """Raises RuntimeError if a parameter is another one since note_written(), or has other values.
    A write by .data has no version, so the values are compared, too."""
    there = {id(p) for p in module.parameters()} if module is not None else ()
    for r in rows:
        if there and id(r.param) not in there:
            raise RuntimeError(
                f"shardd: parameter {r.name!r} of the module is another one now, as "
                "load_state_dict(assign=True) makes it: make the Optimizer after that")
        if r.param._version != r.version or (
                r.sum_before is not None and checksum([r.param]) != r.sum_before):
            raise RuntimeError(
                f"shardd: parameter {r.name!r} was written after the Optimizer was made and before "
                "its first step. The daemon has the older weights: make the Optimizer after "
                "loading or initializing the model. DistributedDataParallel writes when it is "
                "made, so leave it out, as Hugging Face's Trainer does by "
                "shardd.hf.TrainerCallback(trainer)")


class Untrained:
    """Frozen parameters and buffers, which every rank has for itself and nobody makes equal.

    Ranks with other ones train another model each. So a rank gives their checksums to its first
    step, and compare() gets the sums of those whose first step it was, too.
    """

    VALUES = 3

    def __init__(self, module: torch.nn.Module | None, rows: Iterable[Row], frozen: list):
        trained = {id(r.param) for r in rows}
        parameters = module.parameters() if module is not None else (p for _, p in frozen)
        buffers = module.buffers() if module is not None else ()
        sums = [checksum(t for t in of if id(t) not in trained and not t.is_meta
                         and t.layout is torch.strided and not in_file(t))
                for of in (parameters, buffers)]
        self._own: list[float] | None = [1.0, *map(float, sums)]

    def told(self) -> list[float]:
        """What this rank gives to the step."""
        return self._own or [0.0] * self.VALUES

    def compare(self, sums: Sequence[float]) -> None:
        """Raises RuntimeError, or logs a warning, if others are not equal. Once."""
        own, self._own = self._own, None
        if own is None:
            return
        what = "are not equal on all ranks: make the model from the same seed, or load the same " \
               "file, on each rank before the Optimizer is made, as DistributedDataParallel would"
        if sums[1] != sums[0] * own[1]:
            raise RuntimeError(f"shardd: frozen parameters {what}")
        if sums[2] != sums[0] * own[2]:
            log.warning("shardd: buffers %s", what)


def total(rows: Iterable[Row]) -> int:
    """The elements of all rows."""
    return sum(r.numel for r in rows)
