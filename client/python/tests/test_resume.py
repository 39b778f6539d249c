# SPDX-License-Identifier: Apache-2.0
"""A job that starts again and finds its model: with real processes and a private daemon."""

import os
import signal

import pytest
import torch

import shardd
from test_elastic import daemon_of

# The ranks of a job whose first weights differ by seed. Rank 0's count.
JOB = """
import logging
import time
import torch
import shardd
logging.basicConfig(level=logging.WARNING)
torch.manual_seed(int(os.environ["SEED"]))
model = torch.nn.Linear(4, 2)
opt = shardd.AdamW(model, lr=0.01, name="job", timeout=60)
say(first=model.weight.tolist())
if os.environ.get("CRASHES"):
    time.sleep(600)
for step in range(3):
    model(torch.ones(1, 4)).sum().backward()
    opt.step()
say(ranks=opt.world_size, steps=opt.global_step, applied=opt.applied,
    last=model.weight.tolist())
opt.close(drop=False)
"""


@pytest.fixture
def daemons():
    """Processes of private daemons that end with the test, and not when nobody comes any more."""
    found = []
    yield found
    for pid in found:
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("before,after", [(1, 2), (2, 1)])
def test_a_crash_before_the_first_step_is_begun_anew(start, address, daemons, before, after):
    """The model that a job of another size left at step 0 is no trap for the next job."""
    crashed = [start(JOB, r, before, SEED=7, CRASHES=1, SHARD_LINGER="300s") for r in range(before)]
    for r in crashed:
        assert r.hear()
    daemons.append(daemon_of(address))
    for r in crashed:
        r.kill()
    # Rank 0, which defines the model, comes last.
    job = [start(JOB, r, after, SEED=8 + r, SHARD_LINGER="300s") for r in reversed(range(after))]
    ends = [r.wait(120) for r in reversed(job)]
    for status, said, err in ends:
        assert status == 0, err
        assert said[1]["ranks"] == after and said[1]["steps"] == said[1]["applied"] == 3
        assert said[1]["last"] == ends[0][1][1]["last"]
    assert "is dropped and defined anew" in ends[0][2]
    torch.manual_seed(8)
    assert ends[0][1][0]["first"] == torch.nn.Linear(4, 2).weight.tolist()


def test_a_model_that_made_a_step_is_gone_on_with(start, address, daemons):
    """Only what made no step is dropped: another number of ranks is no reason to lose weights."""
    status, said, err = start(JOB, 0, 1, SEED=7, SHARD_LINGER="300s").wait(120)
    assert status == 0, err
    r = start(JOB, 0, 2, SEED=8, CRASHES=1, SHARD_LINGER="300s")
    word = r.hear()
    daemons.append(daemon_of(address))
    assert word["first"] == said[1]["last"]
    r.kill()
    assert "goes on with the settings that it has" in r.stderr()


def step_of(model, opt):
    model(torch.ones(1, 4)).sum().backward()
    opt.step()


@pytest.mark.parametrize("where", [None, "ck", "./ck/../ck", "ck/found"])
def test_what_was_saved_is_found(address, tmp_path, monkeypatch, where):
    """A new model begins with it, however the folder of checkpoints was named."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 2)
    words = dict(name="found", address=address, timeout=60, checkpoint_dir="ck")
    opt = shardd.AdamW(model, **words)
    step_of(model, opt)
    opt.save(where)
    assert sorted(os.listdir("ck/found")) == ["global_step1", "latest"]
    assert os.listdir("ck") == ["found"]
    opt.close(drop=True)
    again = torch.nn.Linear(4, 2)
    opt = shardd.AdamW(again, **words)
    assert opt.global_step == 1 and torch.equal(again.weight, model.weight)
    opt.close(drop=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint in ck. There are some in its "
                                                "folders found"):
        shardd.from_checkpoint("ck")
    assert torch.equal(shardd.from_checkpoint("ck/found")["weight"], model.weight)


def test_saves_one_after_the_other(address, tmp_path):
    """save() waits for the one that is under way. wait=False says how it ended when it is asked."""
    model = torch.nn.Linear(2000, 2000)
    opt = shardd.AdamW(model, name="saves", address=address, timeout=60,
                       checkpoint_dir=str(tmp_path))
    model(torch.ones(1, 2000)).sum().backward()
    opt.step()
    first = opt.save(tag="first", wait=False)
    refused = opt.save(tag="refused", wait=False)
    assert opt.save(tag="second") is None
    first.wait()
    with pytest.raises(shardd.Error, match="is being saved to .*/first: one at a time") as e:
        refused.wait(60)
    assert e.value.status == "SHARD_BUSY" and first.done() and refused.done()
    there = [tmp_path / "saves" / x for x in ("first", "second", "refused")]
    assert [x.is_dir() for x in there] == [True, True, False]
    opt.close(drop=True)


def test_applied_is_the_models(address):
    """opt.applied, and step in opt.state, are those of the model also after an attach."""
    model = torch.nn.Linear(4, 2)
    opt = shardd.AdamW(model, name="counts", address=address, timeout=60)
    assert opt.applied == 0
    for _ in range(3):
        step_of(model, opt)
    assert opt.applied == 3
    opt.close(drop=False)
    opt = shardd.AdamW(model, name="counts", address=address, timeout=60)
    assert opt.applied == 3 and opt.state[model.weight]["step"] == 3
    step_of(model, opt)
    assert opt.applied == 4 and opt.state[model.weight]["step"] == 4
    opt.close()
