# SPDX-License-Identifier: Apache-2.0
"""Models come and go for hundreds of steps, in one trainer and one daemon. Nothing piles up.

In each cycle a model is defined, trained, left, attached to, trained on, and dropped. After the
warm-up the trainer and the daemon have as many descriptors, threads and mappings at the end of a
cycle as before, and as much memory, but for less than one model's in all. The warm-up is long,
because a heap grows until it has seen the worst order of events. The slow test has 10,000 steps of
one model and then 200 trainers that come and go.
"""

import ctypes
import gc
import os
import signal
import statistics

import pytest
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


def run(address, times, each):
    """Calls each(i) so often. What the trainer and the daemon had after each of them."""
    Session(address).disconnect()
    daemon = daemon_of(address)
    rows = {"trainer": [], "daemon": []}
    try:
        for i in range(times):
            each(i)
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            for who, pid in (("trainer", os.getpid()), ("daemon", daemon)):
                rows[who].append(measured(pid))
    finally:
        os.kill(daemon, signal.SIGTERM)
    return rows


def check(rows, warm, most):
    """After the warm-up nothing grows, and memory by less than `most` bytes."""
    for who, seen in rows.items():
        seen = seen[warm:]
        for key in ("fds", "threads", "maps"):
            values = [row[key] for row in seen]
            assert not grows(values), (who, key, values)
        pss = [row["pss"] for row in seen]
        more = statistics.median(pss[-12:]) - statistics.median(pss[:12])
        print(f"soak: {who}: {seen[-1]}, {more / 1024:+.0f} KiB in {len(seen)} cycles")
        assert more < most, (who, pss)


def test_nothing_piles_up(address, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARD_LINGER", "300s")
    rows = run(address, CYCLES, lambda i: cycle(i, address, str(tmp_path)))
    check(rows, WARM, 4 * WIDTH * WIDTH)


@pytest.mark.slow
def test_ten_thousand_steps_and_two_hundred_trainers(address, monkeypatch):
    """A model of 125,000 parameters, which is 0.5 MiB."""
    monkeypatch.setenv("SHARD_LINGER", "300s")
    x = torch.ones(1, 354)

    def begin():
        model = torch.nn.Linear(354, 354, bias=False)
        return model, shardd.AdamW(model, lr=1e-3, name="long", address=address, timeout=60)

    def some(model, opt, count):
        for _ in range(count):
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()

    held = []

    def long(i):
        held.append(held.pop() if held else begin())
        some(*held[0], 100)
        if i == 99:
            assert held[0][1].global_step == 10_000
            held.pop()[1].close(drop=False)

    def short(_):
        model, opt = begin()
        before = opt.global_step
        some(model, opt, 2)
        assert opt.global_step == before + 2 > 10_000
        opt.close(drop=False)

    rows = run(address, 300, lambda i: long(i) if i < 100 else short(i))
    for part, warm in ((slice(0, 99), 20), (slice(100, 300), 40)):  # At 99 the first one leaves.
        check({who: seen[part] for who, seen in rows.items()}, warm, 1 << 19)
