# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's five schedules of the learning rate, as objects on param_groups.

They have the names, the arguments and the values of deepspeed.runtime.lr_schedules, so that a file
or a script that names one gets the same learning rates. Each has one method that says the learning
rate of each group at an iteration; step() writes it into param_groups. The first step of training
is made with iteration -1's values, which are those that the constructor writes.
"""

from __future__ import annotations

import math

import torch

LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR = "LRRangeTest", "OneCycle", "WarmupLR"
WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
LOG, LINEAR = "log", "linear"

# The names of arguments, as constants of DeepSpeed's module.
CONSTANTS = {name.upper(): name for name in (
    "lr_range_test_min_lr lr_range_test_step_rate lr_range_test_step_size lr_range_test_staircase "
    "cycle_first_step_size cycle_first_stair_count cycle_second_step_size cycle_second_stair_count "
    "decay_step_size cycle_min_lr cycle_max_lr decay_lr_rate cycle_min_mom cycle_max_mom "
    "decay_mom_rate warmup_min_lr warmup_max_lr warmup_num_steps warmup_type warmup_min_ratio "
    "cos_min_ratio total_num_steps").split()}
CONSTANTS.update(WARMUP_LOG_RATE=LOG, WARMUP_LINEAR_RATE=LINEAR, LR_SCHEDULE="lr_schedule")


def _positive(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value}")
    return value


class _Schedule:
    """What all five share: param_groups, the iteration, and a state of one number."""

    def __init__(self, optimizer, last_batch_iteration: int):
        if not isinstance(optimizer, torch.optim.Optimizer):
            inner = getattr(optimizer, "optimizer", None)
            if not isinstance(inner, torch.optim.Optimizer):
                raise TypeError(f"{type(optimizer).__name__} is not a subclass of "
                                "torch.optim.Optimizer")
            optimizer = inner
        self.optimizer = optimizer
        self.last_batch_iteration = last_batch_iteration

    def _each(self, value, name: str) -> list:
        """One value per group."""
        n = len(self.optimizer.param_groups)
        if not isinstance(value, (list, tuple)):
            return [value] * n
        if len(value) != n:
            raise ValueError(f"expected {n} values for {name}, got {len(value)}")
        return list(value)

    def _write(self, rates) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(float(lr))  # Of any shape with one number.
            else:
                group["lr"] = lr
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float]:
        """The learning rate of each group at last_batch_iteration."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The learning rates that were written last."""
        if getattr(self, "_last_lr", None) is None:
            raise AssertionError("need to call step() first")
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next iteration, or to the one that is named."""
        self.last_batch_iteration = (self.last_batch_iteration + 1 if last_batch_iteration is None
                                     else last_batch_iteration)
        self._write(self.get_lr())

    def state_dict(self) -> dict:
        """The iteration."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict) -> None:
        """Takes the iteration. The learning rate follows with the next step()."""
        self.last_batch_iteration = state["last_batch_iteration"]


class LRRangeTest(_Schedule):
    """The learning rate grows for ever, by a part in each interval, to find the best one."""

    def __init__(self, optimizer, lr_range_test_min_lr=1e-3, lr_range_test_step_size=2000,
                 lr_range_test_step_rate=1.0, lr_range_test_staircase=False,
                 last_batch_iteration=-1):
        super().__init__(optimizer, last_batch_iteration)
        self.min_lr = self._each(lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = _positive("lr_range_test_step_size", lr_range_test_step_size)
        self.step_rate, self.staircase = lr_range_test_step_rate, lr_range_test_staircase
        if last_batch_iteration == -1:
            self._write(self.min_lr)

    def get_lr(self):
        intervals = float(self.last_batch_iteration + 1) / self.step_size
        if self.staircase:
            intervals = math.floor(intervals)
        return [lr * (1 + self.step_rate * intervals) for lr in self.min_lr]


class OneCycle(_Schedule):
    """The learning rate rises and falls once, momentum against it, and then both decay."""

    def __init__(self, optimizer, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0,
                 cycle_first_step_size=2000, cycle_second_step_size=None,
                 cycle_first_stair_count=0, cycle_second_stair_count=None, decay_step_size=0,
                 cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9, decay_mom_rate=0.0,
                 last_batch_iteration=-1):
        super().__init__(optimizer, last_batch_iteration)
        self.first = float(cycle_first_step_size)
        second = cycle_second_step_size
        self.second = self.first if second is None else float(second)
        if self.first <= 0:
            raise ValueError(f"cycle_first_step_size must be positive, got {self.first}")
        if self.second < 0:
            raise ValueError(f"cycle_second_step_size must be non-negative, got {self.second}")
        self.total_size = self.first + self.second
        self.stairs = (cycle_first_stair_count, cycle_first_stair_count
                       if cycle_second_stair_count is None else cycle_second_stair_count)
        self.decay_step_size = decay_step_size
        self.min_lrs = self._each(cycle_min_lr, "cycle_min_lr")
        self.max_lrs = self._each(cycle_max_lr, "cycle_max_lr")
        self.decay_lr_rate, self.decay_mom_rate = decay_lr_rate, decay_mom_rate
        if not decay_step_size:
            self.decay_lr_rate = self.decay_mom_rate = 0.0
        if last_batch_iteration == -1:
            self._write(self.min_lrs)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            if "betas" not in self.optimizer.defaults:
                self.cycle_momentum = False
            else:
                self.min_moms = [(m, 0.99) for m in self._each(cycle_min_mom, "cycle_min_mom")]
                self.max_moms = [(m, 0.99) for m in self._each(cycle_max_mom, "cycle_max_mom")]
                if last_batch_iteration == -1:
                    self._write_betas(self.min_moms)

    def _write_betas(self, betas) -> None:
        for group, b in zip(self.optimizer.param_groups, betas):
            group["betas"] = b

    def _height(self) -> float:
        """How far up the cycle is, from 0 to 1."""
        at = self.last_batch_iteration + 1
        cycle = math.floor(1 + at / self.total_size)
        x = 1.0 + at / self.total_size - cycle
        rise = self.first / self.total_size
        up = x <= rise
        height = x / rise if up else (x - 1) / (rise - 1)
        stairs = self.stairs[0 if up else 1]
        if stairs > 0:
            i = at % self.total_size
            where = (i * stairs / self.first if i <= self.first
                     else (self.total_size - i) * stairs / self.second)
            height = math.floor(where) / stairs
        return height

    def _decayed(self) -> float:
        return (self.last_batch_iteration - self.total_size + 1) / self.decay_step_size

    def get_lr(self):
        if self.last_batch_iteration < self.total_size:
            h = self._height()
            return [low + (high - low) * h for low, high in zip(self.min_lrs, self.max_lrs)]
        if math.isclose(self.decay_lr_rate, 0):
            return self.min_lrs
        return [lr / (1 + self.decay_lr_rate * self._decayed()) for lr in self.min_lrs]

    def get_mom(self):
        """The betas of each group at last_batch_iteration, or None."""
        if not self.cycle_momentum:
            return None
        if self.last_batch_iteration < self.total_size:
            h = self._height()
            return [(high[0] - (high[0] - low[0]) * h, low[1])
                    for low, high in zip(self.min_moms, self.max_moms)]
        if math.isclose(self.decay_mom_rate, 0):
            return self.max_moms
        return [(b0 * (1 + self.decay_mom_rate * self._decayed()), b1) for b0, b1 in self.max_moms]

    def step(self, batch_iteration=None):
        super().step(batch_iteration)
        if self.cycle_momentum:
            self._write_betas(self.get_mom())


class _Warmup(_Schedule):
    """A part of the way up, by a logarithm or a line."""

    def _warm(self, warmup_num_steps, warmup_type) -> None:
        self.warmup_num_steps = max(2, _positive("warmup_num_steps", warmup_num_steps))
        self.warmup_type = LINEAR if warmup_type == LINEAR else LOG
        self.inverse_log_warm_up = 1.0 / math.log(self.warmup_num_steps)

    def _risen(self) -> float:
        if self.warmup_type == LOG:
            return self.inverse_log_warm_up * math.log(self.last_batch_iteration + 1)
        return self.last_batch_iteration / self.warmup_num_steps


class WarmupLR(_Warmup):
    """The learning rate rises from a least to a most value, and stays there."""

    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=None, warmup_num_steps=1000,
                 warmup_type=LOG, last_batch_iteration=-1):
        self._warm(warmup_num_steps, warmup_type)
        super().__init__(optimizer, last_batch_iteration)
        if warmup_max_lr is None:
            warmup_max_lr = [g["lr"] for g in self.optimizer.param_groups]
        self.min_lrs = self._each(warmup_min_lr, "min_lr")
        self.max_lrs = self._each(warmup_max_lr, "max_lr")
        self.delta_lrs = [high - low for high, low in zip(self.max_lrs, self.min_lrs)]
        if last_batch_iteration == -1:
            self._write(self.get_lr())

    def _gamma(self) -> float:
        return self._risen() if self.last_batch_iteration < self.warmup_num_steps else 1.0

    def get_lr(self):
        if self.last_batch_iteration < 0:
            return self.min_lrs
        gamma = self._gamma()
        return [low + delta * gamma for low, delta in zip(self.min_lrs, self.delta_lrs)]


class WarmupDecayLR(WarmupLR):
    """As WarmupLR, and then a line down to 0 at total_num_steps."""

    def __init__(self, optimizer, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001,
                 warmup_num_steps=1000, warmup_type=LOG, last_batch_iteration=-1):
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type,
                         last_batch_iteration)

    def _gamma(self) -> float:
        if self.last_batch_iteration < self.warmup_num_steps:
            return self._risen()
        return max(0.0, float(self.total_num_steps - self.last_batch_iteration) /
                   float(max(1.0, self.total_num_steps - self.warmup_num_steps)))


class WarmupCosineLR(_Warmup):
    """Parts of each group's own learning rate: up, and then down by half a cosine."""

    def __init__(self, optimizer, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000,
                 cos_min_ratio=0.0001, warmup_type=LOG, last_batch_iteration=-1):
        self._warm(warmup_num_steps, warmup_type)
        super().__init__(optimizer, last_batch_iteration)
        self.total_num_steps, self.cos_min_ratio = total_num_steps, cos_min_ratio
        self.warmup_min_ratio = warmup_min_ratio
        self.org_lrs = [g["lr"].clone() if isinstance(g["lr"], torch.Tensor) else g["lr"]
                        for g in self.optimizer.param_groups]
        if last_batch_iteration == -1:
            self._write(self.get_lr())

    def get_lr_ratio(self) -> float:
        """The part of the groups' learning rates at last_batch_iteration."""
        at = self.last_batch_iteration
        if at < 0:
            return 0.0
        if at < self.warmup_num_steps:
            return self.warmup_min_ratio + self._risen() * (1.0 - self.warmup_min_ratio)
        done = min(1.0, (at - self.warmup_num_steps + 1) /
                   max(1, self.total_num_steps - self.warmup_num_steps))
        half = (1 + math.cos(math.pi * done)) / 2
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * half)

    def get_lr(self):
        ratio = self.get_lr_ratio()
        return [lr * ratio for lr in self.org_lrs]


SCHEDULES = {c.__name__: c for c in (
    LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)}


def add_tuning_arguments(parser):
    """Options of a script that name a schedule and its arguments."""
    group = parser.add_argument_group("Convergence Tuning")
    group.add_argument("--lr_schedule", type=str, default=None)
    for name, kind, value in (
            ("lr_range_test_min_lr", float, 0.001), ("lr_range_test_step_rate", float, 1.0),
            ("lr_range_test_step_size", int, 1000), ("cycle_first_step_size", int, 1000),
            ("cycle_first_stair_count", int, -1), ("cycle_second_step_size", int, -1),
            ("cycle_second_stair_count", int, -1), ("decay_step_size", int, 1000),
            ("cycle_min_lr", float, 0.01), ("cycle_max_lr", float, 0.1),
            ("decay_lr_rate", float, 0.0), ("cycle_min_mom", float, 0.8),
            ("cycle_max_mom", float, 0.9), ("decay_mom_rate", float, 0.0),
            ("warmup_min_lr", float, 0.0), ("warmup_max_lr", float, 0.001),
            ("warmup_num_steps", int, 1000), ("warmup_type", str, LOG),
            ("warmup_min_ratio", float, 0.01), ("cos_min_ratio", float, 0.01)):
        group.add_argument("--" + name, type=kind, default=value)
    group.add_argument("--lr_range_test_staircase", default=False, action="store_true")
    group.add_argument("--cycle_momentum", default=False, action="store_true")
    return parser
