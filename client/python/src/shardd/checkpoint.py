# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as files: reading those of shardd without a daemon, and taking over those of others.

A checkpoint of shardd is a folder of safetensors files and a manifest (proto/ckpt/README.md). Here
it is read by memory maps, tensor by tensor, and every piece is compared with its checksum before a
byte of it is believed. Initial is what a model begins with: fp32 masters, moments and a step. It
comes from a checkpoint of shardd, from a state_dict of torch.optim, or from DeepSpeed's universal
checkpoint, and Optimizer(init=...) writes it into a new model. The other way, export_torch() and
export_universal() give a model in shardd to torch and to DeepSpeed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import os
import re
import struct
from typing import Iterator, Mapping

import torch
import xxhash

FORMAT, VERSION = "shardd checkpoint", 1
TRAILER = 26            # '"sum":"', 16 hex digits, '"}' and a line end.
MANIFEST_MAX = 64 << 20
SPAN = re.compile(r"^(?P<kind>[a-z_]+)/(?P<name>.*)\[(?P<first>\d+):(?P<end>\d+)\]$")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Damaged(RuntimeError):
    """A file of a checkpoint is not what was written. The text has path and offset."""


def latest(folder: str) -> str:
    """The tag of the newest checkpoint in a folder of checkpoints."""
    path = os.path.join(folder, "latest")
    try:
        with open(path, encoding="utf-8") as f:
            tag = f.read(256).strip()
    except FileNotFoundError:
        found = [(_step(os.path.join(folder, t)), t) for t in os.listdir(folder)
                 if not t.startswith(".")
                 and os.path.isfile(os.path.join(folder, t, "manifest.json"))]
        if not found:
            raise FileNotFoundError(f"shardd: there is no checkpoint in {folder}") from None
        return max(found)[1]
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", tag):
        raise Damaged(f"shardd: {path} does not hold a tag")
    return tag


def _step(folder: str) -> int:
    return int(_manifest(folder)["step"])


def _manifest(folder: str) -> dict:
    path = os.path.join(folder, "manifest.json")
    if os.path.getsize(path) > MANIFEST_MAX:
        raise Damaged(f"shardd: {path} is larger than a manifest can be")
    with open(path, "rb") as f:
        raw = f.read()
    head, end = raw[:-TRAILER], raw[-TRAILER:]
    want = b'"sum":"' + xxhash.xxh3_64_hexdigest(head).encode() + b'"}\n'
    if end != want:
        raise Damaged(f"shardd: {path} is damaged: its last member is not the sum of the rest")
    m = json.loads(raw)
    if (m.get("format"), m.get("version")) != (FORMAT, VERSION):
        raise Damaged(f"shardd: {path} has format {m.get('format')!r}, version "
                      f"{m.get('version')!r}")
    return m


class _Part:
    """One file of a checkpoint, mapped. Its pieces are compared with their sums when first used."""

    def __init__(self, folder: str, f: dict):
        self.path = os.path.join(folder, os.path.basename(f["name"]))
        self._piece, self._sums = int(f["piece_bytes"]), f["sums"]
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != f["bytes"]:
                raise Damaged(f"shardd: {self.path} has {size} bytes, and the manifest says "
                              f"{f['bytes']}")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if self._piece < 1 or len(self._sums) != 16 * math.ceil(size / self._piece):
            raise Damaged(f"shardd: the manifest does not have the sums of {self.path}")
        self._good = bytearray(len(self._sums) // 16)
        self._believe(0, 8)
        (length,) = struct.unpack("<Q", self._map[:8])
        if length > size - 8:
            raise Damaged(f"shardd: {self.path}: a header of {length} bytes")
        self._believe(0, 8 + length)
        self.header = json.loads(self._map[8:8 + length])
        self._begin = 8 + length

    def _believe(self, first: int, end: int) -> None:
        for i in range(first // self._piece, math.ceil(end / self._piece)):
            if not self._good[i]:
                piece = self._map[i * self._piece:(i + 1) * self._piece]
                if xxhash.xxh3_64_hexdigest(piece) != self._sums[16 * i:16 * i + 16]:
                    raise Damaged(f"shardd: {self.path} is damaged in bytes {i * self._piece} to "
                                  f"{i * self._piece + len(piece)}")
                self._good[i] = 1

    def data(self, entry: dict) -> memoryview:
        """The bytes of an entry of the header."""
        first, end = (self._begin + int(x) for x in entry["data_offsets"])
        if not self._begin <= first <= end <= len(self._map):
            raise Damaged(f"shardd: {self.path}: an entry beyond its end")
        self._believe(first, end)
        return memoryview(self._map)[first:end]


class Checkpoint(Mapping):
    """A checkpoint of shardd: checkpoint[name] is the fp32 master of a tensor.

    folder: a folder of checkpoints. tag: which one; default: the newest. Raises FileNotFoundError,
    and Damaged where a checksum does not agree.
    """

    def __init__(self, folder: str, tag: str | None = None):
        if tag is None and os.path.isfile(os.path.join(folder, "manifest.json")):
            folder, tag = os.path.split(os.path.abspath(folder))
        self.tag = tag or latest(folder)
        self.folder = os.path.join(folder, self.tag)
        self.manifest = _manifest(self.folder)
        self.step = int(self.manifest["step"])
        self.applied = int(self.manifest["applied"])
        self.kinds: list[str] = list(self.manifest["kinds"])
        self.dtype = DTYPES.get(str(self.manifest["image"]), torch.float32)
        self._shapes = {t["name"]: tuple(t["shape"]) for t in self.manifest["tensors"]}
        self._frozen = {t["name"] for t in self.manifest["tensors"] if t.get("flags", 0) & 1}
        self._where: dict[tuple[str, str], list] = {}
        for f in self.manifest["files"]:
            part = _Part(self.folder, f)
            for entry, what in part.header.items():
                span = SPAN.match(entry)
                if span and entry != "__metadata__":
                    key = (span["kind"], span["name"])
                    self._where.setdefault(key, []).append(
                        (int(span["first"]), int(span["end"]), part, what))

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.read(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._shapes[name]

    def moments(self) -> list[str]:
        """The kinds beside the masters, as "exp_avg"."""
        return [k for k in self.kinds if k != "master"]

    def read(self, name: str, kind: str = "master",
             dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor as it was saved, in a dtype. A frozen one has no moments: KeyError."""
        shape = self._shapes[name]
        numel = math.prod(shape)
        if kind not in self.kinds or kind != "master" and name in self._frozen:
            raise KeyError(f"{kind} of {name}")
        out, at = torch.empty(numel, dtype=dtype), 0
        for first, end, part, entry in sorted(self._where.get((kind, name), []),
                                              key=lambda w: w[0]):
            raw = part.data(entry)
            if first != at or end > numel or len(raw) != 4 * (end - first):
                raise Damaged(f"shardd: {part.path}: elements {first} to {end} of {kind} of {name}")
            if end > first:
                out[first:end] = torch.frombuffer(raw, dtype=torch.float32)
            at = end
        if at != numel:
            raise Damaged(f"shardd: {self.folder}: elements {at} to {numel} of {kind} of {name} "
                          "are in no file")
        return out.view(shape)


def from_checkpoint(dir: str, tag: str | None = None, dtype: torch.dtype | None = None,
                    map_location: str = "cpu") -> dict[str, torch.Tensor]:
    """The weights in a checkpoint as a state dict, without a daemon.

    dtype: of the weights; default: what the model was trained in. Give torch.float32 for the
    masters. A tied parameter is there under its first name: load with strict=False.
    """
    c = Checkpoint(dir, tag)
    return {name: c.read(name, dtype=dtype or c.dtype).to(map_location) for name in c}


def to_safetensors(dir: str, out: str, tag: str | None = None,
                   dtype: torch.dtype | None = None) -> None:
    """Writes the weights in a checkpoint as one safetensors file, as Hugging Face reads it."""
    from safetensors.torch import save_file
    save_file(from_checkpoint(dir, tag, dtype), out, metadata={"format": "pt"})


# --- what a model begins with ---


@dataclasses.dataclass
class Initial:
    """What a new model in shardd begins with, by names of parameters.

    step: training begins with the one after it; it is also Adam's t.
    masters: fp32, or empty: then the model's own parameters count.
    moments: kind ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum") to tensors by name.
    """

    step: int = 0
    masters: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    moments: dict[str, Mapping[str, torch.Tensor]] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_shardd(cls, dir: str, tag: str | None = None) -> "Initial":
        """Of a checkpoint of shardd, for a model of another name, world or settings."""
        c = Checkpoint(dir, tag)
        return cls(c.step, c, {k: _Kind(c, k) for k in c.moments()})

    @classmethod
    def from_torch(cls, model: torch.nn.Module, state: Mapping) -> "Initial":
        """Of optimizer.state_dict() of torch.optim, for the parameters of `model`."""
        params = [(n, p) for n, p in model.named_parameters()]
        packed = [i for g in state["param_groups"] for i in g["params"]]
        named = [n for g in state["param_groups"] for n in g.get("param_names", [])]
        if len(named) != len(packed):
            trained = [n for n, p in params]
            if len(trained) != len(packed):
                trained = [n for n, p in params if p.requires_grad]
            if len(trained) != len(packed):
                raise ValueError(f"shardd: the state has {len(packed)} parameters, and the model "
                                 f"has {len(params)}")
            named = trained
        shapes = {n: p.shape for n, p in params}
        moments: dict[str, dict[str, torch.Tensor]] = {}
        steps = {0}
        for name, i in zip(named, packed):
            for key, x in state["state"].get(i, {}).items():
                if key == "step":
                    steps.add(int(x))
                elif isinstance(x, torch.Tensor) and x.shape == shapes.get(name):
                    moments.setdefault(key, {})[name] = x
                elif x is not None and key not in ("max_exp_avg_sq",):
                    raise ValueError(f"shardd: {key} of {name!r} has shape {tuple(x.shape)}, and "
                                     f"the parameter {tuple(shapes.get(name, ()))}")
        if len(steps) > 2:
            raise ValueError(f"shardd: parameters of this state have made different numbers of "
                             f"steps ({sorted(steps)[1:]}), and a model in shardd has one")
        return cls(max(steps), {}, moments)

    @classmethod
    def from_universal(cls, folder: str) -> "Initial":
        """Of a universal checkpoint of DeepSpeed: folder/zero/NAME/{fp32,exp_avg,exp_avg_sq}.pt."""
        zero = os.path.join(folder, "zero")
        if not os.path.isdir(zero):
            raise FileNotFoundError(f"shardd: {folder} has no folder zero: make it a universal "
                                    "checkpoint with DeepSpeed's ds_to_universal.py first")
        masters, moments, step = {}, {"exp_avg": {}, "exp_avg_sq": {}}, 0
        for name in sorted(os.listdir(zero)):
            for kind, into in (("fp32", masters), ("exp_avg", moments["exp_avg"]),
                               ("exp_avg_sq", moments["exp_avg_sq"])):
                path = os.path.join(zero, name, kind + ".pt")
                if os.path.isfile(path):
                    x = torch.load(path, weights_only=True)
                    into[name] = x["param"] if isinstance(x, dict) else x
            path = os.path.join(zero, name, "step.pt")
            if os.path.isfile(path):
                x = torch.load(path, weights_only=True)
                step = max(step, int(x["param"] if isinstance(x, dict) else x))
        if not masters:
            raise FileNotFoundError(f"shardd: {zero} has no fp32.pt of any parameter")
        return cls(step, masters, {k: v for k, v in moments.items() if v})


class _Kind(Mapping):
    """The tensors of one kind in a checkpoint, read when they are asked for."""

    def __init__(self, c: Checkpoint, kind: str):
        self._c, self._kind = c, kind

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._c.read(name, self._kind)

    def __iter__(self) -> Iterator[str]:
        return (n for n in self._c if n not in self._c._frozen)

    def __len__(self) -> int:
        return len(self._c) - len(self._c._frozen)


# --- and what a model gives to others ---


def export_torch(opt) -> dict:
    """The state of a model in shardd as state_dict() of the same optimizer of torch, to load there.

    It holds copies of all moments in this process: 8 bytes per parameter for AdamW.
    """
    ids, groups = {}, []
    for g in opt.param_groups:
        for p in g["params"]:
            ids.setdefault(id(p), len(ids))
        groups.append({**{k: v for k, v in g.items() if k not in ("params", "param_names")},
                       "params": [ids[id(p)] for p in g["params"]]})
    state = {}
    for row in opt._rows:
        moments = {k: opt.read(row.param, k) for k in opt._moments()}
        if opt.kind == "sgd":
            state[ids[id(row.param)]] = moments
        else:
            state[ids[id(row.param)]] = {"step": torch.tensor(float(opt.global_step)), **moments}
    return {"state": state, "param_groups": groups}


def export_universal(dir: str, out: str, tag: str | None = None) -> None:
    """Writes a checkpoint of shardd as a universal checkpoint of DeepSpeed: out/zero/NAME/*.pt."""
    c = Checkpoint(dir, tag)
    for name in c:
        folder = os.path.join(out, "zero", name)
        os.makedirs(folder, exist_ok=True)
        torch.save({"param": c.read(name)}, os.path.join(folder, "fp32.pt"))
        for kind in c.moments():
            if name not in c._frozen:
                torch.save({"param": c.read(name, kind)}, os.path.join(folder, kind + ".pt"))
        torch.save({"param": torch.tensor(float(c.applied))}, os.path.join(folder, "step.pt"))
    with open(os.path.join(out, "latest_universal"), "w", encoding="utf-8") as f:
        f.write(c.tag + "\n")
