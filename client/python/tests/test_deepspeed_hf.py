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
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "checkpoint-2").symlink_to(tmp_path / "a" / "checkpoint-2")
    got = train({**base, **two, "out": str(tmp_path / "b"), "steps": 4, 
                 "resume": str(tmp_path / "a" / "checkpoint-2")}, 2, address + "b")[0]
    same(got[:3], want[:3])
    assert [x[0] for x in got] == [1, 2, 3, 4]
    last = train({**base, **one, "out": str(tmp_path / "c"),
                  "resume": str(tmp_path / "b" / "checkpoint-4")}, 1, address + "c")[0]
    assert [x[0] for x in last] == [1, 2, 3, 4, 5, 6]
    assert all(x[1] == x[1] for x in last)


def test_every_rank_on_the_same_batch_is_said(address, tmp_path):
    """use_cpu=False on a machine without a GPU: Accelerate counts one process on each rank."""
    log, err = train({"out": str(tmp_path), "ds": ds(2), "use_cpu": False, "steps": 2}, 2, address)
    assert "Accelerate counts one process" in err and "use_cpu=True" in err
