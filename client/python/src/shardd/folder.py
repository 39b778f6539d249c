# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of shardd without a daemon, for what comes from torch or DeepSpeed.

The folder is what a daemon restores (proto/ckpt/README.md): safetensors files, and a manifest with
the sum of every piece. Folder is one that is being written. The happy path is begin(), part() for
each file, which several processes may do at once, and finish(), which writes the manifest, gives
the folder its name and `latest` the tag. Until then everything lies in DIR/.TAG.tmp, and abandon()
removes it. write() does all of it for an Initial. It fails with OSError, with FileExistsError where
something has that name already, and with ValueError for what no checkpoint can hold.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import struct
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import torch
import xxhash

from .checkpoints import FORMAT, IMAGE_FLAGS, MANIFEST_MAX, VERSION, Group, Initial

ALIGN = 4096                # Data in a part begin at a multiple of this.
PIECE = 8 << 20             # Each piece of a file has a sum.
PART = 1 << 30              # A part is cut before it has more bytes than this.
HEADER_MAX = 100_000_000    # What the format of safetensors allows.
FILES_MAX, GROUPS_MAX = 4096, 256
TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
NAME = re.compile(r"(?!-)[a-z0-9._-]{1,64}")
IMAGES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# What the moments of each optimizer are called in the files, and by torch.
KINDS = {"adamw": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
         "adam": {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
         "sgd": {"momentum_buffer": "momentum"}, "adagrad": {"sum": "exp_avg_sq"},
         "lion": {"exp_avg": "exp_avg"}}
HYPER = {"adamw": ("betas", "eps", "weight_decay"), "adam": ("betas", "eps", "weight_decay"),
         "sgd": ("momentum", "nesterov", "weight_decay"), "adagrad": ("eps", "weight_decay"),
         "lion": ("betas", "weight_decay")}

Progress = Callable[[int, int], None]  # Bytes that are done, and all bytes.


class Span(NamedTuple):
    """Elements first to end of a tensor, row after row, of one kind as the files call it."""

    kind: str
    name: str
    first: int
    end: int


class Folder:
    """A checkpoint that is being written.

    path: DIR/TAG, which is not there yet. name: of the model. Only begin(), finish() and abandon()
    are for one process alone.
    """

    def __init__(self, path: str, name: str):
        path = os.path.abspath(path)
        self.path, self.name = path, name
        self.dir, self.tag = os.path.split(path)
        if not TAG.fullmatch(self.tag) or self.tag == "latest":
            raise ValueError(f"shardd: {path!r}: a checkpoint is called 1 to 64 of [A-Za-z0-9._-], "
                             "does not begin with a dot and is not latest")
        if not NAME.fullmatch(name):
            raise ValueError("shardd: the name of a model is 1 to 64 of [a-z0-9._-] that do not "
                             f"begin with -, not {name!r}")
        self.draft = os.path.join(self.dir, f".{self.tag}.tmp")
        self._held: Any = None

    def begin(self) -> None:
        """Makes the folder under the name that it has until it is complete."""
        if os.path.lexists(self.path):
            raise FileExistsError(f"shardd: {self.path} is there: choose another name, or remove "
                                  "it")
        os.makedirs(self.dir, exist_ok=True)
        try:
            os.mkdir(self.draft, 0o700)
        except FileExistsError:
            self._sweep()
            os.mkdir(self.draft, 0o700)
        whose = os.path.join(self.draft, ".model")
        self._held = open(whose + ".tmp", "w", encoding="utf-8")
        try:  # Daemons sweep what nobody has locked.
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        self._held.write(self.name)
        self._held.flush()
        os.rename(whose + ".tmp", whose)

    def _sweep(self) -> None:
        """Removes what a save of the same model left that was killed: nobody has it locked."""
        whose = os.path.join(self.draft, ".model")
        try:
            with open(whose, "r+", encoding="utf-8") as f:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if f.read(65) == self.name and not os.path.islink(self.draft):
                    shutil.rmtree(self.draft)
                    return
        except OSError:
            pass
        raise FileExistsError(f"shardd: {self.draft} is there: another save writes {self.tag}, or "
                              "was killed. In the latter case remove it") from None

    def part(self, file: str, spans: Sequence[Span], data: Callable[[Span], torch.Tensor],
             progress: Callable[[int], None] | None = None) -> dict:
        """Writes one file with these elements. Returns its record in the manifest.

        data: gives the elements of a span. They are asked for one after the other.
        """
        header, at = {"__metadata__": {"format": "shardd part 1"}}, 0
        for s in spans:
            count = s.end - s.first
            header[f"{s.kind}/{s.name}[{s.first}:{s.end}]"] = {
                "dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
            at += 4 * count
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-(8 + len(text)) % ALIGN)
        if len(text) > HEADER_MAX:
            raise ValueError(f"shardd: {len(spans)} pieces of tensors do not fit in the header of "
                             "one safetensors file: save tensors that are whole, or cut along "
                             "their first dimension")
        path = os.path.join(self.draft, file)
        with open(path, "xb") as f:
            out = _Summed(f)
            out.write(struct.pack("<Q", len(text)) + text)
            for s in spans:
                x = data(s)
                if x.numel() != s.end - s.first:
                    raise ValueError(f"shardd: {s.kind} of {s.name} has {x.numel()} elements where "
                                     f"{s.end - s.first} are to be written")
                x = x.detach().to(device="cpu", dtype=torch.float32).contiguous().view(-1)
                out.write(_bytes_of(x))
                if progress is not None:
                    progress(4 * x.numel())
            sums = out.end()
            f.flush()
            os.fsync(f.fileno())
        return {"name": file, "bytes": out.bytes, "header_bytes": 8 + len(text),
                "piece_bytes": PIECE, "sums": sums}

    def client(self, name: str, data: bytes) -> dict:
        """Writes a file of trainers. Returns its record in the manifest's list `client`."""
        folder = os.path.join(self.draft, "client")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "xb") as f:
            out = _Summed(f)
            out.write(data)
            sums = out.end()
            f.flush()
            os.fsync(f.fileno())
        return {"name": name, "bytes": out.bytes, "header_bytes": 0, "piece_bytes": PIECE,
                "sums": sums}

    def finish(self, manifest: dict, latest: bool = True) -> None:
        """Writes the manifest, and gives the folder its name. latest: it is the newest one."""
        text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        head = text[:-1].encode() + b","
        whole = head + b'"sum":"' + xxhash.xxh3_64_hexdigest(head).encode() + b'"}\n'
        if len(whole) > MANIFEST_MAX:
            raise ValueError(f"shardd: the manifest of {self.path} would have {len(whole)} bytes, "
                             f"and at most {MANIFEST_MAX} are read")
        _put(os.path.join(self.draft, "manifest.json"), whole)
        os.unlink(os.path.join(self.draft, ".model"))
        for folder, _, files in os.walk(self.draft):  # As public as any file.
            os.chmod(folder, 0o755)
            for f in files:
                os.chmod(os.path.join(folder, f), 0o644)
            _sync(folder)
        if os.path.lexists(self.path):
            raise FileExistsError(f"shardd: {self.path} was made by somebody else meanwhile")
        os.rename(self.draft, self.path)
        self._release()
        _sync(self.dir)
        if latest:
            draft = os.path.join(self.path, ".latest")
            _put(draft, self.tag.encode() + b"\n")
            os.rename(draft, os.path.join(self.dir, "latest"))
            _sync(self.dir)

    def abandon(self) -> None:
        """Removes what was written. After finish() it does nothing."""
        self._release()
        shutil.rmtree(self.draft, ignore_errors=True)

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


class _Summed:
    """A file whose pieces are summed as they are written."""

    def __init__(self, file):
        self._file, self._sum, self._sums = file, xxhash.xxh3_64(), []
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        at = 0
        while at < len(data):
            n = min(len(data) - at, PIECE - self.bytes % PIECE)
            self._sum.update(data[at:at + n])
            at += n
            self.bytes += n
            if self.bytes % PIECE == 0:
                self._next()

    def _next(self) -> None:
        self._sums.append(self._sum.hexdigest())
        self._sum.reset()

    def end(self) -> str:
        if self.bytes % PIECE:
            self._next()
        return "".join(self._sums)


def _bytes_of(x: torch.Tensor) -> memoryview:
    """The memory of a contiguous fp32 tensor of the CPU. Torch may have no numpy."""
    return memoryview((ctypes.c_char * (4 * x.numel())).from_address(x.data_ptr())).cast("B")


def _put(path: str, data: bytes) -> None:
    with open(path, "xb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # The file system has nothing to sync.
    finally:
        os.close(fd)


# --- the manifest ---


def settings_of(kind: str, groups: Sequence[Group], more: str = "") -> tuple[str, list[dict]]:
    """The settings of a model as its definition has them, and the groups of the manifest.

    more: other keys of [model], as "clip=1 max_world=8".
    """
    if kind not in HYPER:
        raise ValueError(f"shardd: the optimizer is {kind!r}, and can be {', '.join(HYPER)}")
    if len(groups) > GROUPS_MAX:
        raise ValueError(f"shardd: there are {len(groups)} groups of parameters, and a model has "
                         f"at most {GROUPS_MAX}")
    words: dict[str, Any] = {}
    for word in more.split():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"shardd: settings: {word!r}: write key=value")
        words[key] = value
    words["optimizer"] = kind
    rates = [float(g.settings.get("lr", 1.0)) for g in groups]
    if any("lr" in g.settings for g in groups):
        words.setdefault("lr", repr(rates[0]) if rates[0] else repr(max(rates)))
    for i, g in enumerate(groups):
        own = {k: g.settings[k] for k in HYPER[kind] if k in g.settings}
        if "betas" in own:
            own["beta1"], own["beta2"] = own.pop("betas")
        if "nesterov" in own:
            own["nesterov"] = int(bool(own["nesterov"]))
        if "lr" in words and float(words["lr"]) and "lr" in g.settings:
            own["lr_factor"] = rates[i] / float(words["lr"])
        for k, v in own.items():
            v = float(v)
            if not math.isfinite(v) or v < 0:
                raise ValueError(f"shardd: {k} of group {i} is {v}")
            words.setdefault(f"g{i}/{k}", f"{v:g}" if float(f"{v:g}") == v else repr(v))
    return (" ".join(f"{k}={v}" for k, v in words.items()),
            [{"name": f"g{i}", "settings": ""} for i in range(len(groups))])


class Tensor(NamedTuple):
    """A tensor of the layout. frozen: it has no moments. image: its dtype, if not the model's."""

    name: str
    shape: tuple[int, ...]
    group: int = 0
    frozen: bool = False
    image: torch.dtype | None = None

    def flags(self, image: torch.dtype) -> int:
        """Flags in the manifest of a model with that image."""
        own = {d: f for f, d in IMAGE_FLAGS.items() if d != image}
        return int(self.frozen) | own.get(self.image, 0)


def manifest(name: str, tensors: Sequence[Tensor], files: list[dict], *, step: int,
             applied: int | None, kinds: Sequence[str], kind: str, groups: Sequence[Group],
             image: torch.dtype, grad: torch.dtype | None = None, settings: str = "",
             client: Sequence[dict] = ()) -> dict:
    """A manifest without its sum. kinds: of moments, as the files call them."""
    for t in tensors:
        if not 1 <= len(t.name.encode()) <= 255 or re.search(r"[\x00-\x1f\x7f-\x9f]", t.name):
            raise ValueError(f"shardd: {t.name!r} is no name of a tensor: 1 to 255 bytes without "
                             "control characters")
        if len(t.shape) > 8 or any(n < 0 for n in t.shape):
            raise ValueError(f"shardd: {t.name!r} has shape {t.shape}, and a model has tensors of "
                             "at most 8 dimensions")
    if not tensors:
        raise ValueError("shardd: there is no tensor to save")
    if len(files) > FILES_MAX:
        raise ValueError(f"shardd: {len(files)} files, and a checkpoint has at most {FILES_MAX}")
    applied = step if applied is None else applied
    if not 0 <= applied <= step:
        raise ValueError(f"shardd: the optimizer has made {applied} steps, and the step is {step}")
    text, heads = settings_of(kind, groups or [Group([], {})], settings)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"format": FORMAT, "version": VERSION, "release": "0.1.0",
            "created": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "name": name,
            "run_id": secrets.token_hex(16), "step": step, "applied": applied, "skipped_in_row": 0,
            "scaler": {"scale": 1.0, "hysteresis": 2, "last_overflow": -1, "iter": 0},
            "tune": {"paused": False}, "settings": text, "optimizer": kind,
            "image": IMAGES[image], "grad": IMAGES[grad or image],
            "kinds": ["master", *kinds], "groups": heads,
            "tensors": [{"name": t.name, "shape": list(t.shape), "group": t.group,
                         "flags": t.flags(image)} for t in tensors],
            "files": files, "blobs": [], **({"client": list(client)} if client else {})}


def in_parts(spans: Iterable[Span], part_bytes: int = PART) -> list[list[Span]]:
    """Cuts spans into lists of at most so many bytes, each of which becomes a file."""
    parts: list[list[Span]] = [[]]
    room = part_bytes // 4
    for s in spans:
        first = s.first
        while first < s.end:
            end = min(s.end, first + room)
            parts[-1].append(Span(s.kind, s.name, first, end))
            room -= end - first
            first = end
            if room == 0:
                parts.append([])
                room = part_bytes // 4
    return [p for p in parts if p]


def write(init: Initial, path: str, name: str, *, image: torch.dtype | None = None,
          settings: str = "", client: Mapping[str, bytes] | None = None,
          progress: Progress | None = None, part_bytes: int = PART) -> None:
    """Writes what a model begins with as a checkpoint that a daemon restores.

    path: DIR/TAG, which is not there yet. name: of the model. image: what all its parameters are
    in; default: what init says, else fp32. settings: keys of [model]. client: files for its folder
    client. A parameter without moments begins with zeros.
    """
    if not init.masters:
        raise ValueError("shardd: there are no master weights to write: a state of torch.optim has "
                         "moments alone, so give the model's weights with it")
    kind = init.kind or "adamw"
    if kind not in KINDS:
        raise ValueError(f"shardd: the optimizer is {kind!r}, and can be {', '.join(KINDS)}")
    known = KINDS[kind]
    wrong = sorted(set(init.moments) - set(known))
    if wrong:
        raise ValueError(f"shardd: {kind} in shardd has no {', '.join(wrong)}")
    group = {n: i for i, g in enumerate(init.groups) for n in g.names}
    moments = {k: known[k] for k in known if k in init.moments}
    part_of = {k: set(init.moments[k]) for k in moments}
    names = sorted(init.masters, key=lambda n: group.get(n, 0)) if init.groups \
        else list(init.masters)
    shapes = {n: init.shape(n) for n in names}
    own = {} if image else init.own_image
    tensors = [Tensor(n, shapes[n], group.get(n, 0), image=own.get(n)) for n in names]
    if moments:
        _all_moments(tensors, part_of)
    whole = {t.name: math.prod(t.shape) for t in tensors}
    spans = [Span("master", t.name, 0, whole[t.name]) for t in tensors] + [
        Span(word, t.name, 0, whole[t.name]) for word in moments.values() for t in tensors]
    back = {v: k for k, v in moments.items()}
    total, done = 4 * sum(s.end - s.first for s in spans), 0

    def tick(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    last: dict[tuple[str, str], torch.Tensor] = {}

    def data(s: Span) -> torch.Tensor:
        if (s.kind, s.name) not in last:
            x = (init.masters if s.kind == "master" else init.moments[back[s.kind]]).get(s.name)
            if x is None:  # An optimizer that has no state of a parameter begins with zeros.
                x = torch.zeros(shapes[s.name])
            if tuple(x.shape) != shapes[s.name]:
                raise ValueError(f"shardd: {s.kind} of {s.name!r} has shape {tuple(x.shape)}, and "
                                 f"the parameter {shapes[s.name]}")
            last.clear()
            last[s.kind, s.name] = x.detach().to(dtype=torch.float32).reshape(-1)
        return last[s.kind, s.name][s.first:s.end]

    folder = Folder(path, name)
    folder.begin()
    try:
        files = [folder.part(f"import-{i:05d}.safetensors", p, data, tick)
                 for i, p in enumerate(in_parts(spans, part_bytes), 1)]
        given = [folder.client(n, b) for n, b in (client or {}).items()]
        folder.finish(manifest(
            name, tensors, files, step=init.step, applied=init.applied,
            kinds=list(moments.values()), kind=kind, groups=init.groups,
            image=image or init.image or torch.float32, settings=settings, client=given))
    except BaseException:
        folder.abandon()
        raise


def _all_moments(tensors: Sequence[Tensor], part_of: Mapping[str, set]) -> None:
    """A checkpoint has each kind of moment of each tensor. None at all for one is zeros."""
    for t in tensors:
        there = [k for k in part_of if t.name in part_of[k]]
        if there and len(there) < len(part_of):
            lacks = sorted(set(part_of) - set(there))
            raise ValueError(f"shardd: parameter {t.name!r} has {', '.join(there)} and no "
                             f"{', '.join(lacks)}")
