# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, unchanged, under `python -m shardd.deepspeed`: its log equals plain's."""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).with_name("hf_train.py")


def ds(stage, **more):
    """A ds_config as Transformers' guides show it."""
    return {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}},
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {k: "auto" for k in
                                                      ("lr", "weight_decay", "betas", "eps")}},
            **more}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def train(words, ranks, address=None):
    """The log of a run: [step, loss, grad_norm, lr] of each step. No address: without shardd."""
    env = {**os.environ, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
           "LOCAL_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
           "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}
    if address:
        env["SHARD_ADDRESS"] = address
    run = [sys.executable, *(["-m", "shardd.deepspeed"] if address else []), str(SCRIPT),
           json.dumps(words)]
    started = [subprocess.Popen(run, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
               for r in range(ranks)]
    try:
        done = [p.communicate(timeout=400) for p in started]
    finally:
        for p in started:
            if p.poll() is None:
                p.kill()
                p.communicate()
    for p, (out, err) in zip(started, done):
        assert p.returncode == 0, err[-4000:]
    return json.loads(next(x for x in done[0][0].splitlines() if x.startswith("LOG "))[4:]), \
        "".join(err for _, err in done)


@functools.lru_cache(maxsize=None)
def plain(text, ranks):
    return train(json.loads(text), ranks)[0]


def same(got, want, digits=4):
    assert [x[0] for x in got] == [x[0] for x in want]
    for a, b in zip(got, want):
        assert abs(a[1] - b[1]) < 10 ** -digits * max(1, abs(b[1])), (got, want)
        assert abs(a[2] - b[2]) < 10 ** (1 - digits) * max(1, abs(b[2])), (got, want)


@pytest.mark.parametrize("arch, stage, ranks, accumulation", [
    ("llama", 0, 1, 1), ("llama", 1, 2, 2), ("llama", 2, 2, 1), ("llama", 3, 2, 2),
    ("gpt2", 2, 1, 2), ("gpt2", 3, 2, 1)])
def test_log_equals_plain(arch, stage, ranks, accumulation, address, tmp_path):
    words = {"arch": arch, "accumulation": accumulation, "out": str(tmp_path)}
    want = plain(json.dumps({**words, "out": "/tmp/none"}), ranks)
    same(train({**words, "ds": ds(stage)}, ranks, address)[0], want)


@pytest.mark.parametrize("more", [{"gc": True}, {"peft": True}], ids=str)
def test_recomputation_and_adapters(more, address, tmp_path):
    want = plain(json.dumps({**more, "out": "/tmp/none"}), 1)
    same(train({**more, "out": str(tmp_path), "ds": ds(2)}, 1, address)[0], want)


def test_optimizer_and_scheduler_of_the_script(address, tmp_path):
    """Without optimizer and scheduler in the file, the Trainer's own are taken over."""
    config = ds(2)
    del config["optimizer"]
    same(train({"out": str(tmp_path), "ds": config}, 1, address)[0],
         plain(json.dumps({"out": "/tmp/none"}), 1))


def test_resume_with_other_numbers_of_ranks(address, tmp_path):
    """1 -> 2 -> 1 ranks, the same global batch: the log equals that of an uninterrupted run."""
    one, two = {"batch": 8}, {"batch": 4}
    base = {"ds": ds(2), "steps": 6, "save": 2}
    want = train({**base, **one, "out": str(tmp_path / "a")}, 1, address)[0]
    got = train({**base, **two, "out": str(tmp_path / "b"),
                 "resume": str(tmp_path / "a" / "checkpoint-2")}, 2, address + "b")[0]
    same(got, want)
    last = train({**base, **one, "out": str(tmp_path / "c"),
                  "resume": str(tmp_path / "b" / "checkpoint-4")}, 1, address + "c")[0]
    same(last, want)


def test_every_rank_on_the_same_batch_is_said(address, tmp_path):
    """use_cpu=False on a machine without a GPU: Accelerate counts one process on each rank."""
    log, err = train({"out": str(tmp_path), "ds": ds(2), "use_cpu": False, "steps": 2}, 2, address)
    assert "Accelerate counts one process" in err and "use_cpu=True" in err


ACCELERATE = """
import json, sys, torch
torch.set_num_threads(1)
from accelerate import Accelerator, DeepSpeedPlugin
import models
o = json.loads(sys.argv[1])
plugin = DeepSpeedPlugin(hf_ds_config=o["ds"]) if o["ds"] else None
acc = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=2)
assert not o["ds"] or acc.distributed_type == "DEEPSPEED"
torch.manual_seed(0)
model = models.GPT()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = [models.tokens(i, 0, batch=1) for i in range(64)]
loader = torch.utils.data.DataLoader([(x[0], y[0]) for x, y in data], batch_size=2)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (1 + i))
model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
log = []
for i, (x, y) in enumerate(loader):
    with acc.accumulate(model):
        loss = model(x, y)
        acc.backward(loss)
        norm = acc.clip_grad_norm_(model.parameters(), 1.0) if acc.sync_gradients else 0.0
        opt.step()
        sched.step()
        opt.zero_grad()
    log.append([i, loss.item(), 0.0, 0.0])
    if i == 7 and o["ds"]:
        acc.save_state(o["out"])
        state = acc.get_state_dict(model)
        acc.load_state(o["out"])
        assert len(state) == len(acc.unwrap_model(model).state_dict())
if acc.process_index == 0:
    print("LOG " + json.dumps(log), flush=True)
"""


def test_a_loop_of_accelerate(address, tmp_path, monkeypatch):
    """One rank: on a machine without a GPU Accelerate has DeepSpeed for one process only."""
    script = tmp_path / "loop.py"
    script.write_text(ACCELERATE)
    monkeypatch.setitem(globals(), "SCRIPT", script)
    config = {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2,
              "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}
    want = train({"ds": None, "out": str(tmp_path / "s")}, 1)[0]
    same(train({"ds": config, "out": str(tmp_path / "s")}, 1, address)[0], want, digits=3)
