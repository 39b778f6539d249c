# SPDX-License-Identifier: Apache-2.0
"""What each rank of a node costs in memory, measured as the kernel counts it.

A rank has an arena for its gradients, and maps the parameters that all ranks of the node share. So
with each rank more the sum of PSS, which divides a shared page among those who map it, grows by no
more than an arena, half of which counts for the daemon, which maps it, too, and by what a process
with torch takes in any case. The latter is measured by the same script with a model of a few
parameters.
"""

import os
import subprocess
import sys

import pytest

RANK = """
import ctypes
import sys
import torch
import shardd

layers, width, bf16 = int(os.environ["LAYERS"]), int(os.environ["WIDTH"]), os.environ.get("BF16")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
if bf16:
    model = model.to(torch.bfloat16)
opt = shardd.AdamW(model, lr=1e-3, name="memory")
for step in range(3):
    x = torch.randn(1, width, dtype=torch.bfloat16 if bf16 else torch.float32)
    model(x).float().square().mean().backward()
    opt.step()
    opt.zero_grad()
say(ready=True)
sys.stdin.readline()     # All ranks stand here while the test measures.
ctypes.CDLL(None).malloc_trim(0)   # What torch freed, and glibc keeps for its next gradients.
rows = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
kib = {k: int(v.split()[0]) for k, v in rows.items()}
say(pss=kib["Pss"] << 10, anon=kib["Pss_Anon"] << 10, shmem=kib["Pss_Shmem"] << 10)
sys.stdin.readline()     # And until everybody has measured.
"""


def measured(start, n, **env):
    """The sums over n ranks of what each of them measured while all lived, in bytes."""
    members = [start(RANK, r, n, **env) for r in range(n)]
    sums = {}
    for heard in ({"ready"}, {"pss", "anon", "shmem"}):
        for m in members:
            said = m.hear()
            assert set(said) == heard, m.wait()
            for k, v in said.items():
                sums[k] = sums.get(k, 0) + v
        for m in members:
            m.go()
    for m in members:
        status, _, err = m.wait()
        assert status == 0, err
    return sums


def per_rank(start, n, layers, width, **env):
    """By how much each rank after the first adds to the sum of PSS, less a process without a model."""
    grows = []
    for which, shape in (("big", (layers, width)), ("small", (1, 8))):
        name = {"LAYERS": shape[0], "WIDTH": shape[1], **env}
        one, all_of_them = (measured(start, k, SHARDD_MODEL=f"{which}{k}", **name) for k in (1, n))
        grows.append((all_of_them["pss"] - one["pss"]) / (n - 1))
    return grows[0] - grows[1]


def test_a_rank_more_is_an_arena_more(start):
    arena = 10 * 1024 * 1024 * 4
    more = per_rank(start, 2, 10, 1024)
    assert 0.4 * arena < more < 1.02 * arena, (more / arena, more)


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_100_m_parameters(start, n, bf16):
    arena = 96 * 1024 * 1024 * (2 if bf16 else 4)
    more = per_rank(start, n, 96, 1024, **({"BF16": "1"} if bf16 else {}))
    print(f"memory: {n} ranks, {'bf16' if bf16 else 'fp32'}: {more / arena:.4f} arenas a rank")
    assert 0.4 * arena < more < 1.02 * arena, more / arena
    ddp = 12 * 96 * 1024 * 1024  # Gradients and two moments, which each of its ranks has, in fp32.
    assert more < ddp


def test_the_compiler_of_torch_is_not_imported(address):
    """Making and using an Optimizer does without torch._dynamo, which takes 70 MiB and 2 s, and
    with it, where it is there, all is the same."""
    code = """
import sys, torch, shardd
def train(name):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    opt = shardd.AdamW([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1}], lr=1e-2,
                       name=name)
    model(torch.ones(2, 8)).sum().backward()
    opt.step()
    opt.zero_grad()
    groups = [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    sums = [p.double().sum().item() for p in model.parameters()]
    opt.close()
    return groups, sums
without = train("without")
assert "torch._dynamo" not in sys.modules
import torch._dynamo
assert train("with") == without
"""
    subprocess.run([sys.executable, "-c", code], check=True,
                   env={**os.environ, "SHARD_ADDRESS": address})
