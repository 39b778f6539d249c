# SPDX-License-Identifier: Apache-2.0
"""deepspeed.checkpointing: activations that are computed again in backward.

configure() takes the section activation_checkpointing of a ds_config, or the same as arguments, and
the groups of model parallelism. checkpoint() is then shardd.checkpoint() with what that says.
A tracker has random numbers of its own for regions whose ranks have to differ, as Megatron's do.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from ..activations import checkpoint as _checkpoint
from .config import Config, load
from .monitor import log

_NAME = "model-parallel-rng"
_WORDS = {"partition": "partition_activations", "cpu": "cpu_checkpointing",
          "synchronize": "synchronize_checkpoint_boundary", "profile": "profile",
          "contiguous": "contiguous_memory_optimization", "layers": "number_checkpoints"}


class _Settings:
    """What configure() said. group: of model parallelism; None: there is none."""

    def __init__(self):
        self.done, self.mpu, self.group = False, None, None
        self.layers: int | None = None
        self.partition = self.cpu = self.synchronize = self.profile = self.contiguous = False


_now = _Settings()


def configure(mpu_, deepspeed_config=None, partition_activations=None,
              contiguous_checkpointing=None, num_checkpoints=None, checkpoint_in_cpu=None,
              synchronize=None, profile=None) -> None:
    """Says how checkpoint() keeps what it saves.

    mpu_: has get_tensor_model_parallel_group(), or get_model_parallel_group(): the ranks that have
    the same activations. None: as before, or each rank by itself. deepspeed_config: its section
    activation_checkpointing counts where an argument is None.
    """
    s = _Settings()
    s.mpu, s.done = mpu_ if mpu_ is not None else _now.mpu, True
    if deepspeed_config is not None:
        block = Config({"train_batch_size": 1, "activation_checkpointing": load(
            deepspeed_config).get("activation_checkpointing") or {}})
        for word, key in _WORDS.items():
            setattr(s, word, block.get(f"activation_checkpointing.{key}", getattr(s, word)))
    for word, value in (("partition", partition_activations), ("cpu", checkpoint_in_cpu),
                        ("contiguous", contiguous_checkpointing), ("layers", num_checkpoints),
                        ("synchronize", synchronize), ("profile", profile)):
        if value is not None:
            setattr(s, word, value)
    assert s.partition or not s.contiguous, \
        "Contiguous Checkpointing is only available with partitioned activations. Set " \
        "partitioned activations to true in deepspeed config"
    assert s.layers is not None or not s.contiguous, \
        "Must specify the number of layers with contiguous memory checkpointing"
    if s.mpu is not None:
        s.group = _of(s.mpu, "group")
    elif s.partition:
        log.info("partition_activations has no effect: configure() was given no mpu, so no rank "
                 "has the activations of another one")
    _now.__dict__.update(s.__dict__)


def _of(mpu, what: str) -> Any:
    name = "get_tensor_model_parallel_" + what
    return getattr(mpu, name if hasattr(mpu, name) else "get_model_parallel_" + what)()


def is_configured() -> bool:
    """Whether configure() was called."""
    return _now.done


def checkpoint(function, *args, **kwargs):
    """function(*args, **kwargs), whose activations are computed again in backward."""
    begun = time.monotonic()
    _boundary()
    out = _checkpoint(lambda args, kwargs: function(*args, **kwargs), args, kwargs, cpu=_now.cpu,
                      partition=_now.group if _now.partition and _now.group is not None else False,
                      context_fn=_trackers)
    _boundary()
    if _now.profile:
        log.info("forward of a checkpointed function: %.3f ms", 1000 * (time.monotonic() - begun))
    return out


non_reentrant_checkpoint = checkpoint


def _boundary() -> None:
    if _now.synchronize and torch.cuda.is_available():
        torch.cuda.synchronize()


def partition_activations_in_checkpoint(partition_activation: bool) -> None:
    """Says whether the group's ranks keep a part each."""
    _now.partition = partition_activation


def set_num_layers(nlayers: int) -> None:
    """Accepted: no buffer is made for so many layers."""
    _now.layers = nlayers


def reset() -> None:
    """Nothing: a forward pass without a backward one leaves no buffers."""


# --- random numbers ---


def _generator() -> torch.Generator:
    if torch.cuda.is_available():
        return torch.cuda.default_generators[torch.cuda.current_device()]
    return torch.default_generator


class CudaRNGStatesTracker:
    """States of the device's random numbers, by name. fork() has one of them count for a while."""

    def __init__(self):
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forgets all states."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, torch.Tensor]:
        """A copy of all states."""
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Sets all states."""
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        """A new state. Raises RuntimeError where name or seed is there already."""
        if seed in self.seeds_:
            raise RuntimeError(f"seed {seed} already exists")
        if name in self.states_:
            raise RuntimeError(f"cuda rng state {name} already exists")
        g = _generator()
        before = g.get_state()
        g.manual_seed(seed)
        self.seeds_.add(seed)
        self.states_[name] = g.get_state()
        g.set_state(before)

    @contextlib.contextmanager
    def fork(self, name: str = _NAME):
        """Random numbers in here are those of a state, which goes on."""
        if name not in self.states_:
            raise RuntimeError(f"cuda rng state {name} is not added")
        g = _generator()
        before = g.get_state()
        g.set_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = g.get_state()
            g.set_state(before)


_tracker = CudaRNGStatesTracker()


def get_cuda_rng_tracker() -> CudaRNGStatesTracker:
    """The tracker of this process."""
    return _tracker


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """The default state is of `seed`, on all ranks of configure()'s mpu alike, and the tracker's is
    another one on each rank."""
    if _now.mpu is None:
        raise RuntimeError("shardd: model_parallel_cuda_manual_seed(): call configure(mpu) first")
    _tracker.reset()
    _generator().manual_seed(seed)
    _tracker.add(_NAME, seed + 2718 + _of(_now.mpu, "rank"))


def model_parallel_reconfigure_tp_seed(seed: int) -> None:
    """Another seed for the tracker's state."""
    with _tracker.fork():
        _generator().manual_seed(seed + 2718 + _of(_now.mpu, "rank"))


def _trackers():
    """The second computation has the tracker's states of the first one, and leaves them alone."""
    states = _tracker.get_states()

    @contextlib.contextmanager
    def again():
        now = _tracker.get_states()
        _tracker.set_states(states)
        try:
            yield
        finally:
            _tracker.set_states(now)

    return contextlib.nullcontext(), again()
