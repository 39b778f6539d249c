# SPDX-License-Identifier: Apache-2.0
"""shardd.Init: a model is built whose parameters no process has in memory all at once.

Within it each parameter that a module registers moves to a file of its own that is mapped, and has
no name any more. A constructor reads and writes it as ever, so that first weights are those that
they would be without, bit by bit. What is not written just now is on disk. The Optimizer gives the
weights to shardd one after the other, and has the parameters be what they are later right away:
views of the node's image, or in stage 3 memory that comes and goes. The files are gone then.
"""

from __future__ import annotations

import ctypes
import os
import tempfile

import torch
from torch.nn.modules import module as _module

DONTNEED = 4         # MADV_DONTNEED of Linux.
WINDOW = 64 << 20    # So many bytes of a model stay mapped in while others are made.


class Init:
    """with shardd.Init(): model = Model()

    dtype      of parameters that are made in here, as by torch.set_default_dtype(); None: as ever
    folder     where the files are, which together are as large as the model, on each rank; default:
               that of tempfile, which should be on a disk and not in memory
    min_bytes  smaller parameters stay in memory
    enabled    False: nothing is done
    Not thread-safe. OSError: there is no room for a file.
    """

    def __init__(self, *, dtype: torch.dtype | None = None, folder: str | None = None,
                 min_bytes: int = 1 << 20, enabled: bool = True):
        self._dtype, self._folder, self._min = dtype, folder, min_bytes
        self._enabled = enabled
        self._recent: list[torch.nn.Parameter] = []

    def __enter__(self):
        if self._enabled:
            self._before = torch.get_default_dtype()
            if self._dtype is not None:
                torch.set_default_dtype(self._dtype)
            self._hook = _module.register_module_parameter_registration_hook(self._registered)
        return self

    def __exit__(self, *what):
        if self._enabled:
            self._hook.remove()
            torch.set_default_dtype(self._before)
            self._let_go(0)
        return False

    def _registered(self, module, name, p):
        if p is None or p.device.type != "cpu" or p.nbytes < self._min or in_file(p):
            return
        move_to_file(p, self._folder)
        self._recent.append(p)
        self._let_go(WINDOW)

    def _let_go(self, keep: int) -> None:
        while self._recent and sum(p.nbytes for p in self._recent) > keep:
            page_out(self._recent.pop(0))


def move_to_file(p: torch.nn.Parameter, folder: str | None) -> None:
    """A parameter is a mapped file from now on, with the same values."""
    fd, path = tempfile.mkstemp(prefix="shardd-init-", dir=folder)
    try:
        try:
            os.posix_fallocate(fd, 0, p.nbytes)  # Else a full disk would be SIGBUS.
        except OSError as e:
            raise OSError(e.errno, f"shardd: Init needs {p.nbytes} bytes for a parameter in "
                          f"{os.path.dirname(path)}: {os.strerror(e.errno)}. Give folder=, or set "
                          "TMPDIR") from None
        storage = torch.UntypedStorage.from_file(path, True, p.nbytes)
    finally:
        os.close(fd)
        os.unlink(path)
    with torch.no_grad():
        x = torch.empty(0, dtype=p.dtype).set_(storage, 0, p.size(), torch.empty_like(
            p, device="meta").stride())
        x.copy_(p)
    p.data = x
    p._shardd_file = storage.data_ptr()


def in_file(p: torch.Tensor) -> bool:
    """Whether the memory of a parameter is a file of Init's."""
    return getattr(p, "_shardd_file", 0) == p.untyped_storage().data_ptr() != 0


def page_out(p: torch.Tensor) -> None:
    """What a parameter has in memory goes to its file, if it is one. It is read when it is used."""
    if in_file(p):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(p.data_ptr()), ctypes.c_size_t(p.nbytes),
                                  DONTNEED)
