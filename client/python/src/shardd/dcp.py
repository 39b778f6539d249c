# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint over checkpoints of shardd: Reader and Writer.

    dcp.load(state, storage_reader=shardd.dcp.Reader("runs/gpt"))
    dcp.save(state, storage_writer=shardd.dcp.Writer("runs/gpt/global_step40", name="gpt"))

A checkpoint of shardd has names of parameters and no more, and a state dict puts what it likes
before them. So a key is known by its end: NAME and ANYTHING.NAME are the fp32 master,
[...]state.NAME.exp_avg is a moment, [...]state.NAME.step is Adam's t, and
[...]param_groups.0.betas what the optimizer was made with. A number in place of NAME is that
parameter in the order of the groups. Reader reads only what a rank needs of sharded targets.
Writer has each rank write its own file, and the coordinator gives the folder its name, which is
when a daemon can restore it. What is neither weight nor moment, as buffers, becomes one file in the
folder client, which Reader finds again. from_dcp() reads what torch's own writers wrote. Errors are
ValueError and shardd.Damaged, with the key.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import pickle
import re
import warnings
from typing import Any, Iterator, Mapping

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta,
    TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (
    LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, TensorWriteData, WriteItem,
    WriteItemType)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from .checkpoints import TORCH_NAMES, Checkpoint, Group, Initial, enum_member
from .folder import KINDS, Folder, Span, Tensor, manifest
from .params import images, ties
from .settings import KINDS as HYPER
from .torch_state import kind_of

REST = "dcp.pt"  # In the folder client: what is neither weight nor moment.
STATE = re.compile(r"(?:^|.*\.)state\.(?P<name>.+)\.(?P<kind>[a-z_]+)$")
GROUP = re.compile(r"(?:^|.*\.)param_groups\.(?P<name>.+)\.(?P<key>[a-z_]+)$")
SPANS_MAX = 1 << 20  # Pieces of one tensor in one file.


class _Names:
    """What the key of a state dict means in a checkpoint: ("master", NAME), ("exp_avg", NAME),
    ("step", NAME), ("group", index, word) or ("rest", key). None: nothing."""

    def __init__(self, c: Checkpoint, tied: Mapping[str, str], rest: Mapping[str, Any]):
        self._c, self._tied, self._rest = c, dict(tied), rest
        names = TORCH_NAMES.get(c.kind, {})
        self._kinds = {names.get(k, k): k for k in c.moments()}
        self.groups = c.groups()
        self._order = [n for g in self.groups for n in g.names]
        self._group_of = {n: i for i, g in enumerate(self.groups) for n in g.names}

    def of(self, key: str) -> tuple | None:
        if key in self._rest:
            return "rest", key
        name = self._parameter(key)
        if name is not None:
            return "master", name
        m = STATE.match(key)
        if m and (m["kind"] in self._kinds or m["kind"] == "step"):
            name = self._trained(m["name"])
            if name is not None:
                return ("step" if m["kind"] == "step" else self._kinds[m["kind"]]), name
        m = GROUP.match(key)
        if m:
            name = None if m["name"].isdecimal() else self._trained(m["name"])
            index = self._group_of.get(name, -1) if name is not None else \
                int(m["name"]) if m["name"].isdecimal() else -1
            if 0 <= index < len(self.groups):
                return "group", index, m["key"]
        return None

    def _parameter(self, key: str) -> str | None:
        """The longest end of a key, from a dot on, that is the name of a parameter."""
        at = 0
        while True:
            name = self._tied.get(key[at:], key[at:])
            if name in self._c:
                return name
            at = key.find(".", at) + 1
            if at == 0:
                return None

    def _trained(self, name: str) -> str | None:
        name = self._tied.get(name, name)
        if name.isdecimal() and name not in self._c:
            return self._order[int(name)] if int(name) < len(self._order) else None
        return name if name in self._group_of else None


class _Known(dict):
    """state_dict_metadata of a checkpoint, in which a key is found whatever is before the name."""

    def __init__(self, names: _Names, c: Checkpoint):
        super().__init__()
        self._names, self._c = names, c
        for name in c:
            self[name] = self._one(("master", name))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or isinstance(key, str) and self._names.of(key) is not None

    def __missing__(self, key: str):
        what = self._names.of(key)
        if what is None:
            raise KeyError(key)
        return self._one(what)

    def get(self, key, default=None):
        return self[key] if key in self else default

    def _one(self, what: tuple) -> TensorStorageMetadata | BytesStorageMetadata:
        if what[0] == "rest":
            x = self._names._rest[what[1]]
            if not isinstance(x, torch.Tensor):
                return BytesStorageMetadata()
            return _metadata(tuple(x.shape), x.dtype)
        if what[0] == "group":
            return BytesStorageMetadata()
        return _metadata(() if what[0] == "step" else self._c.shape(what[1]), torch.float32)


def _metadata(shape: tuple[int, ...], dtype: torch.dtype) -> TensorStorageMetadata:
    size = torch.Size(shape)
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype), size=size,
        chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=size)])


class Reader(StorageReader):
    """Reads a checkpoint of shardd into any state dict, sharded or not.

    path: a checkpoint, or a folder of checkpoints, whose newest one is read. tied: names of
    parameters that are another one under a second name, to that one; model: where to find them.

    Weights are the fp32 masters, in the dtype of the target. Keys that the checkpoint has not are
    an error of torch's planner, unless it was made with allow_partial_load=True. In param_groups
    betas, eps, weight_decay, momentum and nesterov become those of the checkpoint; all else, as
    params and lr, stays what it is, because a schedule changes lr and only trainers know it.
    """

    def __init__(self, path: str | os.PathLike, *, tied: Mapping[str, str] | None = None,
                 model: torch.nn.Module | None = None):
        self._path = os.fspath(path)
        self._tied = {**(ties(model) if model is not None else {}), **(tied or {})}
        self._c: Checkpoint | None = None
        self._names: _Names | None = None

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """Another checkpoint is to be read."""
        if checkpoint_id is not None:
            self._path = os.fspath(checkpoint_id)
        self._c = self._names = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        """Whether there is a checkpoint of shardd."""
        return os.path.isfile(os.path.join(checkpoint_id, "manifest.json"))

    @property
    def checkpoint_id(self) -> str:
        """The path of the checkpoint."""
        return self._path

    @property
    def step(self) -> int:
        """The step that the checkpoint is of."""
        return self._open().step

    def _open(self) -> Checkpoint:
        if self._c is None:
            c = Checkpoint(self._path)
            self._rest = _rest(c)
            self._names = _Names(c, self._tied, self._rest)
            self._c = c
        return self._c

    def read_metadata(self) -> Metadata:
        """What there is, by keys."""
        c = self._open()
        return Metadata(state_dict_metadata=_Known(self._names, c),
                        storage_meta=StorageMeta(checkpoint_id=c.folder))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Opens the files."""
        self._open()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    @torch.no_grad()
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan says, tensor after tensor."""
        c = self._open()
        for item in plan.items:
            what = self._names.of(item.storage_index.fqn)
            if what is None:
                raise ValueError(f"shardd: {c.folder} has nothing for {item.storage_index.fqn!r}")
            if item.type == LoadItemType.BYTE_IO:
                found, value = self._value(what)
                if found:
                    planner.load_bytes(item, _bytes(value))
                continue
            self._same_shape(c, what, planner, item.dest_index.fqn)
            to = planner.resolve_tensor(item).detach()
            x = self._tensor(c, what, list(item.storage_offsets), list(item.lengths))
            if to.size() != x.size():
                raise ValueError(f"shardd: {item.storage_index.fqn!r}: {tuple(x.size())} were read "
                                 f"for {tuple(to.size())}")
            to.copy_(x)
            planner.commit_tensor(item, to)
        done: Future = Future()
        done.set_result(None)
        return done

    def _same_shape(self, c: Checkpoint, what: tuple, planner: LoadPlanner, key: str) -> None:
        """The planner of torch 2.4 does not compare shapes."""
        target = getattr(planner, "state_dict", {}).get(key)
        if what[0] in ("step", "rest") or not isinstance(target, torch.Tensor):
            return
        if tuple(target.size()) != c.shape(what[1]):
            raise ValueError(f"shardd: {key!r} has shape {tuple(target.size())}, and in {c.folder} "
                             f"it is {c.shape(what[1])}")

    def _value(self, what: tuple) -> tuple[bool, Any]:
        if what[0] == "rest":
            return True, self._rest[what[1]]
        settings = self._names.groups[what[1]].settings
        return what[2] != "lr" and what[2] in settings, settings.get(what[2])

    def _tensor(self, c: Checkpoint, what: tuple, offsets: list[int],
                lengths: list[int]) -> torch.Tensor:
        """A box of a tensor. All rows that it lies in are read."""
        if what[0] == "step":
            return torch.tensor(float(c.applied))
        if what[0] == "rest":
            x = self._rest[what[1]]
            return x[tuple(slice(o, o + n) for o, n in zip(offsets, lengths))]
        shape = c.shape(what[1])
        if not shape:
            return c.read(what[1], what[0])
        if 0 in lengths:
            return torch.empty(lengths)
        row = math.prod(shape[1:])
        x = c.read_range(what[1], what[0], offsets[0] * row, (offsets[0] + lengths[0]) * row)
        x = x.view(lengths[0], *shape[1:])
        return x[(slice(None), *(slice(o, o + n) for o, n in zip(offsets[1:], lengths[1:])))]


def _bytes(value: Any) -> io.BytesIO:
    out = io.BytesIO()
    torch.save(value, out)
    out.seek(0)
    return out


def _rest(c: Checkpoint) -> dict[str, Any]:
    """What Writer put beside weights and moments. It is read as data, and nothing in it runs."""
    path = os.path.join(c.folder, "client", REST)
    if not os.path.isfile(path):
        return {}
    from .zero_files import load
    rest = load(path)
    if not isinstance(rest, dict) or not all(isinstance(k, str) for k in rest):
        raise ValueError(f"shardd: {path} is none that shardd.dcp.Writer wrote")
    return rest


# --- the other way ---


class Writer(StorageWriter):
    """Writes a state dict of model and optimizer as a checkpoint that a daemon of shardd restores.

    path: DIR/TAG, which is not there yet and which all ranks see. name: of the model in shardd.
    step: default: what the optimizer counted, else 0. kind: of the optimizer; default: by its
    state.
    settings: keys of [model], as "min_world=1 max_world=8 clip=1". latest: DIR/latest names it
    afterwards.

    Weights are all floating tensors outside of `state` that have a name and are not given as
    buffers. buffers: names that are buffers; default: all that have no moments, if any parameter
    has. Tied parameters are saved under the first of their names that has moments. Tensors that are
    sharded along their first dimension are written as they lie; along another one, row by row.
    """

    def __init__(self, path: str | os.PathLike, *, name: str = "model", step: int | None = None,
                 kind: str | None = None, settings: str = "", buffers: tuple[str, ...] = (),
                 image: torch.dtype | None = None, latest: bool = True):
        self._new(os.fspath(path), name)
        self._name, self._step, self._kind = name, step, kind
        self._settings, self._buffers, self._image = settings, set(buffers), image
        self._latest = latest

    def _new(self, path: str, name: str) -> None:
        self._folder, self._begun = Folder(path, name), False

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """Another checkpoint is to be written. What a save that failed has left is removed."""
        if self._begun:
            self._folder.abandon()
        self._new(os.fspath(checkpoint_id) if checkpoint_id is not None else self._folder.path,
                  self._name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        """Whether a checkpoint may have that name."""
        try:
            Folder(os.fspath(checkpoint_id), "model")
        except ValueError:
            return False
        return True

    @property
    def checkpoint_id(self) -> str:
        """The path of the checkpoint."""
        return self._folder.path

    def storage_meta(self) -> StorageMeta:
        """What the planner may know."""
        return StorageMeta(checkpoint_id=self._folder.path)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: the folder is made when it is known that all ranks have a plan."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Makes the folder, and says which file each rank writes."""
        what = _Meaning([i for p in plans for i in p.items], self._kind, self._buffers)
        self._meaning = what
        self._folder.begin()
        self._begun = True
        return [dataclasses.replace(p, storage_data=(r, what.of, what.dtypes))
                for r, p in enumerate(plans)]

    @torch.no_grad()
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes the file of this rank."""
        rank, of, _ = plan.storage_data
        spans: list[Span] = []
        boxes: dict[Span, tuple[WriteItem, int]] = {}
        results, small = [], {}
        for item in plan.items:
            what = of[item.index.fqn]
            if what[0] in ("master", "moment"):
                for n, s in enumerate(_spans(what[-1], what[1], item)):
                    spans.append(s)
                    boxes[s] = item, n
            else:
                small[item.index] = (what, _plain(item, planner.resolve_data(item)))
        held: dict[Any, torch.Tensor] = {}

        def data(s: Span) -> torch.Tensor:
            item, n = boxes[s]
            if item.index not in held:
                held.clear()
                held[item.index] = _local(planner.resolve_data(item)).reshape(-1)
            return held[item.index][n * (s.end - s.first):(n + 1) * (s.end - s.first)]

        record = self._folder.part(f"rank-{rank:05d}.safetensors", spans, data) if spans else None
        for item in plan.items:
            results.append(WriteResult(index=item.index, size_in_bytes=0,
                                       storage_data=small.get(item.index)))
        if results:
            results[0] = dataclasses.replace(results[0], storage_data=(
                record, results[0].storage_data))
        done: Future = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes the manifest and gives the folder its name."""
        try:
            files, small = [], []
            for rank in results:
                for n, r in enumerate(rank):
                    record, own = r.storage_data if n == 0 else (None, r.storage_data)
                    files += [record] if record is not None else []
                    small += [(r.index.fqn, *own)] if own is not None else []
            self._finish(files, small)
        except BaseException:
            self._folder.abandon()
            raise
        finally:
            self._begun = False

    def _finish(self, files: list[dict], small: list[tuple]) -> None:
        w = self._meaning
        words: dict[str, dict] = {}
        steps: set[int] = set()
        rest: dict[str, Any] = {}
        for key, what, value in small:
            if what[0] == "step":
                steps.add(int(value))
            elif what[0] == "group":
                words.setdefault(what[1], {})[what[2]] = value
            else:
                rest[key] = value
        applied = _one_step(steps)
        kind = self._kind or (kind_of([next(iter(words.values()), {})], w.moments)
                              if w.moments or words else "adamw")
        groups = _as_groups(words, w, kind)
        group = {n: i for i, g in enumerate(groups) for n in g.names}
        image, own = (self._image, {}) if self._image else w.images()
        tensors = sorted((Tensor(n, shape, group.get(n, 0), image=own.get(n))
                          for n, shape in w.weights.items()), key=lambda t: t.group)
        w.complete()
        client = []
        if rest:
            client.append(self._folder.client(REST, _bytes(rest).getvalue()))
        self._folder.finish(manifest(
            self._name, tensors, files, step=applied if self._step is None else self._step,
            applied=applied if w.moments else None,
            kinds=[KINDS[kind].get(k, k) for k in w.moments], kind=kind, groups=groups,
            image=image or torch.float32, settings=self._settings, client=client), self._latest)


def _one_step(steps: set[int]) -> int:
    steps.discard(0)
    if len(steps) > 1:
        raise ValueError("shardd: parameters of this optimizer have made different numbers of "
                         f"steps ({sorted(steps)}), and a model in shardd has one")
    return max(steps, default=0)


class _Meaning:
    """What each key of a state dict is that is saved: of[key] is ("master", NAME, kind in files),
    ("moment", NAME, kind in files), ("step", NAME), ("group", NAME or index, word) or ("rest",)."""

    def __init__(self, items: list[WriteItem], kind: str | None, buffers: set[str]):
        self.of: dict[str, tuple] = {}
        self.moments: dict[str, set[str]] = {}
        self.weights: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        kinds = {k: f for one in ([KINDS[kind]] if kind else KINDS.values())
                 for k, f in one.items()}
        plain: dict[str, WriteItem] = {}
        sizes: dict[str, tuple] = {}
        for item in items:
            key = item.index.fqn
            state, head = STATE.match(key), GROUP.match(key)
            tensor = item.type != WriteItemType.BYTE_IO
            if state and tensor and state["kind"] in kinds:
                self.of[key] = "moment", state["name"], kinds[state["kind"]]
                self.moments.setdefault(state["kind"], set()).add(state["name"])
                sizes[key] = state["name"], state["kind"], tuple(item.tensor_data.size)
            elif state and state["kind"] == "step":
                self.of[key] = "step", state["name"]
            elif head:
                self.of[key] = "group", head["name"], head["key"]
            elif tensor and item.tensor_data.properties.dtype.is_floating_point:
                plain.setdefault(key, item)
            else:
                self.of[key] = ("rest",)
        if any(n.isdecimal() for m in self.moments.values() for n in m):
            raise ValueError("shardd: this optimizer's state has numbers in place of names: give "
                             "what get_state_dict() of torch.distributed.checkpoint.state_dict "
                             "returns")
        self._take_weights(plain, buffers)
        for name, word, size in sizes.values():
            if size != self.weights[name]:
                raise ValueError(f"shardd: {word} of {name!r} has shape {size}, and the parameter "
                                 f"{self.weights[name]}")

    def _take_weights(self, plain: dict[str, WriteItem], buffers: set[str]) -> None:
        trained = set().union(*self.moments.values()) if self.moments else set()
        found: dict[str, str] = {}
        for key in plain:
            name = next((n for n in _ends(key) if n in trained), None)
            if name is not None:
                found.setdefault(name, key)
        lost = sorted(trained - set(found))
        if lost:
            raise ValueError(f"shardd: the optimizer has state of {lost[0]!r}, and the state dict "
                             "has no weight whose name ends so")
        prefix = next((k[:len(k) - len(n)] for n, k in found.items()), None)
        if not trained:  # Weights alone: all of them, without what is before all names.
            prefix = _common(list(plain)) if len(plain) > 1 else ""
            found = {k[len(prefix):]: k for k in plain
                     if k not in buffers and k[len(prefix):] not in buffers}
        back = {k: n for n, k in found.items()}
        for key, item in plain.items():
            if key in back:
                self.of[key] = "master", back[key], "master"
                self.weights[back[key]] = tuple(item.tensor_data.size)
                self.dtypes[back[key]] = item.tensor_data.properties.dtype
            else:
                self.of[key] = ("rest",)

    def complete(self) -> None:
        """Raises ValueError where a parameter has some moments and not others."""
        for k, names in self.moments.items():
            lost = sorted(set(self.weights) - names)
            if lost:
                raise ValueError(f"shardd: the optimizer has no {k} of {lost[0]!r}")

    def images(self) -> tuple[torch.dtype | None, dict]:
        """What parameters are in, as images() of params.py says it."""
        return images({n: (d, math.prod(self.weights[n])) for n, d in self.dtypes.items()})


def _ends(key: str) -> Iterator[str]:
    yield key
    while "." in key:
        key = key.partition(".")[2]
        yield key


def _common(keys: list[str]) -> str:
    """What all keys begin with, up to a dot, if it is "model." or the like and not a module's."""
    head = os.path.commonprefix(keys)
    head = head[:head.rfind(".") + 1]
    return head if head in ("model.", "app.model.", "module.", "state_dict.") else ""


def _spans(kind: str, name: str, item: WriteItem) -> list[Span]:
    """The runs of elements that a box is made of, row after row. All are of one length."""
    shape, box = tuple(item.tensor_data.size), item.tensor_data.chunk
    offsets, sizes = list(box.offsets), list(box.sizes)
    if math.prod(sizes) == 0:
        return []
    d = len(shape)  # From this dimension on the box is whole.
    while d > 0 and sizes[d - 1] == shape[d - 1]:
        d -= 1
    d = max(0, d - 1)
    run = math.prod(sizes[d:])
    count = math.prod(sizes[:d])
    if count > SPANS_MAX:
        raise ValueError(f"shardd: {name!r} is cut into {count} pieces: shard it along its first "
                         "dimension, or save it whole")
    stride = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    begin = sum(o * s for o, s in zip(offsets, stride))
    out = []
    for n in range(count):
        at, left = begin, n
        for i in range(d - 1, -1, -1):
            at += left % sizes[i] * stride[i]
            left //= sizes[i]
        out.append(Span(kind, name, at, at + run))
    return out


def _local(x: Any) -> torch.Tensor:
    x = x.to_local() if hasattr(x, "to_local") else x
    return x.detach().to(device="cpu", dtype=torch.float32).contiguous()


def _plain(item: WriteItem, x: Any) -> Any:
    """A small value as it goes to the coordinator. Bytes are what torch.save() of it gave."""
    if item.type == WriteItemType.BYTE_IO:
        x.seek(0)
        try:
            return torch.load(x, weights_only=True)
        except pickle.UnpicklingError as e:
            raise ValueError(f"shardd: {item.index.fqn!r} has an object that could not be read "
                             "again safely: give tensors, numbers, text, lists and dicts: "
                             f"{str(e)[:200]}") from None
    if item.type == WriteItemType.SHARD and \
            tuple(item.tensor_data.chunk.sizes) != tuple(item.tensor_data.size):
        raise ValueError(f"shardd: {item.index.fqn!r} is sharded and is no parameter with moments: "
                         "only those can be")
    x = x.to_local() if hasattr(x, "to_local") else x
    return x.detach().to("cpu", copy=True)


def _as_groups(words: dict[str, dict], w: _Meaning, kind: str) -> list[Group]:
    """The groups of the optimizer: by number with a list of names, or words for each name."""
    if all(k.isdecimal() for k in words):
        out = [Group([n for n in v.get("params", []) if n in w.weights],
                     {k: x for k, x in v.items() if k in HYPER[kind]})
               for _, v in sorted(words.items(), key=lambda g: int(g[0]))]
    else:
        same: dict[str, Group] = {}
        for name in w.weights:
            own = {k: x for k, x in words.get(name, {}).items() if k in HYPER[kind]}
            same.setdefault(repr(sorted(own.items())), Group([], own)).names.append(name)
        out = list(same.values())
    if sorted(n for g in out for n in g.names) == sorted(w.weights):
        return out
    return [Group(list(w.weights), out[0].settings if out else {})]


# --- what torch's own writers wrote ---


_M = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *((_M, n) for n in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata",
                        "ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING",
                        "MetadataIndex", "StorageMeta")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch", "Size"),
    ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"),
    ("collections", "OrderedDict")}


class _Unpickler(pickle.Unpickler):
    """Of a file .metadata: nothing but the classes of metadata are made."""

    def find_class(self, module: str, name: str):
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        if (module, name) in _ALLOWED or \
                module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, and only metadata are read")


class _DataReader(FileSystemReader):
    """torch's reader, for a folder that somebody else wrote."""

    def read_metadata(self) -> Metadata:
        path = os.path.join(self.path, ".metadata")
        try:
            with open(path, "rb") as f:
                m = _Unpickler(f).load()
            known = dict(m.state_dict_metadata.items())
            room = sum(e.stat().st_size for e in os.scandir(self.path))
            for info in m.storage_data.values():
                if os.path.basename(info.relative_path) != info.relative_path:
                    raise ValueError(f"a file {info.relative_path!r}")
            for key, what in known.items():
                if isinstance(what, TensorStorageMetadata) and \
                        math.prod(what.size) * what.properties.dtype.itemsize > room:
                    raise ValueError(f"{key!r} of shape {tuple(what.size)}, which is more than "
                                     "its files hold")
        except FileNotFoundError:
            raise
        except Exception as e:
            raise ValueError(f"shardd: {path} is no metadata of torch.distributed.checkpoint: "
                             f"{str(e)[:300] or type(e).__name__}") from None
        return m


class _DataPlanner(DefaultLoadPlanner):
    """Values that are no tensors are read as data, and nothing in them runs."""

    def load_bytes(self, read_item, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class _Keys(Mapping):
    """Tensors by names of parameters, each of which is read when somebody asks for it."""

    def __init__(self, path: str, keys: dict[str, str], known: Mapping[str, Any]):
        self._path, self._keys, self._known = path, keys, known

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._known[self._keys[name]].size)

    def __getitem__(self, name: str) -> torch.Tensor:
        key = self._keys[name]
        what = self._known[key]
        return _read(self._path, {key: torch.empty(what.size, dtype=what.properties.dtype)})[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _read(path: str, state: dict[str, Any]) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That this is one process.
            dcp.load(state, storage_reader=_DataReader(path), no_dist=True,
                     planner=_DataPlanner(flatten_state_dict=False,
                                          flatten_sharded_tensors=False))
    except dcp.api.CheckpointException as e:
        why = next(iter(e.failures.values()))[0]
        raise ValueError(f"shardd: {path}: {', '.join(sorted(state)[:3])}: {why}") from None
    return state


def from_dcp(path: str) -> Initial:
    """Masters, moments and step of what dcp.save() of model and optimizer wrote."""
    known = _DataReader(path).read_metadata().state_dict_metadata
    tensors = {k: w for k, w in known.items() if isinstance(w, TensorStorageMetadata)}
    what = _Meaning([WriteItem(
        index=MetadataIndex(k), type=WriteItemType.TENSOR if k in tensors else
        WriteItemType.BYTE_IO, tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(torch.Size([0] * len(w.size)), w.size),
            properties=w.properties, size=w.size) if k in tensors else None)
        for k, w in known.items()], None, set())
    what.complete()
    masters, moments, small = {}, {k: {} for k in what.moments}, {}
    for key, of in what.of.items():
        state = STATE.match(key)
        if of[0] == "master":
            masters[of[1]] = key
        elif of[0] == "moment" and state is not None:
            moments[state["kind"]][of[1]] = key
        elif of[0] in ("step", "group"):
            small[of] = key
    values = _read(path, {key: torch.empty(known[key].size, dtype=known[key].properties.dtype)
                          if key in tensors else None for key in small.values()})
    words: dict[str, dict] = {}
    for of, key in small.items():
        if of[0] == "group":
            words.setdefault(of[1], {})[of[2]] = values[key]
    step = _one_step({int(values[key]) for of, key in small.items() if of[0] == "step"})
    kind = kind_of([next(iter(words.values()), {})], what.moments) if words or moments else None
    rest = {k: k for k, of in what.of.items() if of == ("rest",) and k in tensors}
    return Initial(step, _Keys(path, masters, known),
                   {k: _Keys(path, keys, known) for k, keys in moments.items()}, step, kind,
                   _as_groups(words, what, kind) if kind else [], *what.images(),
                   _Keys(path, rest, known))
