# SPDX-License-Identifier: Apache-2.0
"""What ranks give to a step beside gradients, and what is not equal on all of them."""

import math

import pytest
import torch

import shardd
from shardd import lib
from shardd.session import Session

BEGIN = """
import copy, logging, math
import torch
import shardd
rank = int(os.environ["RANK"])
said = []
class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("shardd").addHandler(Said())
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
"""

MEANS = BEGIN + """
parts = [slice(0, 3), slice(3, 8), slice(8, 8)]
torch.manual_seed(2)
x, y = torch.randn(8, 4), torch.randn(8, 2)
model = torch.nn.Linear(4, 2)
twin = copy.deepcopy(model)
plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
opt = shardd.AdamW(model, lr=0.01, timeout=60)
loss_of = torch.nn.functional.mse_loss
for step in range(6):
    mine = parts[(rank + step) % 3]
    n = mine.stop - mine.start
    opt.mean_over(n)
    loss = loss_of(model(x[mine]), y[mine]) if n else 0 * model(x).sum()
    loss.backward()
    try:
        opt.mean_over(3)
    except RuntimeError as e:
        late = str(e)
    opt.step(values=(n * loss.item(), n, rank))
    whole = loss_of(twin(x), y)
    plain.zero_grad(); whole.backward(); plain.step()
    sums = opt.result.values
    assert abs(sums[0] / sums[1] - whole.item()) < 1e-6 and sums[1:3] == (8, 3), sums
    assert sums[3:] == (0,) * 10
say(off=max((a - b).abs().max().item() for a, b in zip(model.parameters(), twin.parameters())))
try:
    opt.step(values=range(14))
except ValueError as e:
    say(error=str(e), late=late)
opt.close()
"""


def test_unequal_batches_and_values(ranks):
    """Means over 3, 5 and 0 samples, against one process that has all 8."""
    for said in ranks(MEANS, 3):
        off, many = said
        assert off["off"] < 1e-6
        assert many["error"] == "shardd: step() takes 13 values, and got 14"
        assert "comes before the first backward() of a step" in many["late"]


def test_loops_of_shardd_count_samples_themselves(address):
    """What a script's own loop said before is over, and is not to be said again."""
    model, data = torch.nn.Linear(4, 2), torch.utils.data.TensorDataset(torch.ones(12, 4))
    opt = shardd.SGD(model, lr=0.01, name="counts", address=address, timeout=60)
    opt.mean_over(5)
    for _, batches in shardd.steps(opt, data, 6, 2):
        for x, in batches:
            with pytest.raises(RuntimeError, match="count samples without it"):
                opt.mean_over(3)
            model(x).sum().backward()
        opt.step()
        assert opt.result.weight_sum == 1
    opt.close()


UNTRAINED = BEGIN + """
model[0].requires_grad_(False)
torch.manual_seed(rank)
with torch.no_grad():
    if "frozen" in os.environ["HOW"]:
        model[0].weight.normal_()
    if "buffer" in os.environ["HOW"]:
        model[1].running_mean.normal_()
opt = shardd.AdamW(model, lr=0.01, timeout=60)
try:
    for step in range(2):
        model(torch.randn(4, 4)).sum().backward()
        opt.step()
    say(ends="well", said=[s for s in said if "not equal" in s])
except RuntimeError as e:
    say(ends=str(e), said=[])
opt.close()
"""


@pytest.mark.parametrize("how", ["", "frozen", "buffer"])
def test_what_is_not_trained(ranks, how):
    """Frozen weights of another seed are an error, other buffers a warning, equal ones nothing."""
    for said, in ranks(UNTRAINED, 2, HOW=how):
        if how == "frozen":
            assert said["ends"].startswith("shardd: frozen parameters are not equal on all ranks")
        else:
            assert said["ends"] == "well" and len(said["said"]) == (how == "buffer"), said


def ended(session, *given):
    """What commit() is where another rank's end was noticed first."""
    session.abandon("as another rank would")
    raise lib.WorldChanged(lib.WORLD_CHANGED, "rank 1 left", "SHARD_WORLD_CHANGED")


def test_result_of_an_attempt_that_is_over(address, monkeypatch):
    """A loop that logs opt.result goes on where a step is over before it was decided."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    opt = shardd.AdamW(model, lr=0.01, name="over", address=address, timeout=60)
    for step in range(4):
        before = model.weight.detach().clone()
        model(torch.ones(1, 4)).sum().backward()
        with monkeypatch.context() as m:
            if step == 2:
                m.setattr(Session, "commit", ended)
            opt.step()
        r = opt.result
        assert r.applied == (step != 2) == (not opt.step_was_skipped)
        assert torch.equal(before, model.weight) == (step == 2)
        if step == 2:
            assert (r.reason, r.step, r.world_size, r.loss_scale) == ("world", 3, 1, 1.0)
            assert math.isnan(r.grad_norm) and r.values == (0.0,) * 16 and r.lr == 0.01
    assert opt.global_step == 3
    opt.close()
