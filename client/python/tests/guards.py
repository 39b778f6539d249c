# SPDX-License-Identifier: Apache-2.0
"""What tests of a user's mistakes share: each runs in a process of its own, whose end is looked at,
too."""

import pytest
import torch
from torch import nn

import crew as crews

import shardd


@pytest.fixture
def ends(address):
    """ends(function): runs function(make, line) in a process. Returns what it raised, or None."""
    crews.preload()
    crew = crews.Crew(SHARD_ADDRESS=address)

    def run(function):
        last = []
        member = crew.start(_guarded, row=function)
        crew.run(lambda m, message: last.append(message), may_fail=True)
        status = member.process.exitcode
        assert status not in (-11, 139, -7, -6), f"{function.__name__} ended with {status}"
        failed = [m["error"] for m in last if m["what"] == "failed"]
        return failed[0] if failed else None

    yield run
    crew.close()


def _guarded(line, row):
    opts = []

    def make(model=None, kind="adamw", steps=1, **more):
        model = model if model is not None else Net()
        opts.append(shardd.Optimizer(model, kind, **{"name": "guard", "timeout": 20, **more}))
        for _ in range(steps):
            model(X).sum().backward()
            opts[-1].step()
        return model, opts[-1]

    try:
        row(make)
    finally:
        for opt in opts:
            opt.close()


X = torch.ones(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def group():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def check(ends, function, words):
    """function ends in a sentence with these words; None: it works."""
    error = ends(function)
    if words is None:
        assert error is None, error
    else:
        assert error is not None and words in error, error
