# SPDX-License-Identifier: Apache-2.0
"""A device for tests, on the driver library of tests/cuda, which LD_LIBRARY_PATH has to name.

Its memory cannot be read at the addresses that it gives, and copies are late. Device stands for
shardd.cuda.TorchDevice: torch's tensors here are of the CPU, so a parameter is a tensor over the
memory of the device as the library alone may see it, and a gradient is written to the device by
work on a stream, as a kernel would write it.
"""

import ctypes as C

import torch

import shardd.cuda

U64 = C.c_uint64


class Gpu:
    """Calls of the driver. They raise AssertionError where they fail."""

    def __init__(self):
        self.lib = C.CDLL("libcuda.so.1")
        self.lib.fake_cuda_inside.restype = C.c_void_p
        self.lib.fake_cuda_inside.argtypes = [U64]
        self.lib.fake_cuda_adopt.restype = U64
        self.lib.fake_cuda_adopt.argtypes = [C.c_void_p, C.c_size_t]
        self.lib.fake_cuda_disown.restype = None
        self.lib.fake_cuda_disown.argtypes = [U64]
        self.context = C.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", C.byref(self.context), 0)
        self.current()
        stream = C.c_void_p()
        self.call("cuStreamCreate", C.byref(stream), 0)
        self.stream = stream.value

    def call(self, name, *arguments):
        assert getattr(self.lib, name)(*arguments) == 0, name

    def current(self):
        self.call("cuCtxSetCurrent", self.context)

    def alloc(self, size: int) -> int:
        at = U64()
        self.call("cuMemAlloc_v2", C.byref(at), C.c_size_t(size))
        return at.value

    def pinned(self, size: int) -> int:
        at = C.c_void_p()
        self.call("cuMemHostAlloc", C.byref(at), C.c_size_t(size), 0)
        return at.value

    def inside(self, dev: int) -> int:
        return self.lib.fake_cuda_inside(U64(dev))

    def write(self, dev: int, pinned: int, size: int):
        self.call("cuMemcpyHtoDAsync_v2", U64(dev), C.c_void_p(pinned), C.c_size_t(size),
                  C.c_void_p(self.stream))

    def sync(self):
        self.call("cuStreamSynchronize", C.c_void_p(self.stream))


def tensor_at(address: int, like: torch.Tensor) -> torch.Tensor:
    size = like.numel() * like.element_size()
    return torch.frombuffer((C.c_char * size).from_address(address), dtype=like.dtype,
                            count=like.numel()).view(like.size())


class Device:
    """shardd.cuda.TorchDevice, of this device."""

    index, where = 0, None

    def __init__(self):
        self.gpu = Gpu()
        self._at: dict[int, int] = {}  # Where a tensor inside is on the device.
        self._kept: list[torch.Tensor] = []
        self.pushed = 0

    def __str__(self):
        return "fake:0"

    def take(self, module: torch.nn.Module):
        """Moves the parameters of a module to the device."""
        for p in module.parameters():
            dev = self.gpu.alloc(p.numel() * p.element_size())
            x = tensor_at(self.gpu.inside(dev), p)
            x.copy_(p.data)
            p.data = x
            self._at[x.data_ptr()] = dev

    def allocate(self, p: torch.Tensor):
        p.untyped_storage().resize_(p.numel() * p.element_size())
        p.data.fill_(float("nan"))
        self._at[p.data_ptr()] = self.gpu.lib.fake_cuda_adopt(p.data_ptr(), p.nbytes)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        x = torch.full(like.size(), float("nan"), dtype=like.dtype)
        self._at[x.data_ptr()] = self.gpu.lib.fake_cuda_adopt(x.data_ptr(), x.nbytes)
        self._kept.append(x)
        return x

    def free(self, p: torch.Tensor):
        """Ends the process if a copy into it is under way."""
        if p.untyped_storage().nbytes() > 0 and p.data_ptr() in self._at:
            self.gpu.lib.fake_cuda_disown(self._at.pop(p.data_ptr()))
        p.untyped_storage().resize_(0)

    def stream(self) -> int:
        return self.gpu.stream

    def address(self, x: torch.Tensor) -> int:
        assert x.is_contiguous()
        if x.data_ptr() in self._at:
            return self._at[x.data_ptr()]
        self.gpu.current()  # Hooks may run in a thread of autograd's.
        size = x.numel() * x.element_size()
        dev, pinned = self.gpu.alloc(size), self.gpu.pinned(size)
        tensor_at(pinned, x).copy_(x)
        self.gpu.write(dev, pinned, size)
        self.pushed += 1
        return dev

    def used_by(self, x: torch.Tensor, stream: int):
        assert stream not in (0, self.gpu.stream)


def install(device: Device):
    """Has Optimizers take this device. Torch's operations are the host's, so that they have to wait
    for the copies of parameters where a GPU would."""
    follow = shardd.cuda.DeviceImage.follow
    arrived = shardd.cuda.FetchedDeviceImage.arrived

    def followed(self, s, step):
        follow(self, s, step)
        device.gpu.sync()

    def waited(self, params):
        # What is not contiguous is copied by torch, which is the host here.
        for p in params:
            copies, ticket, x = self._late.get(id(p), (None, 0, None))
            if copies is not None and not copies.closed and x.data_ptr() != p.data_ptr():
                copies.wait(ticket)
        arrived(self, params)
        device.gpu.sync()

    shardd.cuda.device_of = lambda rows, where=None: device
    shardd.cuda.DeviceImage.follow = followed
    shardd.cuda.FetchedDeviceImage.arrived = waited
