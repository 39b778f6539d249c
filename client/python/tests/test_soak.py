# SPDX-License-Identifier: Apache-2.0
"""Models come and go for hundreds of steps, in one trainer and one daemon. Nothing piles up.

In each cycle a model is defined, trained, left, attached to, trained on, and dropped. After the
warm-up the trainer and the daemon have as many descriptors, threads and mappings at the end of a
cycle as before, and as much memory, but for less than one model's in all. The warm-up is long,
because a heap grows until it has seen the worst order of events.
"""

import ctypes
import gc
import os
import signal
import statistics

import torch

import shardd
from shardd.session import Session
from test_elastic import daemon_of

CYCLES, WARM, STEPS = 72, 24, 4
WIDTH = 512  # A model of 1 MiB, of which a leak in each cycle would be 48 MiB.
KINDS = [dict(), dict(params="copy"), dict(accumulate=2, dtype=torch.bfloat16), dict(grads="keep")]


def measured(pid):
    """What a process has now. PSS is in bytes, without files, which other programs map, too."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        maps = sum(1 for _ in f)
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
        pss = sum(int(line.split()[1]) << 10 for line in f
                  if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    count = {k: len(os.listdir(f"/proc/{pid}/{folder}"))
             for k, folder in (("fds", "fd"), ("threads", "task"))}
    return {**count, "maps": maps, "pss": pss}


def steps(model, opt, x, accumulate=1):
    for _ in range(STEPS):
        for _ in range(accumulate):
            model(x).float().square().mean().backward()
        opt.step()
        opt.zero_grad()


def cycle(i, address, folder):
    words = dict(lr=1e-3, name=f"soak{i % 5}", address=address, timeout=60, **KINDS[i % len(KINDS)])
    dtype, accumulate = words.get("dtype", torch.float32), words.get("accumulate", 1)
    x = torch.ones(1, WIDTH, dtype=dtype)
    for last in (False, True):
        model = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype)
        opt = shardd.AdamW(model, **words)
        assert opt.global_step == (STEPS if last else 0)
        steps(model, opt, x, accumulate)
        if last:
            model(x).float().sum().backward()
            opt.zero_grad()  # An attempt that is abandoned.
            opt.save(folder, words["name"])
        opt.close(drop=last)


def grows(values):
    """Whether what a process has is still more in the second half than ever in the first."""
    half = len(values) // 2
    return max(values[half:]) > max(values[:half])


def test_nothing_piles_up(address, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARD_LINGER", "300s")
    Session(address).disconnect()
    daemon = daemon_of(address)
    rows = {"trainer": [], "daemon": []}
    try:
        for i in range(CYCLES):
            cycle(i, address, str(tmp_path))
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            for who, pid in (("trainer", os.getpid()), ("daemon", daemon)):
                rows[who].append(measured(pid))
    finally:
        os.kill(daemon, signal.SIGTERM)
    for who, seen in rows.items():
        warm = seen[WARM:]
        for key in ("fds", "threads", "maps"):
            values = [row[key] for row in warm]
            assert not grows(values), (who, key, values)
        pss = [row["pss"] for row in warm]
        more = statistics.median(pss[-12:]) - statistics.median(pss[:12])
        print(f"soak: {who}: {warm[-1]}, {more / 1024:+.0f} KiB in {len(warm)} cycles")
        assert more < 4 * WIDTH * WIDTH, (who, pss)
