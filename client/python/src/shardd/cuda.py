# SPDX-License-Identifier: Apache-2.0
"""Parameters and gradients on a GPU: libshard-cuda in Python, and what an Optimizer makes of it.

Copies is a handle of shard_cuda.h, with device memory and streams as numbers: it needs no torch
and no GPU. CudaSession is a Session that has one while it is joined. DeviceGradients pushes each
gradient from where backward made it, and DeviceImage copies parameters to where they are, so that
their addresses never change. What torch.cuda is needed for is in TorchDevice, and nowhere else.

The copies were tested with a driver library that behaves as CUDA's does, and not on a GPU yet.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import logging
import pathlib
import time
from typing import Any, Iterable, Mapping, Sequence

import torch

from . import lib as _c
from . import params as _p
from .gradients import Gradients
from .image import Image
from .session import Result, Session, World
from .stage3 import FetchedImage

log = logging.getLogger("shardd")

BOUNCE, IMAGE, GRAD = 1, 2, 4  # Flags of shard_cuda_opts.
SLICE_MS = 200  # A wait returns to Python so often, for Ctrl-C.


class Opts(_c.Sized):
    _fields_ = [("size", _c.size_t), ("device", C.c_int32), ("flags", _c.u32),
                ("timeout_ms", _c.i64), ("buffer_bytes", _c.u64), ("piece_bytes", _c.u64)]


class About(_c.Sized):
    _fields_ = [("size", _c.size_t), ("device", C.c_int32), ("driver", C.c_int32),
                ("grad_pinned", _c.u32), ("image_pinned", _c.u32), ("registered_bytes", _c.u64),
                ("why", _c.text), ("pushed_bytes", _c.u64), ("pulled_bytes", _c.u64),
                ("pulled_copies", _c.u64), ("dead", _c.u32), ("image_device", _c.u32),
                ("grad_device", _c.u32)]


class Pull(C.Structure):
    _fields_ = [("tensor", _c.u32), ("reserved", _c.u32), ("first", _c.u64), ("count", _c.u64),
                ("dev", _c.void)]


STRUCTS = {"shard_cuda_opts": Opts, "shard_cuda_about": About, "shard_cuda_pull": Pull}
_p_ = C.POINTER
FUNCTIONS = {
    "shard_cuda_open": (_c.status, [_p_(_c.void), _c.model, _p_(Opts)]),
    "shard_cuda_close": (_c.status, [_p_(_c.void), _c.i64]),
    "shard_cuda_tell": (_c.status, [_c.void, _p_(About)]),
    "shard_cuda_stream": (_c.void, [_c.void]),
    "shard_cuda_image": (_c.void, [_c.void, _c.u32]),
    "shard_cuda_grad": (_c.void, [_c.void, _c.u32]),
    "shard_cuda_error": (_c.text, []),
    "shard_cuda_begin": (_c.status, [_c.void, _p_(_c.BeginOpts), _p_(_c.Step)]),
    "shard_cuda_push": (_c.status, [_c.void, _c.u32, _c.u64, _c.u64, _c.void, C.c_int, _c.u32,
                                    _c.void, _p_(_c.ticket)]),
    "shard_cuda_pull": (_c.status, [_c.void, _c.u64, _p_(Pull), _c.u32, _c.void,
                                    _p_(_c.ticket)]),
    "shard_cuda_wait": (_c.status, [_c.void, _c.ticket, _c.i64]),
    "shard_cuda_order": (_c.status, [_c.void, _c.ticket, _c.void, _c.i64]),
}


class DeviceError(_c.Error):
    """CUDA refused something, or is not there. dead: the device is lost to this process."""


@functools.lru_cache(maxsize=1)
def libshard_cuda() -> C.CDLL:
    """The library, loaded once. It is the one beside libshard, or the one that the system has.

    Raises ImportError if there is none: libshard may have been built with CUDA=0.
    """
    beside = pathlib.Path(_c.libshard()._name).parent / "libshard-cuda.so.0"
    tried = []
    for path in [str(beside)] * beside.is_absolute() + ["libshard-cuda.so.0"]:
        try:
            lib = C.CDLL(path, use_errno=True)
        except OSError as e:
            tried.append(f"{path} ({e})")
            continue
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        return lib
    raise ImportError("shardd: libshard-cuda.so.0 is not to be found. Tried " + "; ".join(tried) +
                      ". It is in the wheel and in the Debian package libshard-cuda0")


class Copies:
    """Copies between one model that has joined and one device: a handle of shard_cuda.h.

    model       the handle of libshard
    device      the number of the device; -1: the one that is current in this thread
    timeout     seconds that a copy may take, with the work that is before it
    Device memory, streams and tickets are numbers. Any thread may push, pull and wait.
    """

    def __init__(self, model, device: int = -1, *, timeout: float = 300.0, flags: int = 0,
                 buffer_bytes: int = 0):
        self.lib = libshard_cuda()
        self._handle, self._timeout = _c.void(), timeout
        opts = Opts(device=device, flags=flags, timeout_ms=max(1, int(1000 * timeout)),
                    buffer_bytes=buffer_bytes)
        self._check(self.lib.shard_cuda_open(C.byref(self._handle), model, C.byref(opts)))

    def _check(self, number: int) -> None:
        """Raises what a status says. The connection's statuses are those of lib.py."""
        if number == _c.OK:
            return
        name = _c.libshard().shard_name(number).decode()
        sentence = self.lib.shard_cuda_error().decode(errors="replace")
        of_model = number in (_c.WORLD_CHANGED, _c.ROLLED_BACK, _c.TIMEOUT, _c.LOST) or \
            number == _c.CLOSED and self._handle and not self.about().dead
        if of_model:
            raise _c.class_of(number)(number, sentence, name)
        raise DeviceError(number, sentence, name)

    def _sliced(self, call) -> None:
        end = time.monotonic() + self._timeout
        while True:
            left = int(1000 * (end - time.monotonic()))
            number = call(max(0, min(SLICE_MS, left)))
            if number != _c.TIMEOUT or left <= SLICE_MS:
                return self._check(number)

    def about(self) -> About:
        """How copies are made, and how many there were."""
        about = About()
        number = self.lib.shard_cuda_tell(self._handle, C.byref(about))
        if number != _c.OK:
            raise DeviceError(number, self.lib.shard_cuda_error().decode(errors="replace"))
        return about

    @property
    def stream(self) -> int:
        """The stream that copies are made on."""
        return self.lib.shard_cuda_stream(self._handle) or 0

    def begin(self, opts: _c.BeginOpts, step: _c.Step) -> int:
        """In place of shard_begin(). Returns SHARD_OK, SHARD_TIMEOUT or SHARD_INTERRUPTED."""
        number = self.lib.shard_cuda_begin(self._handle, C.byref(opts), C.byref(step))
        if number not in (_c.TIMEOUT, _c.INTERRUPTED):
            self._check(number)
        return number

    def push(self, tensor: int, count: int, dev: int, dtype: int, stream: int,
             first: int = 0) -> int:
        """Queues the copy of a gradient, which is pushed when it is there. Returns a ticket."""
        ticket = _c.ticket()

        def call() -> int:
            return self.lib.shard_cuda_push(self._handle, tensor, first, count, dev, dtype, 0,
                                            stream, C.byref(ticket))

        self._check(self._with_room(call))
        return ticket.value

    def pull(self, step: int, ranges: Sequence[tuple[int, int, int]], stream: int) -> int:
        """Queues copies of (tensor, count, dev) as `step` left them. Returns one ticket."""
        rows = (Pull * len(ranges))(*[Pull(tensor=t, count=n, dev=dev) for t, n, dev in ranges])
        ticket = _c.ticket()

        def call() -> int:
            return self.lib.shard_cuda_pull(self._handle, step, rows, len(rows), stream,
                                            C.byref(ticket))

        self._check(self._with_room(call))
        return ticket.value

    def _with_room(self, call) -> int:
        """Makes a call again, when copies before it have made room."""
        number = call()
        while number == _c.AGAIN:
            self.wait()
            number = call()
        return number

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._handle

    def wait(self, ticket: int = 0) -> None:
        """Waits for a ticket and all before it; 0: for all."""
        self._sliced(lambda ms: self.lib.shard_cuda_wait(self._handle, ticket, ms))

    def order(self, ticket: int, stream: int) -> None:
        """Lets work that is put on a stream from now on come after a ticket."""
        self._sliced(lambda ms: self.lib.shard_cuda_order(self._handle, ticket, stream, ms))

    def close(self) -> None:
        """Waits until no copy is under way, and ends. In a forked child it only frees."""
        if self._handle:
            self._sliced(lambda ms: self.lib.shard_cuda_close(C.byref(self._handle), ms))


class TorchDevice:
    """A device of torch.cuda: all that is needed of it."""

    def __init__(self, index: int):
        self.index, self.where = index, torch.device("cuda", index)

    def __str__(self) -> str:
        return f"cuda:{self.index}"

    def stream(self) -> int:
        """The stream that is current in this thread."""
        return torch.cuda.current_stream(self.index).cuda_stream

    def address(self, x: torch.Tensor) -> int:
        """Where the elements of a contiguous tensor are."""
        return x.data_ptr()

    def allocate(self, p: torch.nn.Parameter) -> None:
        """Gives the storage of a parameter its memory again."""
        p.untyped_storage().resize_(p.numel() * p.element_size())

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor of the same size."""
        return torch.empty(like.size(), dtype=like.dtype, device=like.device)

    def free(self, p: torch.nn.Parameter) -> None:
        """Takes it away, for work that is put on the current stream afterwards."""
        p.untyped_storage().resize_(0)

    def used_by(self, x: torch.Tensor, stream: int) -> None:
        """The allocator gives the memory of x to nobody before the stream is past this point."""
        x.record_stream(torch.cuda.ExternalStream(stream, device=self.index))


class CudaSession(Session):
    """A Session whose gradients and parameters are on a device."""

    def __init__(self, address: str, *, device, **more):
        self._device = device
        self.copies: Copies | None = None
        super().__init__(address, **more)

    def join(self, rank_hint: int = -1) -> World:
        """Joins, and opens the device: the memory of gradients and image is new with each join."""
        world = super().join(rank_hint)
        self.copies = Copies(self._model, self._device.index, timeout=self.timeout)
        about = self.copies.about()
        log.info("shardd: %s copies gradients %s and parameters %s", self._device,
                 *("straight" if pinned else "through buffers"
                   for pinned in (about.grad_pinned, about.image_pinned)))
        if about.why:
            log.warning("shardd: copies to and from %s are slower: %s", self._device,
                        about.why.decode(errors="replace"))
        return world

    def _shard_begin(self, opts: _c.BeginOpts, step: _c.Step) -> int:
        return self.copies.begin(opts, step)

    def push_from(self, tensor: int, count: int, dev: int, dtype: int, stream: int) -> None:
        """Gives the gradient of a tensor that lies at `dev`, after the work on a stream."""
        self.copies.push(tensor, count, dev, dtype, stream)

    def pull_to(self, step: int, ranges: Sequence[tuple[int, int, int]], stream: int) -> None:
        """Copies (tensor, count, dev) as `step` left them. Later work on the stream comes after."""
        self.copies.order(self.copies.pull(step, ranges, stream), stream)

    def commit(self, *given) -> Result:
        """As Session.commit(), when all copies both ways are done."""
        self.copies.wait()
        return super().commit(*given)

    def leave(self, timeout: float) -> None:
        """As Session.leave(). The device is closed first, because it uses the memory."""
        self._close()
        super().leave(timeout)

    def detach(self) -> None:
        """As Session.detach()."""
        self._close()
        super().detach()

    def disconnect(self) -> None:
        """As Session.disconnect()."""
        try:
            self._close()
        except _c.Error as e:  # What cannot be given back must not keep the rest.
            log.warning("shardd: at the end of %s: %s", self._device, e)
        super().disconnect()

    def _close(self) -> None:
        if self.copies is not None:
            self.copies.close()
            self.copies = None


class DeviceGradients(Gradients):
    """Gradients that are summed where backward makes them, and pushed from there."""

    def __init__(self, *of_host, device):
        super().__init__(*of_host)
        self._device = device

    def bind(self, s: Session) -> None:
        """There is nothing to bind: r.arena is what is pushed, and lies on the device."""

    def _put(self, r: _p.Row, g: torch.Tensor) -> None:
        r.arena = g.to(self._dtype).contiguous()

    def _push(self, s: CudaSession, tensors: list[int]) -> None:
        for i in tensors:
            r = self._rows[i]
            if r.numel == 0:
                r.arena, r.pushed = None, True
                continue
            s.push_from(i, r.numel, self._device.address(r.arena), _p.DTYPES[self._dtype],
                        self._device.stream())
            self._device.used_by(r.arena, s.copies.stream)
            r.arena, r.pushed = None, True


class DeviceImage(Image):
    """Parameters in memory of the device's own, which the image is copied into."""

    def __init__(self, *of_host, device):
        super().__init__(*of_host)
        self._device = device

    def follow(self, s: CudaSession, step: int) -> None:
        """Waits until the image has the weights of `step`, and queues their copies. Work that is
        put on the current stream afterwards finds them."""
        to = [r.param.detach() if r.param.is_contiguous() else self._device.empty(r.param)
              for r in self._rows]
        s.pull_to(step, [(i, r.numel, self._device.address(x))
                         for i, (r, x) in enumerate(zip(self._rows, to)) if r.numel],
                  self._device.stream())
        for r, x in zip(self._rows, to):
            if not r.param.is_contiguous():
                self._device.used_by(x, s.copies.stream)
                r.param.copy_(x)
            r.address = r.param.data_ptr()
        self.followed = True


class FetchedDeviceImage(FetchedImage):
    """Parameters in memory of the device's own while they are used."""

    def __init__(self, *of_host, device, **more):
        super().__init__(*of_host, where=device.where, **more)
        self._device = device
        # By the id of a parameter: the copy that is under way, and where it goes.
        self._late: dict[int, tuple[Copies, int, torch.Tensor]] = {}

    def _look(self, s: CudaSession, step: int) -> None:
        self._session, self._step = s, step  # Each copy waits for the step by itself.

    def allocate(self, p: torch.nn.Parameter) -> None:
        self._device.allocate(p)

    def free(self, p: torch.nn.Parameter) -> None:
        self._device.free(p)

    def fetch(self, params: list[torch.nn.Parameter], wait: bool) -> None:
        """Queues copies from the image, as one: parameters of a unit lie together in the image."""
        params = sorted(params, key=lambda p: self._row[id(p)])
        to = [p.detach() if p.is_contiguous() else self._device.empty(p) for p in params]
        copies = self._session.copies
        with self._or_by_torch(params):
            ticket = copies.pull(self._step, [(self._row[id(p)], p.numel(), self._device.address(x))
                                              for p, x in zip(params, to)], self._device.stream())
            self._late.update({id(p): (copies, ticket, x) for p, x in zip(params, to)})
            if wait:
                self.arrived(params)

    def arrived(self, params: list[torch.nn.Parameter]) -> None:
        """Work that is put on the current stream from now on finds the parameters."""
        for p in params:
            copies, ticket, x = self._late.pop(id(p), (None, 0, None))
            if copies is None:
                continue  # Copied by torch.
            if copies.closed:  # This trainer has joined again meanwhile.
                super().fetch([p], True)
                continue
            with self._or_by_torch([p]):
                copies.order(ticket, self._device.stream())
                if x.data_ptr() != p.data_ptr():
                    self._device.used_by(x, copies.stream)
                    p.data.copy_(x)

    @contextlib.contextmanager
    def _or_by_torch(self, params: list[torch.nn.Parameter]):
        """When the world changes the library copies no more, and the image is still there. What is
        computed with it is dropped by step(), and until then has the right numbers."""
        try:
            yield
        except (_c.WorldChanged, _c.RolledBack, _c.Closed):
            super().fetch(params, True)


def device_of(rows: Iterable[_p.Row], where: torch.device | None = None) -> TorchDevice | None:
    """The device that parameters are on, or None if they are on none or copies have to be torch's.

    where: the device that they will be on. Raises TypeError where they are on several.
    """
    devices = {r.param.device for r in rows} if where is None else {where}
    if {d.type for d in devices} != {"cuda"}:
        return None
    if len(devices) > 1:
        raise TypeError(f"shardd.Optimizer: parameters are on {sorted(map(str, devices))}: one "
                        "Optimizer has one device, so move the model to it, or make an Optimizer "
                        "with a name of its own for each part")
    try:
        libshard_cuda()
    except ImportError as e:
        log.warning("%s: gradients and parameters are copied by torch, which waits for each", e)
        return None
    index = next(iter(devices)).index
    return TorchDevice(torch.cuda.current_device() if index is None else index)


def parts(rows: Iterable[_p.Row], where: torch.device, stage3: Mapping | None) -> tuple:
    """The Session, Image and Gradients of an Optimizer whose parameters are used on a device.

    stage3: settings of shardd.stage3.Scheduler, or None: parameters are in memory all the time."""
    device = device_of(rows, where if stage3 is not None else None)
    if device is None:
        return Session, Image if stage3 is None else functools.partial(
            FetchedImage, settings=stage3, where=where), Gradients
    image: Any = DeviceImage if stage3 is None else functools.partial(
        FetchedDeviceImage, settings=stage3)
    return tuple(functools.partial(cls, device=device)
                 for cls in (CudaSession, image, DeviceGradients))
