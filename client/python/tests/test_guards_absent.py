# SPDX-License-Identifier: Apache-2.0
"""What a user might do with a parameter of stage 3 whose memory was given back: it ends in a
sentence that says what to do, and never in SIGSEGV. Each runs in a process of its own."""

import copy
import io

import pytest
import torch
from torch import nn

from guards import X, Net, check, ends, group  # noqa: F401

STAGE3 = {"params": "copy", "stage3": {"prefetch": 0, "keep": 0, "reuse": 0}}


def absent(make):
    model, opt = make(**STAGE3)
    return model, opt, dict(model.named_parameters())["up.weight"]


def absent_sum(make):
    absent(make)[2].sum()


def absent_without_gradients(make):
    p = absent(make)[2]
    with torch.no_grad():
        print(2 * p)


def absent_data(make):
    absent(make)[2].data.mul_(0.5)


def absent_detached(make):
    absent(make)[2].detach().numpy()


def absent_view(make):
    absent(make)[2].data.T.tolist()


def absent_in_a_list(make):
    model, opt, _ = absent(make)
    nn.utils.parameters_to_vector(model.parameters())


def absent_in_foreach(make):
    model, opt, _ = absent(make)
    torch._foreach_norm(list(model.parameters()))


def absent_written(make):
    p = absent(make)[2]
    with torch.no_grad():
        p.copy_(torch.zeros(5, 4))


def absent_model_copied(make):
    copy.deepcopy(absent(make)[0])


def absent_model_moved(make):
    absent(make)[0].half()


def absent_saved(make):
    torch.save(absent(make)[2], io.BytesIO())


def absent_ddp(make):
    group()
    nn.parallel.DistributedDataParallel(absent(make)[0])


def absent_is_told(make):
    """What others ask of parameters that they do not read."""
    model, opt, p = absent(make)
    assert p.shape == (5, 4) and p.dtype is torch.float32 and p.device.type == "cpu"
    assert isinstance(p, nn.Parameter) and p.is_leaf and p.grad is None and p.nbytes == 80
    assert p.data.shape == p.detach().shape == (5, 4) and p.is_floating_point() and not p.is_sparse
    assert "up.weight" in repr(p) and "not in memory" in f"{p}" and "Linear" in repr(model)
    assert torch.zeros_like(p).sum() == 0 and p.new_ones(2).sum() == 2
    for q in model.parameters():
        q.requires_grad_(True)
    model.zero_grad()
    assert sum(q.numel() * q.element_size() for q in model.parameters()) == 148


def absent_and_back(make):
    """A view that was taken while it was absent has the numbers when it is there, and they are
    refused again afterwards. After the end parameters are ordinary."""
    model, opt, p = absent(make)
    want, view = model.state_dict()["up.weight"], p.data
    with opt.gather(p):
        assert torch.equal(p, want) and torch.equal(view, want) and type(p) is nn.Parameter
        assert torch.equal(copy.deepcopy(p), want)
    for x in (p, view):
        try:
            x.sum()
        except RuntimeError as e:
            assert "parameter 'up.weight' is not in memory now, and sum needs it" in str(e)
        else:
            raise AssertionError("it was read")
    opt.close()
    assert type(p) is nn.Parameter and torch.equal(p, want) and torch.equal(model.up.weight, want)


ABSENT = "parameter 'up.weight' is not in memory now, and "

ROWS = [
    (absent_sum, ABSENT + "sum needs it: in stage 3"),
    (absent_without_gradients, ABSENT + "mul needs it"),
    (absent_data, ABSENT + "mul_ needs it"),
    (absent_detached, ABSENT + "numpy needs it"),
    (absent_view, ABSENT + "T needs it"),
    (absent_in_a_list, ABSENT + "view needs it"),
    (absent_in_foreach, ABSENT + "_foreach_norm needs it"),
    (absent_written, ABSENT + "copy_ needs it"),
    (absent_model_copied, ABSENT + "clone needs it"),
    (absent_model_moved, ABSENT + "half needs it"),
    (absent_saved, ABSENT + "__reduce_ex__ needs it"),
    (absent_ddp, "DistributedDataParallel is not needed"),
    (absent_is_told, None),
    (absent_and_back, None),
]


@pytest.mark.parametrize("function,words", ROWS, ids=[f.__name__ for f, _ in ROWS])
def test_guard(ends, function, words):
    check(ends, function, words)
