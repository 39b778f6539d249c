# SPDX-License-Identifier: Apache-2.0
"""What the ranks of an engine do together: the sum of their micro-batches, a save that fails on one
of them, and a later engine of the same model."""

import json

import pytest
import torch

import models
from test_deepspeed_engine import HEAD, config, free_port


TWICE = HEAD + """
import json
import shardd.deepspeed as deepspeed
o = json.loads(os.environ["OPTIONS"])
torch.manual_seed(0)
model = models.GPT()

def make():
    return deepspeed.initialize(model=model, config=o["config"])[0]

def train(engine):
    loss = engine(*models.tokens(0, engine.global_rank))
    engine.backward(loss)
    engine.step()
    return loss.item()

first = make()
losses = [train(first) for _ in range(3)]
second = make()
losses += [train(second) for _ in range(3)]
p = next(model.parameters())
whole = torch.equal(deepspeed.utils.safe_get_full_fp32_param(p), p.detach())
try:
    train(first)
    old = ""
except RuntimeError as e:
    old = str(e)
losses.append(train(second))
say(losses=losses, steps=second.global_steps, old=old, whole=whole)
second.destroy()
"""


@pytest.mark.parametrize("n, stage", [(1, 3), (2, 1)])
def test_a_later_engine_takes_the_model_over(ranks, n, stage):
    """initialize() once more, of a model whose engine is still there: weights go on, and moments
    begin anew."""
    torch.manual_seed(0)
    model = models.GPT()
    want = [[] for _ in range(n)]
    for step in range(7):
        if step in (0, 3):
            opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
        opt.zero_grad()
        for r in range(n):
            loss = model(*models.tokens(0, r))
            want[r].append(loss.item())
            (loss / n).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    options = {"config": config(stage=stage)}
    said = ranks(TWICE, n, OPTIONS=json.dumps(options), MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=free_port(), LOCAL_SIZE=n)
    for (got,), losses in zip(said, want):
        assert got["losses"] == pytest.approx(losses, abs=2e-4)
        assert got["steps"] == 4 and got["whole"] and "use that one" in got["old"]


NOT_SAVED = HEAD + """
import json
import shardd.deepspeed as deepspeed
o = json.loads(os.environ["OPTIONS"])
engine = deepspeed.initialize(model=models.GPT(), config=o["config"])[0]
engine.backward(engine(*models.tokens(0, engine.global_rank)))
engine.step()
try:
    engine.save_checkpoint(o["dir"])
    text = ""
except Exception as e:
    text = str(e)
say(text=text)
engine.destroy()
"""


def test_what_rank_0_cannot_save_all_ranks_are_told(ranks, tmp_path):
    """They would wait for it in a barrier."""
    (tmp_path / "global_step1").write_text("in the way")
    options = {"config": config(), "dir": str(tmp_path)}
    said = ranks(NOT_SAVED, 2, OPTIONS=json.dumps(options), MASTER_ADDR="127.0.0.1",
                 MASTER_PORT=free_port(), LOCAL_SIZE=2)
    assert all("global_step1" in r["text"] for (r,) in said), said
    assert "rank 0 did not save" in said[1][0]["text"]


SUMS = HEAD + """
import json
import shardd.deepspeed as deepspeed
from shardd.deepspeed import comm
o = json.loads(os.environ["OPTIONS"])
torch.manual_seed(0)
model = models.GPT()
engine = deepspeed.initialize(model=model, config=o["config"])[0]
rank, gas = engine.global_rank, engine.gradient_accumulation_steps()
twin = models.GPT().bfloat16()
twin.load_state_dict(model.state_dict())
want = {n: torch.zeros(p.shape) for n, p in twin.named_parameters()}
for micro in range(gas):
    x, y = models.tokens(micro, rank)
    twin.zero_grad()
    (twin(x, y) / (gas if o["how"] != "as it is" else 1)).backward()
    for n, p in twin.named_parameters():
        want[n] += p.grad.float()
    loss = engine(x, y)
    if o["how"] == "script":
        loss.backward()
    elif o["how"] == "scale":
        engine.scale(loss).backward()
    else:
        engine.backward(loss, scale_wrt_gas=False)
    if engine.is_gradient_accumulation_boundary():
        far = 0.0
        for n, p in model.named_parameters():
            comm.all_reduce(want[n])
            got, mean = deepspeed.utils.safe_get_full_grad(p), want[n] / engine.world_size
            far = max(far, float((got - mean).abs().max() / mean.abs().max()))
    engine.step()
say(far=far, steps=engine.global_steps)
engine.destroy()
"""


@pytest.mark.parametrize("how, stage", [("script", 2), ("scale", 1), ("as it is", 3)])
def test_micro_batches_in_bf16_are_summed_in_fp32(ranks, how, stage):
    """The gradient is the mean of what each backward pass made, where torch and DeepSpeed round
    it to bf16 after each of them."""
    options = {"how": how, "config": config(stage=stage, gas=4, bf16={"enabled": True})}
    for (r,) in ranks(SUMS, 2, OPTIONS=json.dumps(options), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=free_port(), LOCAL_SIZE=2):
        assert r["far"] < 1e-5 and r["steps"] == 1
