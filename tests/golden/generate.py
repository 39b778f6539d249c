#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables beside this file from DeepSpeed's own classes. It was run once; tests/unit/test_schedule.c reads what it wrote and
needs no Python. To run it again:

    git clone https://github.com/deepspeedai/DeepSpeed && git -C DeepSpeed checkout edaa7221267243c7be7fb49c5d5f5c4fb97b4641   # 0.19.6
    python3 generate.py DeepSpeed

It needs neither torch nor an installed DeepSpeed (requirements: Python 3.11, its standard library): it imports two files of the
checkout, deepspeed/runtime/lr_schedules.py and deepspeed/runtime/fp16/loss_scaler.py, unchanged, and stands in for what they import
but do not compute with: torch (Optimizer, is_tensor, half), the logger, the rank and a configuration base class. All arithmetic in
these two files is Python's: doubles, math.log, math.cos, math.floor. Doubles are written as hexadecimal, so that no digit is lost.
"""
import importlib.util
import os
import sys
import types

COMMIT = "edaa7221267243c7be7fb49c5d5f5c4fb97b4641"
STEPS = 110


class Optimizer:
    """What a schedule touches of torch.optim.Optimizer."""

    def __init__(self, lr):
        self.defaults = {"lr": lr, "betas": (0.9, 0.999)}
        self.param_groups = [dict(self.defaults)]


class Silent:
    def __getattr__(self, _):
        return lambda *args, **kwargs: None


def module(name, **names):
    m = types.ModuleType(name)
    m.__dict__.update(names)
    sys.modules[name] = m
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, m)


def stand_in():
    module("torch", is_tensor=lambda x: False, half="half", float16="half")
    module("torch.optim", Optimizer=Optimizer)
    module("deepspeed")
    module("deepspeed.utils", logger=Silent())
    module("deepspeed.comm", get_rank=lambda: 1)
    module("deepspeed.runtime")
    module("deepspeed.runtime.config_utils", DeepSpeedConfigObject=object)


def load(root, path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], os.path.join(root, path))
    m = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = m
    spec.loader.exec_module(m)
    return m


# (schedule, the optimizer's lr, parameters): the settings of a case are "schedule=NAME lr=LR key=value ...".
SCHEDULES = [
    ("LRRangeTest", 1e-3, dict()),
    ("LRRangeTest", 1e-3, dict(lr_range_test_min_lr=3e-5, lr_range_test_step_size=7, lr_range_test_step_rate=0.3)),
    ("LRRangeTest", 1e-3, dict(lr_range_test_min_lr=1e-4, lr_range_test_step_size=9, lr_range_test_step_rate=5.0, lr_range_test_staircase=True)),
    ("OneCycle", 1e-3, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-3)),
    ("OneCycle", 1e-3, dict(cycle_min_lr=1e-4, cycle_max_lr=3e-3, cycle_first_step_size=20, cycle_second_step_size=31)),
    ("OneCycle", 1e-3, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-3, cycle_first_step_size=30, cycle_first_stair_count=7, cycle_second_stair_count=3,
                            cycle_second_step_size=25, decay_step_size=5, decay_lr_rate=0.25, cycle_min_mom=0.85, cycle_max_mom=0.95)),
    ("OneCycle", 1e-3, dict(cycle_min_lr=2e-4, cycle_max_lr=1e-3, cycle_first_step_size=13, cycle_second_step_size=0, decay_step_size=3,
                            decay_lr_rate=0.01, decay_mom_rate=0.001)),
    ("OneCycle", 1e-3, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-3, cycle_first_step_size=11, cycle_first_stair_count=11, cycle_momentum=False)),
    ("WarmupLR", 3e-4, dict()),
    ("WarmupLR", 3e-4, dict(warmup_num_steps=40)),
    ("WarmupLR", 3e-4, dict(warmup_num_steps=1, warmup_min_lr=1e-5)),
    ("WarmupLR", 3e-4, dict(warmup_num_steps=33, warmup_min_lr=1e-6, warmup_max_lr=7e-4, warmup_type="linear")),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=1100)),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=100, warmup_num_steps=10, warmup_max_lr=6e-4)),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=77, warmup_num_steps=20, warmup_min_lr=1e-5, warmup_max_lr=3e-3, warmup_type="linear")),
    ("WarmupDecayLR", 3e-4, dict(total_num_steps=50, warmup_num_steps=50, warmup_type="linear")),
    ("WarmupCosineLR", 3e-4, dict(total_num_steps=5000)),
    ("WarmupCosineLR", 3e-4, dict(total_num_steps=100, warmup_num_steps=10)),
    ("WarmupCosineLR", 1e-3, dict(total_num_steps=90, warmup_num_steps=15, warmup_min_ratio=0.1, cos_min_ratio=0.05, warmup_type="linear")),
    ("WarmupCosineLR", 1e-3, dict(total_num_steps=30, warmup_num_steps=30, cos_min_ratio=0.0)),
]


def text(x):
    return ("no", "yes")[x] if isinstance(x, bool) else repr(x) if isinstance(x, float) else str(x)


def schedules(root, out):
    lib = load(root, "deepspeed/runtime/lr_schedules.py")
    out.write("# DeepSpeed 0.19.6 %s deepspeed/runtime/lr_schedules.py: what each applied step runs with, the first is 1\n" % COMMIT)
    out.write("# case: settings; then step,lr,beta1 (empty: left alone)\n")
    for name, lr, params in SCHEDULES:
        optimizer = Optimizer(lr)
        schedule = getattr(lib, name)(optimizer, **params)
        cycles = getattr(schedule, "cycle_momentum", False)
        group = optimizer.param_groups[0]
        out.write("case: schedule=%s lr=%r%s\n" % (name, lr, "".join(" %s=%s" % (k, text(v)) for k, v in params.items())))
        for step in range(1, STEPS + 1):
            out.write("%d,%s,%s\n" % (step, float(group["lr"]).hex(), float(group["betas"][0]).hex() if cycles else ""))
            schedule.step()


# (arguments, which steps overflow): the settings of a case are fp16's.
def every(n, first=0):
    return [i >= first and (i - first) % n == 0 for i in range(STEPS)]


def among(*which):
    return [i in which for i in range(STEPS)]


SCALERS = [
    (dict(power=16, window=1000, floor=1, hysteresis=2, consecutive=False), among(0, 1, 2, 10)),
    (dict(power=16, window=5, floor=1, hysteresis=2, consecutive=False), every(7, 3)),
    (dict(power=16, window=5, floor=1, hysteresis=2, consecutive=True), every(7, 3)),
    (dict(power=8, window=4, floor=4, hysteresis=1, consecutive=False), every(3)),
    (dict(power=8, window=10, floor=1, hysteresis=4, consecutive=False), among(*range(0, 9), *range(30, 35), 60, 62, 64, 80, 81)),
    (dict(power=8, window=10, floor=1, hysteresis=4, consecutive=True), among(*range(0, 9), *range(30, 35), 60, 62, 64, 80, 81)),
    (dict(power=4, window=3, floor=1, hysteresis=2, consecutive=False), [True] * STEPS),
    (dict(power=20, window=1, floor=1, hysteresis=3, consecutive=False), every(2, 50)),
    (dict(power=16, window=20, floor=1, hysteresis=2, consecutive=False), [False] * STEPS),
    (dict(power=10, window=8, floor=0.25, hysteresis=2, consecutive=False), [i * i * 7919 % 11 < 4 for i in range(STEPS)]),
]


def scalers(root, out):
    lib = load(root, "deepspeed/runtime/fp16/loss_scaler.py")
    out.write("# DeepSpeed 0.19.6 %s deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler\n" % COMMIT)
    out.write("# case: settings; then overflow,scale,cur_hysteresis,last_overflow_iter,cur_iter after update_scale(overflow); floor: it raised\n")
    for a, overflows in SCALERS:
        s = lib.DynamicLossScaler(init_scale=2**a["power"], scale_window=a["window"], min_scale=a["floor"], delayed_shift=a["hysteresis"],
                                  consecutive_hysteresis=a["consecutive"], dtype="half")
        out.write("case: initial_scale_power=%d loss_scale_window=%d min_loss_scale=%s hysteresis=%d consecutive_hysteresis=%s\n" %
                  (a["power"], a["window"], a["floor"], a["hysteresis"], ("no", "yes")[a["consecutive"]]))
        for overflow in overflows:
            try:
                s.update_scale(overflow)
            except Exception:
                out.write("1,floor\n")
                break
            out.write("%d,%s,%d,%d,%d\n" % (overflow, float(s.cur_scale).hex(), s.cur_hysteresis, s.last_overflow_iter, s.cur_iter))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    stand_in()
    for name, write in (("schedules.csv", schedules), ("scalers.csv", scalers)):
        with open(os.path.join(here, name), "w") as out:
            write(sys.argv[1], out)


main()
