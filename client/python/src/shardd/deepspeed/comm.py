# SPDX-License-Identifier: Apache-2.0
"""deepspeed.comm: torch.distributed under the names that DeepSpeed gives it.

Training itself needs no process group. Scripts do, for their own sums and barriers, and
load_checkpoint(), which has all ranks let go of a model at once.
"""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as _dist

ReduceOp = _dist.ReduceOp


def is_available() -> bool:
    """Whether torch has process groups."""
    return _dist.is_available()


def is_initialized() -> bool:
    """Whether there is a process group."""
    return _dist.is_available() and _dist.is_initialized()


def rank() -> int:
    """This rank, of the process group or of $RANK."""
    return _dist.get_rank() if is_initialized() else int(os.environ.get("RANK") or 0)


def world_size() -> int:
    """All ranks, of the process group or of $WORLD_SIZE."""
    return _dist.get_world_size() if is_initialized() else int(os.environ.get("WORLD_SIZE") or 1)


def get_rank(group=None) -> int:
    """As torch's, and $RANK where there is no group."""
    return _dist.get_rank(group) if is_initialized() else rank()


def get_world_size(group=None) -> int:
    """As torch's, and $WORLD_SIZE where there is no group."""
    return _dist.get_world_size(group) if is_initialized() else world_size()


def get_local_rank() -> int:
    """$LOCAL_RANK, or 0."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def device() -> torch.device:
    """Where this rank computes: its GPU, or the CPU. DS_ACCELERATOR=cpu leaves GPUs alone."""
    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda":
        return torch.device("cuda", get_local_rank())
    return torch.device("cpu")


def init_distributed(dist_backend=None, auto_mpi_discovery=True, distributed_port=29500,
                     verbose=True, timeout=datetime.timedelta(minutes=30), init_method=None,
                     dist_init_required=None, config=None, rank=-1, world_size=-1) -> None:
    """Makes the process group, unless there is one: nccl where there is a GPU, else gloo.

    Ranks come from the arguments, or from the environment as torchrun makes it. A single rank
    needs neither address nor port.
    """
    if is_initialized() or dist_init_required is False:
        return
    backend = dist_backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "ccl":
        backend = "gloo"
    n = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE") or 1)
    r = rank if rank >= 0 else int(os.environ.get("RANK") or 0)
    if n == 1 and init_method is None and "MASTER_PORT" not in os.environ:
        _dist.init_process_group(backend, store=_dist.HashStore(), rank=0, world_size=1,
                                 timeout=timeout)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(distributed_port))
    _dist.init_process_group(backend, init_method=init_method, rank=r, world_size=n,
                             timeout=timeout)


def barrier(group=None, **more) -> None:
    """As torch's. Without a process group there is nobody to wait for."""
    if is_initialized():
        _dist.barrier(group)


def barrier_if_any() -> None:
    """Waits for all ranks, if there is a process group of several."""
    if is_initialized() and _dist.get_world_size() > 1:
        _dist.barrier()


def destroy_process_group(group=None) -> None:
    """As torch's."""
    if is_initialized():
        _dist.destroy_process_group(group)


def log_summary(*more, **words) -> None:
    """Nothing: `shardctl metrics` shows bytes and times."""


def __getattr__(name: str):
    try:
        return getattr(_dist, name)
    except AttributeError:
        raise AttributeError(f"module 'deepspeed.comm' of shardd has no {name!r}") from None
