# SPDX-License-Identifier: Apache-2.0
"""The five schedules against those of DeepSpeed 0.19.8, number by number."""

import pytest
import torch

from shardd.deepspeed import schedules as ours

theirs = pytest.importorskip("deepspeed.runtime.lr_schedules")

CASES = [
    ("LRRangeTest", {}), ("LRRangeTest", {"lr_range_test_min_lr": 1e-4,
                                          "lr_range_test_step_size": 7,
                                          "lr_range_test_step_rate": 0.5,
                                          "lr_range_test_staircase": True}),
    ("LRRangeTest", {"lr_range_test_min_lr": [1e-4, 2e-4], "lr_range_test_step_size": 3}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 10}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": [1e-2, 1e-3], "cycle_first_step_size": 9,
                  "cycle_second_step_size": 5, "cycle_first_stair_count": 3, "decay_step_size": 4,
                  "decay_lr_rate": 0.2, "decay_mom_rate": 0.1}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 8,
                  "decay_lr_rate": 0.5, "cycle_momentum": False, "cycle_second_stair_count": 4,
                  "decay_step_size": 2}),
    ("WarmupLR", {}), ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3,
                                    "warmup_num_steps": 10}),
    ("WarmupLR", {"warmup_max_lr": [1e-3, 2e-3], "warmup_num_steps": 5, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1, "warmup_max_lr": 0.1}),
    ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 5}),
    ("WarmupDecayLR", {"total_num_steps": 5, "warmup_num_steps": 8, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 25, "warmup_num_steps": 5, "warmup_min_ratio": 0.1}),
    ("WarmupCosineLR", {"total_num_steps": 4, "warmup_num_steps": 6, "warmup_type": "linear",
                        "cos_min_ratio": 0.01})]


def optimizer():
    p = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    return torch.optim.AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "lr": 0.2}])


@pytest.mark.parametrize("name, words", CASES, ids=str)
def test_same_numbers(name, words):
    a, b = optimizer(), optimizer()
    x, y = getattr(ours, name)(a, **words), getattr(theirs, name)(b, **words)
    for i in range(60):
        got = [(g["lr"], g["betas"]) for g in a.param_groups]
        assert got == [(g["lr"], g["betas"]) for g in b.param_groups], i
        if i:
            assert x.get_last_lr() == y.get_last_lr()
        x.step()
        y.step()
        if i == 30:
            state, b2 = x.state_dict(), optimizer()
            assert state == y.state_dict()
            y = getattr(theirs, name)(b2, **words)
            y.load_state_dict(state)
            y.step(state["last_batch_iteration"])
            b = b2
            x.step(state["last_batch_iteration"])


@pytest.mark.parametrize("name, words", [
    ("WarmupLR", {"warmup_num_steps": 0}), ("WarmupCosineLR", {"total_num_steps": 5,
                                                               "warmup_num_steps": -1}),
    ("LRRangeTest", {"lr_range_test_step_size": 0}), ("LRRangeTest", {"lr_range_test_min_lr": [1]}),
    ("OneCycle", {"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_first_step_size": 0}),
    ("OneCycle", {"cycle_min_lr": 1, "cycle_max_lr": [1, 2, 3]})], ids=str)
def test_same_errors(name, words):
    for module in (ours, theirs):
        with pytest.raises(ValueError):
            getattr(module, name)(optimizer(), **words)


def test_same_constants():
    for name, value in ours.CONSTANTS.items():
        assert getattr(theirs, name) == value
    assert ours.VALID_LR_SCHEDULES == theirs.VALID_LR_SCHEDULES
