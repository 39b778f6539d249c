# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as files: reading those of shardd without a daemon, and taking over those of others.

A checkpoint of shardd is a folder of safetensors files and a manifest (proto/ckpt/README.md). Here
it is read by memory maps, tensor by tensor, and every piece is compared with its checksum before a
byte of it is believed. Initial is what a model begins with: fp32 masters, moments and a step. It
comes from a checkpoint of shardd, from a state_dict of torch.optim (torch_state.py), or from
checkpoints of DeepSpeed (zero_files.py), and Optimizer(init=...) writes it into a new model.
folder.py writes it as a checkpoint of shardd.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import mmap
import os
import pickle
import re
import struct
from typing import Iterator, Mapping, NamedTuple

import torch
import xxhash

FORMAT, VERSION = "shardd checkpoint", 1
TRAILER = 26            # '"sum":"', 16 hex digits, '"}' and a line end.
MANIFEST_MAX = 64 << 20
SPAN = re.compile(r"^(?P<kind>[a-z_]+)/(?P<name>.*)\[(?P<first>\d+):(?P<end>\d+)\]$")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# In the flags of a tensor whose dtype is not the model's.
IMAGE_FLAGS = {1 << 8: torch.float32, 2 << 8: torch.bfloat16, 3 << 8: torch.float16}
# How torch calls the moments that the files of an optimizer call otherwise.
TORCH_NAMES = {"adagrad": {"exp_avg_sq": "sum"}, "sgd": {"momentum": "momentum_buffer"}}


class Damaged(RuntimeError):
    """A file of a checkpoint is not what was written. The text has path and offset."""


def enum_member(of, name: str):
    """In place of getattr(), as which some releases of Python (3.11.2) pickle a member of an Enum.

    Raises pickle.UnpicklingError for anything else that getattr() would give.
    """
    if isinstance(of, enum.EnumMeta) and name in of.__members__:
        return of[name]
    raise pickle.UnpicklingError(f"it asks for {name!r} of {str(of)[:80]}, and only data are read")


enum_member.__module__, enum_member.__qualname__ = "builtins", "getattr"  # As torch looks for it.


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
            named = sorted(t for t in os.listdir(folder)
                           if os.path.isfile(os.path.join(folder, t, "latest")))
            there = f". There are some in its folders {', '.join(named[:5])}" if named else ""
            raise FileNotFoundError(f"shardd: there is no checkpoint in {folder}{there}") from None
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

    def count(self, entry: dict) -> int:
        """How many fp32 elements an entry of the header has."""
        first, end = self._span(entry)
        return (end - first) // 4 if (end - first) % 4 == 0 else -1

    def data(self, entry: dict, first: int, end: int) -> memoryview:
        """Bytes first to end of an entry of the header. At least one."""
        begin, _ = self._span(entry)
        self._believe(begin + first, begin + end)
        return memoryview(self._map)[begin + first:begin + end]

    def _span(self, entry: dict) -> tuple[int, int]:
        try:
            first, end = (self._begin + int(x) for x in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise Damaged(f"shardd: {self.path}: an entry without data_offsets") from None
        if not self._begin <= first <= end <= len(self._map):
            raise Damaged(f"shardd: {self.path}: an entry beyond its end")
        return first, end


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
        self._where: dict[tuple[str, str], list] = {}
        try:
            self._take()
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
            raise Damaged(f"shardd: {self.folder}: a member of its manifest or of a header is none "
                          f"that there is: {type(e).__name__}: {e}") from None

    def _take(self) -> None:
        m = self.manifest
        self.step, self.applied = int(m["step"]), int(m["applied"])
        self.kinds: list[str] = list(m["kinds"])
        self.dtype = DTYPES.get(str(m["image"]), torch.float32)
        self._shapes = {t["name"]: tuple(int(n) for n in t["shape"]) for t in m["tensors"]}
        if len(self._shapes) != len(m["tensors"]):
            raise ValueError("two tensors have one name")
        self._frozen = {t["name"] for t in m["tensors"] if t.get("flags", 0) & 1}
        self.own_dtypes = {t["name"]: IMAGE_FLAGS[t["flags"] & 3 << 8] for t in m["tensors"]
                           if t.get("flags", 0) & 3 << 8}
        for f in m["files"]:
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

    @property
    def kind(self) -> str:
        """The optimizer: "adamw", "adam", "sgd", "adagrad" or "lion"."""
        return str(self.manifest["optimizer"])

    def groups(self) -> list["Group"]:
        """The groups of parameters, with those hyper-parameters that were said.

        lr is what the definition said. Where a schedule of the trainers changed it, only they know.
        """
        out: list[Group] = []
        heads = self.manifest["groups"] or [{"name": "", "settings": ""}]
        common = _words(self.manifest["settings"])
        for i, head in enumerate(heads):
            own = _words(head["settings"])
            prefix = f"{head['name']}/" if head["name"] else "/"
            own.update({k[len(prefix):]: v for k, v in common.items() if k.startswith(prefix)})
            words = {**{k: v for k, v in common.items() if "/" not in k}, **own}
            names = [t["name"] for t in self.manifest["tensors"]
                     if t["group"] == i and t["name"] not in self._frozen]
            out.append(Group(names, _torch_words(words)))
        return out

    def read(self, name: str, kind: str = "master",
             dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor as it was saved, in a dtype. A frozen one has no moments: KeyError."""
        shape = self._shapes[name]
        return self.read_range(name, kind, 0, math.prod(shape), dtype).view(shape)

    def read_range(self, name: str, kind: str, first: int, end: int,
                   dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Elements first to end of a tensor, row after row. Only what they lie in is read."""
        numel = math.prod(self._shapes[name])
        if kind not in self.kinds or kind != "master" and name in self._frozen:
            raise KeyError(f"{kind} of {name}")
        if not 0 <= first <= end <= numel:
            raise IndexError(f"shardd: elements {first} to {end} of {name!r}, which has {numel}")
        where, at = sorted(self._where.get((kind, name), []), key=lambda w: w[0]), 0
        for a, b, part, entry in where:
            if a != at or b > numel or part.count(entry) != b - a:
                raise Damaged(f"shardd: {part.path}: elements {a} to {b} of {kind} of {name}")
            at = b
        if at != numel:
            raise Damaged(f"shardd: {self.folder}: elements {at} to {numel} of {kind} of {name} "
                          "are in no file")
        out = torch.empty(end - first, dtype=dtype)
        for a, b, part, entry in where:
            low, high = max(a, first), min(b, end)
            if low < high:
                raw = part.data(entry, 4 * (low - a), 4 * (high - a))
                out[low - first:high - first] = torch.frombuffer(raw, dtype=torch.float32)
        return out


def _words(settings: str) -> dict[str, str]:
    return dict(w.partition("=")[::2] for w in str(settings).split())


def _torch_words(words: dict[str, str]) -> dict:
    """Settings of a group under the names that torch has, as numbers."""
    out: dict = {}
    for key in ("eps", "weight_decay", "momentum"):
        if key in words:
            out[key] = float(words[key])
    if "betas" in words:
        out["betas"] = tuple(float(b) for b in words["betas"].split(","))
    elif "beta1" in words and "beta2" in words:
        out["betas"] = (float(words["beta1"]), float(words["beta2"]))
    if "nesterov" in words:
        out["nesterov"] = words["nesterov"] in ("1", "yes")
    if "lr" in words:
        out["lr"] = float(words["lr"]) * float(words.get("lr_factor", 1))
    return out


def from_checkpoint(dir: str, tag: str | None = None, dtype: torch.dtype | None = None,
                    map_location: str = "cpu") -> dict[str, torch.Tensor]:
    """The weights in a checkpoint as a state dict, without a daemon.

    dtype: of the weights; default: what the model was trained in. Give torch.float32 for the
    masters. A tied parameter is there under its first name: load with strict=False.
    """
    c = Checkpoint(dir, tag)
    return {name: c.read(name, dtype=dtype or c.own_dtypes.get(name, c.dtype)).to(map_location)
            for name in c}


def to_safetensors(dir: str, out: str, tag: str | None = None,
                   dtype: torch.dtype | None = None) -> None:
    """Writes the weights in a checkpoint as one safetensors file, as Hugging Face reads it."""
    from safetensors.torch import save_file
    save_file(from_checkpoint(dir, tag, dtype), out, metadata={"format": "pt"})


# --- what a model begins with ---


class Group(NamedTuple):
    """A group of parameters: their names, and its settings under torch's names."""

    names: list[str]
    settings: dict


@dataclasses.dataclass
class Initial:
    """What a new model in shardd begins with, by names of parameters.

    step: that these are of. Where applied is None it is also Adam's t. Optimizer(init=...) begins
    with the step after `applied`, so that the bias corrections are right: a model that is begun in
    this way does not count steps that were skipped before. A checkpoint of shardd has both numbers.
    masters: fp32, or empty: then the model's own parameters count.
    moments: kind ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum") to tensors by name.
    The rest is known of some sources and not of others: applied (steps that changed the weights,
    which is Adam's t), kind (of the optimizer), groups, image (dtype of most parameters), own_image
    (of those that have another one, by name), buffers, frozen (parameters that are not trained),
    tied (second names of parameters, to the first ones) and extra (what else there was, as
    lr_scheduler).
    """

    step: int = 0
    masters: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    moments: dict[str, Mapping[str, torch.Tensor]] = dataclasses.field(default_factory=dict)
    applied: int | None = None
    kind: str | None = None
    groups: list[Group] = dataclasses.field(default_factory=list)
    image: torch.dtype | None = None
    own_image: dict[str, torch.dtype] = dataclasses.field(default_factory=dict)
    buffers: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    frozen: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    tied: dict[str, str] = dataclasses.field(default_factory=dict)
    extra: dict = dataclasses.field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a master, which is not read for that where its source knows it."""
        known = getattr(self.masters, "shape", None)
        return tuple(known(name) if known is not None else self.masters[name].shape)

    @classmethod
    def from_shardd(cls, dir: str, tag: str | None = None) -> "Initial":
        """Of a checkpoint of shardd, for a model of another name, world or settings."""
        c = Checkpoint(dir, tag)
        names = TORCH_NAMES.get(c.kind, {})
        return cls(c.step, c, {names.get(k, k): _Kind(c, k) for k in c.moments()}, c.applied,
                   c.kind, c.groups(), c.dtype, c.own_dtypes)

    @classmethod
    def from_torch(cls, model: torch.nn.Module, state: Mapping) -> "Initial":
        """Of optimizer.state_dict() of torch.optim, for the parameters of `model`."""
        from .torch_state import initial
        return initial(state, model)

    @classmethod
    def from_universal(cls, folder: str) -> "Initial":
        """Of a universal checkpoint of DeepSpeed: folder/zero/NAME/{fp32,exp_avg,exp_avg_sq}.pt."""
        from .zero_files import from_universal
        return from_universal(folder)

    @classmethod
    def from_zero(cls, folder: str, tag: str | None = None) -> "Initial":
        """Of a checkpoint that DeepSpeed's ZeRO stage 1, 2 or 3 saved, with any number of ranks."""
        from .zero_files import from_zero
        return from_zero(folder, tag)


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
    from .torch_state import of_optimizer
    return of_optimizer(opt)


def export_universal(dir: str, out: str, tag: str | None = None) -> None:
    """Writes a checkpoint of shardd as a universal checkpoint of DeepSpeed into folder `out`."""
    from .zero_files import to_universal
    to_universal(Initial.from_shardd(dir, tag), out)
