# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DeepSpeed: reading what ZeRO saved, and writing what DeepSpeed reads.

from_zero() reads a folder of stage 1, 2 or 3 with any number of ranks, from_universal() what
DeepSpeed's ds_to_universal makes of it. to_zero() writes the former as stage 1 or 2, which
zero_to_fp32 and DeepSpeed itself read, to_universal() the latter. Files are read as data only:
torch.load(weights_only=True), with classes of our own in place of the three of DeepSpeed's that lie
in them. So DeepSpeed need not be there, and a file that wants to run code is refused. ValueError
says what is wrong in which file.
"""

from __future__ import annotations

import argparse
import enum
import io
import math
import os
import pickle
import re
from collections import OrderedDict
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch

from .checkpoints import Group, Initial, enum_member
from .older import safe_globals
from .params import images
from .settings import KINDS
from .torch_state import TORCH_DEFAULTS, kind_of

RANK = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
WRITES_AS = "0.19.8"  # The release of DeepSpeed whose files are written.
# What DeepSpeed keeps in the file of the model. The rest is the user's client_state.
KNOWN = {"module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes",
         "shared_params", "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd",
         "skipped_steps", "global_steps", "global_samples", "dp_world_size", "mp_world_size",
         "ds_config", "ds_version", "checkpoint_parallel_dimensions", "num_experts",
         "ds_autoep_layers", "universal_checkpoint_info", "sparse_tensor_module_names"}

Progress = Callable[[int, int], None]


# --- files of others ---


def _standin(module: str, name: str) -> type:
    return type(name, (), {"__module__": module, "__qualname__": name})


STANDINS = [enum.IntEnum("ZeroStageEnum", "disabled optimizer_states gradients weights", start=0,
                         module="deepspeed.runtime.zero.config"),
            _standin("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
            _standin("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
            _standin("deepspeed.utils.tensor_fragment", "fragment_address"), argparse.Namespace,
            enum_member]


def load(path: str) -> Any:
    """A file of torch.save(), as data. ValueError if it is none, or would run something."""
    try:
        with open(path, "rb") as f:
            zipped = f.read(4) == b"PK\x03\x04"  # Files of torch before 1.6 are not.
        with safe_globals(STANDINS):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except FileNotFoundError:
        raise FileNotFoundError(f"shardd: {path} is not there") from None
    except pickle.UnpicklingError as e:
        cls = re.search(r"GLOBAL (\S+)", str(e))
        if cls:
            raise ValueError(
                f"shardd: {path} holds a {cls[1]}, and only data are read. If you trust the file, "
                "name the class to torch.serialization.add_safe_globals()") from None
        raise ValueError(f"shardd: {path} is no file of torch.save(): {_first(e)}") from None
    except Exception as e:
        raise ValueError(f"shardd: {path} is damaged, or no file of torch.save(): "
                         f"{_first(e)}") from None


def _first(e: BaseException) -> str:
    """The sentence of an error of torch.load(), without its advice to run what is in the file."""
    text = str(e).partition("WeightsUnpickler error: ")[2] or str(e)
    if text.startswith("Weights only load failed"):
        text = "its contents are no data"
    return text.strip().split("\n")[0][:200] or type(e).__name__


class _File:
    """The contents of one file, whose members are asked for with their types."""

    def __init__(self, path: str):
        self.path, self.root = path, load(path)
        self.check(isinstance(self.root, dict), "it has no members")

    def check(self, good: bool, what: str) -> None:
        if not good:
            raise ValueError(f"shardd: {self.path}: {what}")

    def get(self, *keys, of: type | tuple = object, otherwise: Any = ...) -> Any:
        x: Any = self.root
        for k in keys:
            try:
                x = x[k]
            except (KeyError, IndexError, TypeError):
                if otherwise is not ...:
                    return otherwise
                self.check(False, f"there is no {'.'.join(str(k) for k in keys)}")
        if x is None and otherwise is not ...:
            return otherwise
        self.check(isinstance(x, of), f"{'.'.join(str(k) for k in keys)} is a {type(x).__name__}")
        return x

    def flat(self, *keys) -> torch.Tensor:
        """A vector of numbers, all of which are in the file."""
        x = self.get(*keys, of=torch.Tensor)
        self.check(x.dim() == 1 and x.is_floating_point() and x.is_contiguous(),
                   f"{'.'.join(str(k) for k in keys)} is no vector of numbers")
        return x


def _shape(f: _File, name: Any, shape: Any) -> tuple[int, ...]:
    f.check(isinstance(name, str) and isinstance(shape, (tuple, list)) and
            all(isinstance(n, int) and 0 <= n < 2**44 for n in shape),
            f"param_shapes has {name!r} with shape {shape!r}")
    return tuple(shape)


class _Pieces(Mapping):
    """Tensors that are put together when somebody asks for them.

    where: name to its shape, and to a list of (vector, first, count) that hold it one after the
    other.
    """

    def __init__(self, where: dict[str, tuple[tuple[int, ...], list]]):
        self._where = where

    def shape(self, name: str) -> tuple[int, ...]:
        return self._where[name][0]

    def __getitem__(self, name: str) -> torch.Tensor:
        shape, parts = self._where[name]
        out, at = torch.empty(math.prod(shape)), 0
        for x, first, count in parts:
            out[at:at + count] = x[first:first + count]
            at += count
        return out.view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


class _Files(Mapping):
    """Tensors that lie in a file each: name to path, which is read when somebody asks for it."""

    def __init__(self, paths: dict[str, str], shapes: Mapping[str, tuple[int, ...]] | None = None):
        self._paths, self._shapes = paths, shapes or {}

    def __getitem__(self, name: str) -> torch.Tensor:
        path = self._paths[name]
        x = load(path)
        x = x.get("param") if isinstance(x, dict) else x
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.is_contiguous():
            raise ValueError(f"shardd: {path}: there is no tensor in it")
        want = self._shapes.get(name, tuple(x.shape))
        if x.numel() != math.prod(want):
            raise ValueError(f"shardd: {path}: the tensor has shape {tuple(x.shape)}, and the "
                             f"model's has {tuple(want)}")
        return x.float().view(want)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name] if name in self._shapes else tuple(self[name].shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def find(folder: str, tag: str | None = None, latest: str = "latest") -> str:
    """The folder of one checkpoint: `folder` itself, or the one in it that file `latest` names."""
    path = os.path.join(folder, latest)
    if tag is None and os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            tag = f.read(256).strip()
        if not TAG.fullmatch(tag):
            raise ValueError(f"shardd: {path} does not hold a tag")
    folder = os.path.join(folder, tag) if tag else folder
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"shardd: {folder} is not there")
    return folder


# --- ZeRO's partitions ---


def from_zero(folder: str, tag: str | None = None) -> Initial:
    """Masters, moments and step of a checkpoint that ZeRO stage 1, 2 or 3 saved."""
    folder = find(folder, tag)
    optim = _rank_files(folder)
    stage = int(optim[0].get("optimizer_state_dict", "zero_stage", of=int))
    optim[0].check(stage in (1, 2, 3), f"zero_stage is {stage}, and 1, 2 and 3 are read")
    models = _model_files(folder, stage, len(optim))
    m = models[0]
    m.check(not m.get("ds_autoep_layers", otherwise=None) and
            not any("expert" in n for n in os.listdir(folder)),
            "it is of a mixture of experts, whose parts lie on different ranks: make it a "
            "universal checkpoint with DeepSpeed's ds_to_universal first")
    shapes = [{n: _shape(m, n, s) for n, s in group.items()}
              for group in m.get("param_shapes", of=list)]
    names = [n for g in shapes for n in g]
    m.check(len(set(names)) == len(names), "param_shapes has a parameter twice")
    vectors = _vectors_12(optim, m, shapes) if stage < 3 else _vectors_3(optim, m, shapes)
    masters, moments, saved, steps = vectors
    optim[0].check(len(steps) <= 1, f"groups of parameters have made different numbers of steps "
                   f"({steps}), and a model in shardd has one")
    init = Initial(0, masters, moments)
    _about(init, m, saved, optim[0])
    _rest_of_model(init, models, stage)
    _count(init, m, next(iter(steps), 0))
    return init


def _count(init: Initial, m: _File, applied: int) -> None:
    """Adam's t is what the optimizer counted. DeepSpeed counts steps that were skipped, too."""
    init.applied = applied
    init.step = max(applied, int(m.get("global_steps", of=int, otherwise=0)))


def _rank_files(folder: str) -> list[_File]:
    found: dict[int, str] = {}
    for file in sorted(os.listdir(folder)):
        is_it = RANK.fullmatch(file)
        if not is_it:
            continue
        if int(is_it[2]) != 0:
            raise ValueError(f"shardd: {folder}/{file} is of a model that is cut into parts "
                             "(tensor or pipeline parallelism): make it a universal checkpoint "
                             "first")
        if int(is_it[1]) in found:
            raise ValueError(f"shardd: {folder} has two files of rank {int(is_it[1])}: {file} and "
                             f"{found[int(is_it[1])]}")
        found[int(is_it[1])] = file
    if not found:
        raise FileNotFoundError(f"shardd: {folder} has no zero_pp_rank_*_optim_states.pt: it is no "
                                "checkpoint of ZeRO stage 1, 2 or 3")
    files = [_File(os.path.join(folder, found[r])) for r in sorted(found)]
    count = files[0].get("optimizer_state_dict", "partition_count", of=(int, list))
    world = max(count) if isinstance(count, list) and count else count
    if sorted(found) != list(range(len(found))) or world != len(found):
        raise ValueError(f"shardd: {folder} has the files of ranks {sorted(found)}, and {world} "
                         "ranks saved it: some are missing, or are of another save")
    return files


def _model_files(folder: str, stage: int, world: int) -> list[_File]:
    if stage < 3:
        return [_File(os.path.join(folder, "mp_rank_00_model_states.pt"))]
    return [_File(os.path.join(folder, f"zero_pp_rank_{r}_mp_rank_00_model_states.pt"))
            for r in range(world)]


Vectors = tuple[_Pieces, dict[str, _Pieces], list, set]


def _vectors_12(optim: list[_File], m: _File, shapes: list[dict]) -> Vectors:
    """Stage 1 and 2: each group is one vector, cut into as many parts as there are ranks."""
    head = ("optimizer_state_dict",)
    base = optim[0].get(*head, "base_optimizer_state", of=(dict, list))
    path: tuple = ("base_optimizer_state",)
    if isinstance(base, dict):
        path += ("state",)
    saved = optim[0].get(*head, "base_optimizer_state", "param_groups", of=list, otherwise=[])
    pads = optim[0].get(*head, "param_alignment_paddings", of=list, otherwise=None)
    where: dict[str, dict] = {"master": {}}
    steps: set[int] = set()
    optim[0].check(len(optim[0].get(*head, "single_partition_of_fp32_groups", of=list)) ==
                   len(shapes), f"it has other groups than the {len(shapes)} of {m.path}")
    for g, group in enumerate(shapes):
        kinds = _moment_kinds(optim[0], (*head, *path, g), steps)
        for kind in ("master", *kinds):
            keys = (*head, "single_partition_of_fp32_groups", g) if kind == "master" else \
                (*head, *path, g, kind)
            ranks = [f.flat(*keys) for f in optim]
            numel = sum(x.numel() for x in ranks)
            at = 0
            for i, (name, shape) in enumerate(group.items()):
                n = math.prod(shape)
                optim[-1].check(at + n <= numel, f"group {g} of {kind} has {numel} numbers in all, "
                                f"and {name!r} ends at {at + n}")
                where.setdefault(kind, {})[name] = (shape, _cut(ranks, at, n))
                at += n
                if pads is not None:
                    pad = optim[0].get(*head, "param_alignment_paddings", g, i, of=int)
                    optim[0].check(0 <= pad < 2**32, f"a padding of {pad}")
                    at += pad
    masters = _Pieces(where.pop("master"))
    return masters, {k: _Pieces(w) for k, w in where.items()}, saved, steps


def _cut(ranks: Sequence[torch.Tensor], first: int, count: int) -> list:
    """Where `count` numbers from `first` on lie in vectors that follow each other."""
    parts, at, end = [], 0, first + count
    for x in ranks:
        low, high = max(first, at), min(end, at + x.numel())
        if low < high:
            parts.append((x, low - at, high - low))
        at += x.numel()
    return parts


def _moment_kinds(f: _File, keys: tuple, steps: set[int]) -> list[str]:
    state = f.get(*keys, of=dict, otherwise={})
    if "step" in state:
        step = state["step"]
        f.check(isinstance(step, (int, float)) or isinstance(step, torch.Tensor) and
                step.numel() == 1, f"step is {step!r}")
        steps.add(int(step))
    return [k for k, v in state.items() if isinstance(v, torch.Tensor) and v.dim() == 1]


def _vectors_3(optim: list[_File], m: _File, shapes: list[dict]) -> Vectors:
    """Stage 3: each parameter is cut into parts, and the parts of a rank follow each other."""
    head, world = ("optimizer_state_dict",), len(optim)
    for f in optim:
        for part in f.get(*head, "ds_zero_partition_groups", of=list, otherwise=[]):
            f.check(isinstance(part, dict) and part.get("partition_count") == world,
                    "its parameters are cut among different numbers of ranks")
    saved = optim[0].get(*head, "optimizer_state_dict", "param_groups", of=list)
    steps: set[int] = set()
    where: dict[str, dict] = {"master": {}}
    optim[0].check(len(optim[0].get(*head, "fp32_flat_groups", of=list)) == len(shapes),
                   f"it has other groups than the {len(shapes)} of {m.path}")
    for g, group in enumerate(shapes):
        kinds = _moment_kinds(optim[0], (*head, "optimizer_state_dict", "state", g), steps)
        for kind in ("master", *kinds):
            keys = (*head, "fp32_flat_groups", g) if kind == "master" else \
                (*head, "optimizer_state_dict", "state", g, kind)
            ranks = [f.flat(*keys) for f in optim]
            at = 0
            for name, shape in group.items():
                n, parts = math.prod(shape), []
                each = -(-n // world)
                for r, x in enumerate(ranks):
                    optim[r].check(at + each <= x.numel(), f"group {g} of {kind} has {x.numel()} "
                                   f"numbers, and the part of {name!r} ends at {at + each}")
                    count = max(0, min(each, n - r * each))
                    if count:
                        parts.append((x, at, count))
                where.setdefault(kind, {})[name] = (shape, parts)
                at += each
    masters = _Pieces(where.pop("master"))
    return masters, {k: _Pieces(w) for k, w in where.items()}, saved, steps


def _about(init: Initial, m: _File, saved: list, optim: _File) -> None:
    """Kind and groups of the optimizer."""
    config = optim.get("ds_config", of=dict, otherwise={}) or \
        m.get("ds_config", of=dict, otherwise={})
    said = config.get("optimizer") if isinstance(config.get("optimizer"), dict) else {}
    name, params = str(said.get("type", "")).lower(), said.get("params")
    params = params if isinstance(params, dict) else {}
    plain = name == "adam" and params.get("adam_w_mode") is False
    optim.check(all(isinstance(g, dict) for g in saved), "a group of its optimizer is no group")
    init.kind = kind_of(saved, set(init.moments), "adam" if plain else "adamw")
    init.groups = _groups(init, m, saved)


def _groups(init: Initial, m: _File, saved: list) -> list[Group]:
    shapes = m.get("param_shapes", of=list)
    out = []
    for g in saved:
        # In stage 3 a group of the optimizer is made of several groups of the file, in order.
        which = g.get("params") if len(shapes) != len(saved) else [len(out)]
        which = which if isinstance(which, list) else []
        names = [n for i in which if isinstance(i, int) and 0 <= i < len(shapes) for n in shapes[i]]
        out.append(Group(names, {k: g[k] for k in KINDS[init.kind or "adamw"]
                                 if isinstance(g.get(k), (int, float, tuple, list))}))
    return out if sorted(n for g in out for n in g.names) == sorted(init.masters) else \
        [Group(list(init.masters), out[0].settings if out else {})]


def _rest_of_model(init: Initial, models: list[_File], stage: int) -> None:
    """Buffers, frozen parameters, names of tied ones, and what the user and schedules saved."""
    m = models[0]
    module = m.get("module", of=dict)
    names = m.get("buffer_names", of=list, otherwise=[])
    init.buffers = {n: module[n] for n in names if isinstance(module.get(n), torch.Tensor)}
    init.tied = {str(a): str(b)
                 for a, b in dict(m.get("shared_params", of=(dict, list), otherwise={})).items()}
    init.image, init.own_image = images({
        n: (module[n].dtype, module[n].numel()) for n in init.masters
        if isinstance(module.get(n), torch.Tensor)})
    frozen = {}
    for name, shape in m.get("frozen_param_shapes", of=dict, otherwise={}).items():
        shape = _shape(m, name, shape)
        parts = [f.get("frozen_param_fragments", name, of=torch.Tensor).reshape(-1)
                 for f in (models if stage == 3 else models[:1])]
        m.check(sum(x.numel() for x in parts) >= math.prod(shape),
                f"the frozen parameter {name!r} is not whole")
        frozen[name] = torch.cat(parts)[:math.prod(shape)].view(shape)
    init.frozen = frozen
    init.extra = {k: m.get(k, otherwise=None) for k in (
        "global_steps", "global_samples", "skipped_steps", "lr_scheduler", "dp_world_size")}
    init.extra["client_state"] = {k: v for k, v in m.root.items() if k not in KNOWN}


# --- universal ---


def from_universal(folder: str, tag: str | None = None) -> Initial:
    """Masters, moments and step of a universal checkpoint."""
    if not os.path.isdir(os.path.join(folder, "zero")):
        if tag is not None or os.path.isfile(os.path.join(folder, "latest_universal")):
            folder = find(folder, tag, "latest_universal")
    zero = os.path.join(folder, "zero")
    if not os.path.isdir(zero):
        raise FileNotFoundError(f"shardd: {folder} has no folder zero: make it a universal "
                                "checkpoint with DeepSpeed's ds_to_universal.py first")
    paths: dict[str, dict[str, str]] = {}
    for where, _, files in os.walk(zero):
        name = os.path.relpath(where, zero)
        for file in files if name != "." else ():
            if file.endswith(".pt"):
                paths.setdefault(file[:-3], {})[name] = os.path.join(where, file)
    if not paths.get("fp32"):
        raise FileNotFoundError(f"shardd: {zero} has no fp32.pt of any parameter")
    m = next((_File(p) for p in (os.path.join(folder, f) for f in (
        "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"))
        if os.path.isfile(p)), None)
    shapes = {} if m is None else {n: _shape(m, n, s) for g in m.get(
        "param_shapes", of=list, otherwise=[]) for n, s in g.items()}
    trained = set(shapes) or set(paths["fp32"])
    missing = sorted(trained - set(paths["fp32"]))
    if missing:
        raise FileNotFoundError(f"shardd: {zero}/{missing[0]}/fp32.pt is not there")
    ordered = [n for n in shapes] or sorted(trained)
    steps = paths.pop("step", {})
    init = Initial(0, _Files({n: paths["fp32"][n] for n in ordered}, shapes),
                   {k: _Files({n: p[n] for n in ordered if n in p}, shapes)
                    for k, p in sorted(paths.items()) if k != "fp32"})
    _about_universal(init, zero, m, steps)
    return init


def _about_universal(init: Initial, zero: str, m: _File | None, paths: dict[str, str]) -> None:
    path = os.path.join(zero, "optimizer_state.pt")
    saved: list = []
    steps = {_step(paths[n], load(paths[n])) for n in init.masters if n in paths}
    if os.path.isfile(path):
        f = _File(path)
        saved = f.get("param_groups", of=list, otherwise=[])
        inner = f.get("optimizer_state_dict", "state", 0, "step", otherwise=None)
        if inner is not None and not steps:
            steps.add(_step(path, inner))
        if m is not None:
            _about(init, m, saved, f)
    if len(steps) > 1:
        raise ValueError(f"shardd: parameters in {zero} have made different numbers of steps "
                         f"({sorted(steps)}), and a model in shardd has one")
    if init.kind is None:
        init.kind = kind_of(saved, set(init.moments))
    init.step = init.applied = next(iter(steps), 0)
    if m is not None:
        _rest_of_model(init, [m], 1)
        _count(init, m, init.step)


def _step(path: str, x: Any) -> int:
    x = x.get("param") if isinstance(x, dict) else x
    if isinstance(x, torch.Tensor) and x.numel() == 1 or isinstance(x, (int, float)):
        return int(x)
    raise ValueError(f"shardd: {path}: there is no step in it")


# --- and back ---


def _named(init: Initial) -> list[Group]:
    trained = [n for n in init.masters if n not in init.frozen]
    listed = [n for g in init.groups for n in g.names]
    return init.groups if sorted(listed) == sorted(trained) else [Group(trained, {})]


def _saved_groups(init: Initial, kind: str, each_has: Sequence[list[int]]) -> list[dict]:
    return [{**KINDS[kind], **TORCH_DEFAULTS[kind], **g.settings, "params": list(params)}
            for g, params in zip(_named(init), each_has)]


def _model_states(init: Initial, ranks: int, whole: bool) -> dict:
    """The file of the model, with the members that DeepSpeed's loaders and tools look at."""
    dtype = init.image or torch.float32
    module: dict[str, torch.Tensor] = OrderedDict()
    for n in init.masters if whole else ():
        module[n] = init.masters[n].to(dtype)
    module.update({n: x.to(dtype) for n, x in init.frozen.items()})
    module.update({a: module[b] for a, b in init.tied.items() if b in module})
    module.update(init.buffers)
    step = init.step
    extra = {k: v for k, v in init.extra.items() if v is not None}
    return {
        "module": module, "buffer_names": list(init.buffers), "optimizer": None,
        "param_shapes": [OrderedDict((n, torch.Size(init.shape(n))) for n in g.names)
                         for g in _named(init)],
        "frozen_param_shapes": OrderedDict((n, x.shape) for n, x in init.frozen.items()),
        "frozen_param_fragments": OrderedDict(init.frozen.items()),
        "shared_params": dict(init.tied), "lr_scheduler": extra.get("lr_scheduler"),
        "data_sampler": None, "random_ltd": None,
        "skipped_steps": int(extra.get("skipped_steps", step - (init.applied or step))),
        "global_steps": int(extra.get("global_steps", step)),
        "global_samples": int(extra.get("global_samples", 0)),
        "dp_world_size": ranks, "mp_world_size": 1, "ds_config": {}, "ds_version": WRITES_AS,
        **extra.get("client_state", {})}


def _save(path: str, x: Any) -> None:
    """A whole file or none, on the disk when this returns."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as f:
        torch.save(x, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".part", path)


def _begin(out: str) -> tuple[str, str]:
    """Makes the draft of a folder that is not there yet. Returns both paths."""
    out = os.path.abspath(out)
    if os.path.lexists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise FileExistsError(f"shardd: {out} is there: choose another name, or remove it")
    draft = os.path.join(os.path.dirname(out), f".{os.path.basename(out)}.tmp")
    os.makedirs(draft)  # FileExistsError where another one writes, or was killed.
    return out, draft


def _end(draft: str, out: str, latest: str) -> None:
    if os.path.isdir(out):
        os.rmdir(out)  # It was empty.
    os.rename(draft, out)
    path = os.path.join(os.path.dirname(out), latest)
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write(os.path.basename(out))
    os.replace(path + ".part", path)


class _Tick:
    def __init__(self, init: Initial, progress: Progress | None):
        kinds = 1 + len(init.moments)
        self._all = 4 * kinds * sum(math.prod(init.shape(n)) for n in init.masters)
        self._done, self._call = 0, progress

    def __call__(self, numel: int) -> None:
        self._done += 4 * numel
        if self._call is not None:
            self._call(min(self._done, self._all), self._all)


def _drop(draft: str) -> None:
    import shutil
    shutil.rmtree(draft, ignore_errors=True)


def _vector(tensors: Mapping[str, torch.Tensor], init: Initial, names: Sequence[str], pad: int,
            tick: _Tick) -> torch.Tensor:
    sizes = [math.prod(init.shape(n)) for n in names]
    out, at = torch.zeros(sum(sizes) + pad), 0
    for n, size in zip(names, sizes):
        if n in tensors:
            out[at:at + size] = tensors[n].reshape(-1)
        at += size
        tick(size)
    return out


def to_zero(init: Initial, out: str, ranks: int = 1, stage: int = 2,
            progress: Progress | None = None) -> None:
    """Writes a folder as ZeRO stage 1 or 2 saves it with so many ranks.

    out: the folder of the checkpoint, as DIR/global_step3. DIR/latest names it. A group's vectors
    are in memory while they are written.
    """
    if stage not in (1, 2) or ranks < 1:
        raise ValueError(f"shardd: stage {stage} with {ranks} ranks: stages 1 and 2 are written, "
                         "and for 3 a universal checkpoint is")
    kind, groups, tick = init.kind or "adamw", _named(init), _Tick(init, progress)
    applied = init.step if init.applied is None else init.applied
    out, draft = _begin(out)
    try:
        flat: list[dict[str, torch.Tensor]] = []
        valid: list[int] = []
        for g in groups:
            numel = sum(math.prod(init.shape(n)) for n in g.names)
            pad = -numel % (2 * ranks)  # DeepSpeed aligns each part to two numbers.
            valid.append(numel)
            flat.append({"fp32": _vector(init.masters, init, g.names, pad, tick), **{
                k: _vector(m, init, g.names, pad, tick) for k, m in init.moments.items()}})
        _save(os.path.join(draft, "mp_rank_00_model_states.pt"), _model_states(init, ranks, True))
        for r in range(ranks):
            parts = [{k: x.chunk(ranks)[r].clone() for k, x in f.items()} for f in flat]
            pads = [_pad_of(f["fp32"].numel() // ranks, r, n) for f, n in zip(flat, valid)]
            state = {i: {**({} if kind == "sgd" else {"step": torch.tensor(float(applied))}),
                         **{k: x for k, x in p.items() if k != "fp32"}}
                     for i, p in enumerate(parts)}
            _save(os.path.join(draft, f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt"), {
                "optimizer_state_dict": {
                    "dynamic_loss_scale": False, "overflow": False,
                    "base_optimizer_state": {"state": state, "param_groups": _saved_groups(
                        init, kind, [[i] for i in range(len(groups))])},
                    "single_partition_of_fp32_groups": [
                        p["fp32"][:p["fp32"].numel() - pad].clone() for p, pad in zip(parts, pads)],
                    "zero_stage": stage, "group_paddings": pads,
                    "param_alignment_paddings": [[0] * len(g.names) for g in groups],
                    "partition_count": [ranks] * len(groups), "ds_version": WRITES_AS},
                "ds_config": {}, "ds_version": WRITES_AS})
        _end(draft, out, "latest")
    except BaseException:
        _drop(draft)
        raise


def _pad_of(each: int, rank: int, valid: int) -> int:
    """How many numbers at the end of a rank's part are no parameters."""
    return each - max(0, min(each, valid - rank * each))


def to_universal(init: Initial, out: str, progress: Progress | None = None) -> None:
    """Writes a universal checkpoint, which DeepSpeed loads in every stage with any number of ranks.

    out: the folder of the checkpoint, as DIR/global_step3_universal. DIR/latest_universal names it.
    """
    kind, groups, tick = init.kind or "adamw", _named(init), _Tick(init, progress)
    step = torch.tensor(float(init.step if init.applied is None else init.applied))
    out, draft = _begin(out)
    try:
        for name in init.masters:
            folder = os.path.join(draft, "zero", name)
            if not os.path.abspath(folder).startswith(os.path.join(draft, "zero") + os.sep):
                raise ValueError(f"shardd: {name!r} cannot be the name of a folder")
            _save(os.path.join(folder, "fp32.pt"), {"param": init.masters[name].clone()})
            tick(math.prod(init.shape(name)))
            for k, m in init.moments.items():
                if name in m:
                    _save(os.path.join(folder, k + ".pt"), {"param": m[name].clone()})
                tick(math.prod(init.shape(name)))
            if kind != "sgd":
                _save(os.path.join(folder, "step.pt"), step)
        for name, x in init.frozen.items():
            _save(os.path.join(draft, "zero", name, "fp32.pt"), {"param": x.float()})
        saved = _saved_groups(init, kind, [[i] for i in range(len(groups))])
        _save(os.path.join(draft, "zero", "optimizer_state.pt"), {
            "dynamic_loss_scale": False, "overflow": False, "ds_version": WRITES_AS,
            "param_groups": saved,
            "optimizer_state_dict": {"state": {0: {"step": step}}, "param_groups": saved}})
        states = _model_states(init, 1, True)
        _save(os.path.join(draft, "mp_rank_00_model_states.pt"), states)
        # Stage 3 looks for the same under another name.
        _save(os.path.join(draft, "zero_pp_rank_0_mp_rank_00_model_states.pt"), states)
        _end(draft, out, "latest_universal")
    except BaseException:
        _drop(draft)
        raise


def client_file(init: Initial) -> bytes:
    """What load_checkpoint() of shardd.deepspeed reads beside the weights."""
    extra = {k: v for k, v in init.extra.items() if v is not None}
    settings = [g.settings for g in init.groups]
    state = {"client_state": extra.get("client_state", {}),
             "global_steps": int(extra.get("global_steps", init.step)),
             "global_samples": int(extra.get("global_samples", 0)),
             "skipped_steps": int(extra.get("skipped_steps", 0)),
             "micro_steps": 0, "world_size": int(extra.get("dp_world_size", 1)),
             "lr_scheduler": extra.get("lr_scheduler"), "param_groups": settings,
             "loss_scale": 1.0, "buffers": {n: init.buffers[n] for n in init.buffers},
             "frozen": {n: init.frozen[n] for n in init.frozen},
             "tied": dict(init.tied)}
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def take_client_file(init: Initial, path: str) -> None:
    """The other way: what save_checkpoint() of shardd.deepspeed wrote beside the weights."""
    f = _File(path)
    init.buffers = f.get("buffers", of=dict, otherwise={})
    init.frozen = f.get("frozen", of=dict, otherwise={})
    init.tied = f.get("tied", of=dict, otherwise={})
    init.extra = {k: f.get(k, otherwise=None) for k in (
        "global_steps", "global_samples", "skipped_steps", "lr_scheduler", "client_state")}
    for g, saved in zip(init.groups, f.get("param_groups", of=list, otherwise=[])):
        if isinstance(saved, dict) and isinstance(saved.get("lr"), (int, float)):
            g.settings["lr"] = float(saved["lr"])
