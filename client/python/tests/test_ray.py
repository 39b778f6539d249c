# SPDX-License-Identifier: Apache-2.0
"""Ray Train: examples/ray_trainer.py with workers on the CPU, one of which is killed.

Its loss is a plain loop's. With a worker killed it is the same one, bit by bit, whether the workers
go on with what the daemon has or with a checkpoint. `make check-python-frameworks` runs this.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

from frameworks import framework

framework("ray.train")
import torch  # noqa: E402

pytestmark = pytest.mark.slow
EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "ray_trainer.py"
STEPS = 12


@pytest.fixture
def folder():
    """Ray has sockets below it, whose paths are short."""
    made = tempfile.mkdtemp(prefix="shardd-ray-", dir="/tmp")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def run(folder, address, *words, **env):
    """What the example says at its end: step, loss, version, and first step of the last workers."""
    done = subprocess.run(
        [sys.executable, "-m", "shardd.deepspeed", str(EXAMPLE), "--out", folder + "/out",
         *map(str, words)], text=True, capture_output=True, timeout=500,
        env={**os.environ, "SHARD_ADDRESS": address, "RAY_TMPDIR": folder, "DS_ACCELERATOR": "cpu",
             "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
             "SHARD_LINGER": "300s", **env})
    said = re.search(r"^last: step (\d+), loss ([\d.]+), deepspeed (\S+); .* step (\d+)$",
                     done.stdout, re.M)
    assert done.returncode == 0 and said, done.stdout[-4000:] + done.stderr[-6000:]
    return int(said[1]), said[2], said[3], int(said[4])


def plain(ranks=2):
    """The loss of rank 0 in the last step of the same loop in torch."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0)
    for step in range(1, STEPS + 1):
        each = []
        for rank in range(ranks):
            g = torch.Generator().manual_seed(1000 * step + rank)
            x = torch.randint(0, 64, (8, 16), generator=g)
            each.append(torch.nn.functional.cross_entropy(net(x).flatten(0, 1),
                                                          ((x + 1) % 64).flatten()))
        (sum(each) / ranks).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    return each[0].item()


def test_equals_a_plain_loop_and_goes_on(folder, address):
    whole = run(folder, address, "--name", "whole")
    assert whole[0] == STEPS and whole[2:] == ("0.19.8+shardd", 1)
    assert float(whole[1]) == pytest.approx(plain(), rel=1e-5)
    assert float(whole[1]) != pytest.approx(plain(ranks=1), rel=1e-3)
    # The daemon outlives the workers: it is at step 6, though a checkpoint is of step 4.
    killed = run(folder, address + "b", "--kill", 7, "--name", "killed")
    assert killed == (*whole[:3], 7)


def test_goes_on_with_a_checkpoint(folder, address):
    """The private daemon ends with the workers."""
    killed = run(folder, address, "--kill", 7, SHARD_LINGER="1s")
    assert killed[0] == STEPS and killed[2:] == ("0.19.8+shardd", 5)
    assert float(killed[1]) == pytest.approx(plain(), rel=1e-5)
