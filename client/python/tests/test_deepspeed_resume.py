# SPDX-License-Identifier: Apache-2.0
"""load_checkpoint() with another number of ranks: the run goes on as if it had not ended."""

import json

import pytest

import shardd
from test_deepspeed_engine import HEAD, config, free_port

# The same global batch in each step, whatever the number of ranks and accumulation steps.
SCRIPT = HEAD + """
import json
import shardd.deepspeed as deepspeed
o = json.loads(os.environ["OPTIONS"])
torch.manual_seed(o["seed"])
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
model.register_buffer("seen", torch.zeros(()))
engine, opt, _, sched = deepspeed.initialize(model=model, config=o["config"])
client = engine.load_checkpoint(o["load"])[1] if o["load"] else {}
gas, size = engine.gradient_accumulation_steps(), engine.train_micro_batch_size_per_gpu()
losses, scales, rates = [], [opt.cur_scale], []
say(step=engine.global_steps, client=client, scale=opt.cur_scale, applied=opt.applied,
    samples=engine.global_samples, seen=model.seen.item())
for step in range(engine.global_steps, o["last"]):
    x, y, _ = models.vectors(step, 0, batch=8)
    mine = [(m * engine.world_size + engine.global_rank) * size for m in range(gas)]
    total = 0.0
    for first in mine:
        out = engine(x[first:first + size].half()).float()
        loss = torch.nn.functional.cross_entropy(out, y[first:first + size])
        engine.backward(loss * (float("inf") if step in o["bad"] else 1.0))
        engine.step()
        total += loss.item() / gas
    model.seen += 1
    losses.append(total)
    scales.append(opt.cur_scale)
    rates.append(engine.get_lr()[0])
    if step + 1 in o["save"]:
        engine.save_checkpoint(o["folder"], client_state={"epoch": step + 1})
say(losses=losses, scales=scales, rates=rates, skipped=engine.skipped_steps, applied=opt.applied,
    samples=engine.global_samples, micro=engine.micro_steps % gas,
    weights=[opt.read(p).flatten().tolist() for p in model.parameters()])
engine.destroy()
"""

FP16 = {"enabled": True, "initial_scale_power": 6, "loss_scale_window": 2, "hysteresis": 2}


@pytest.fixture
def train(ranks, tmp_path):
    def run(n, last, gas=1, **words):
        options = {"config": config(gas=gas, fp16=FP16, shardd={"name": "resumes"},
                                    train_micro_batch_size_per_gpu=8 // (n * gas),
                                    scheduler={"type": "WarmupLR",
                                               "params": {"warmup_num_steps": 6}}),
                   "folder": str(tmp_path), "last": last, "load": None, "save": [], "bad": [2, 5],
                   "seed": 0, **words}
        return ranks(SCRIPT, n, OPTIONS=json.dumps(options), MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=free_port())
    return run


def mean(said):
    return [sum(r[1]["losses"][i] for r in said) / len(said)
            for i in range(len(said[0][1]["losses"]))]


def test_with_another_number_of_ranks(train, tmp_path):
    """2 ranks, then 1 that accumulates, then 4: losses, loss scales and rates of one run of 2."""
    whole = train(2, 9, save=[3])
    want = whole[0][1]
    fewer = train(1, 6, gas=4, load=str(tmp_path), save=[6], seed=1)
    assert fewer[0][0] == {"step": 3, "client": {"epoch": 3}, "scale": want["scales"][3],
                           "applied": 2, "samples": 24, "seen": 3}
    more = train(4, 9, load=str(tmp_path), seed=2)
    assert [r[0]["step"] for r in more] == [6] * 4
    for said, first, last in ((fewer, 3, 6), (more, 6, 9)):
        assert said[0][1]["scales"] == want["scales"][first:last + 1]
        assert said[0][1]["rates"] == want["rates"][first:last]
        assert mean(said) == pytest.approx(mean(whole)[first:last], abs=2e-3)
        assert said[0][1]["micro"] == 0
    for key in ("skipped", "applied", "samples"):
        assert more[0][1][key] == want[key], key
    for got, sought in zip(more[0][1]["weights"], want["weights"]):
        assert got == pytest.approx(sought, abs=2e-3)
    # What was loaded is what was saved, and not the like of it.
    assert shardd.Checkpoint(tmp_path, "global_step6").applied == 4
