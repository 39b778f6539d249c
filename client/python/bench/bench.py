# SPDX-License-Identifier: Apache-2.0
"""A step with shardd beside the same step with others, on the CPUs of this machine.

bench.py BUILD [--quick] [--rounds N] [--ranks 2,4] [--sizes 21,100] [--systems a,b]

For each size and number of ranks every system is run in turn, --rounds times over, so that a
machine that becomes slower is slower for all. Of each the median and the minimum of its steps are
printed, what comes after backward, the memory of the ranks and of the daemon (PSS, so that what is
shared counts once), and the losses of the first, the middle and the last step. Those of shardd lie
within those of the others, or agree with one of them to five digits. "bare" is forward and backward alone. Lines "bench:" compare:
torch_step has the median step and as limit that of the best other system; torch_tail has what comes
after backward, and as limit the time in which this machine's memory moves the 28 bytes per
parameter that AdamW has to move; torch_memory has all memory, and as limit that of the best other
one. torch_memory_bf16 is the same for bf16 weights with fp32 masters, with the best other one that
has these as limit, and torch_memory_bf16_fp32 with the best other one in fp32. Systems in bf16 make
few steps, once, for their memory alone: without AVX-512 or AMX torch takes seconds for each.

torch_first_step is before all that: for how much longer a new process is on its way to the end of
its first step with shardd.AdamW and a private daemon than with torch.optim.AdamW, import of torch
and all. At most 1 s.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SYSTEMS = ["bare", "shardd-fp32", "ddp-fused", "ddp-zero1", "fsdp2-z2", "fsdp2-z3", "deepspeed-0",
           "deepspeed-1", "deepspeed-2", "deepspeed-3", "shardd-bf16", "fsdp2-z3-bf16",
           "deepspeed-2-bf16", "deepspeed-3-bf16"]
BF16_STEPS = 2
SIZES = {"1": (128, 3), "21": (512, 6), "100": (1024, 8)}  # Millions: hidden size, layers.
TIMEOUT_S = 900
FIRST_ROUNDS, FIRST_LIMIT_S = 5, 1.0
# What a process does that has nothing but the wheel: it imports, makes a model, takes one step.
FIRST = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
if {shardd}:
    import shardd
    opt = shardd.AdamW(model, lr=1e-3, name="first")
else:
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.ones(4, 64)).square().mean().backward()
opt.step()
print("STEPPED", flush=True)
if {shardd}:
    opt.close()
"""


def daemons(name):
    """The private daemons of this name, found by their folder in their command line."""
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                words = (p / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"shardd" in words[0] and any(name.encode() in w for w in words[1:]):
                yield p


def daemon_memory(name):
    """PSS of the private daemon in MiB."""
    total = 0.0
    for p in daemons(name):
        try:
            text = (p / "smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", text, flags=re.M).group(1)) / 1024
        except OSError:
            continue
    return total


def environment(build, name):
    """Of a process that trains with a private daemon, which ends with its trainers."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "SHARD_ADDRESS": f"spawn:{name}",
            "SHARD_LINGER": "1s", "SHARDD_LIB": f"{build}/libshard.so.0",
            "SHARD_DAEMON": f"{build}/shardd", "PYTHONPATH": str(HERE.parent / "src")}


def gone(name):
    """Waits until the private daemon has ended, which it does by itself."""
    end = time.monotonic() + 20
    while any(daemons(name)):
        if time.monotonic() > end:
            sys.exit(f"bench: the daemon of spawn:{name} is still there")
        time.sleep(0.01)


def first_step(build, shardd):
    """Seconds from the start of a process to the end of its first step."""
    name = f"first-{os.getpid()}"
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", FIRST.format(shardd=shardd)], text=True,
                          env=environment(build, name), stdout=subprocess.PIPE) as p:
        said = any(line == "STEPPED\n" for line in iter(p.stdout.readline, ""))
        took = time.monotonic() - began
    if not said or p.returncode:
        sys.exit(f"bench: the process that takes a first step ended with {p.returncode}")
    gone(name)  # So that the next one starts its own.
    return took


def first_steps(build, rounds):
    for shardd in (True, False):
        first_step(build, shardd)  # What they read is in the page cache from then on.
    more = []
    for k in range(rounds):
        took = {s: first_step(build, s) for s in ((True, False) if k % 2 else (False, True))}
        more.append(took[True] - took[False])
        print(f"  first step: {took[True]:.2f} s with shardd, {took[False]:.2f} s with torch",
              file=sys.stderr, flush=True)
    line("torch_first_step", statistics.median(more), "s", FIRST_LIMIT_S)


def run(build, system, size, ranks, steps):
    """One system once. Returns what its ranks said, and the memory of its daemon."""
    name = f"bench-{os.getpid()}"
    env = {**environment(build, name), "WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks),
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + time.monotonic_ns() % 10000),
           "DS_ACCELERATOR": "cpu"}
    d, layers = SIZES[size]
    all_of_them = [subprocess.Popen(
        [sys.executable, str(HERE / "rank.py"), system, str(d), str(layers), str(steps)],
        env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(ranks)]
    said, end = [], time.monotonic() + TIMEOUT_S
    for p in all_of_them:
        for line in p.stdout:
            if line.startswith("RANK "):
                said.append(json.loads(line[5:]))
                break
        if len(said) < 1 or time.monotonic() > end:
            break
    daemon = daemon_memory(name) if system.startswith("shardd") else 0.0
    failed = len(said) < ranks
    for p in all_of_them:
        if failed:
            p.kill()
        out, err = p.communicate("\n")
        if failed:
            sys.exit(f"bench: {system} with {ranks} ranks failed:\n{err[-3000:]}")
    gone(name)
    return said, daemon


def floor_ms(build, params):
    """The time in which this machine moves what AdamW moves: 28 bytes per parameter."""
    out = subprocess.run([f"{build}/tests/bench/bench_kernel"], capture_output=True, text=True,
                         check=True).stdout
    rate = re.search(r"adamw_kernel .* limit ([\d.]+)", out).group(1)
    return 28 * params / (float(rate) * 1e9) * 1000


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("build")
    a.add_argument("--quick", action="store_true", help="1 M parameters, 2 ranks, one round")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--steps", type=int, default=14)
    a.add_argument("--ranks", default="2,4")
    a.add_argument("--sizes", default="21,100")
    a.add_argument("--systems", default=",".join(SYSTEMS))
    o = a.parse_args()
    if o.quick:
        o.rounds, o.ranks, o.sizes, o.steps = 1, "2", "1", 8
    build = os.path.abspath(o.build)
    systems = o.systems.split(",")
    first_steps(build, 1 if o.quick else FIRST_ROUNDS)
    for size in o.sizes.split(","):
        for ranks in map(int, o.ranks.split(",")):
            found = {s: [] for s in systems}
            timed = [s for s in systems if not s.endswith("bf16")]
            for k in range(o.rounds if timed else 0):
                for s in timed[k % len(timed):] + timed[:k % len(timed)]:
                    found[s].append(run(build, s, size, ranks, o.steps))
                    print(f"  round {k + 1} of {o.rounds}: {told(s, found[s][-1:], ranks)}",
                          file=sys.stderr, flush=True)
            for s in [s for s in systems if s not in timed]:
                found[s].append(run(build, s, size, ranks, BF16_STEPS))
                print(f"  once: {told(s, found[s], ranks)}", file=sys.stderr, flush=True)
            report(build, size, ranks, found)


def figures(runs, ranks):
    """Of one system: ms of a step (median, least), ms after backward, MiB of a rank and in all."""
    steps = [max(ms) for said, _ in runs for ms in zip(*[r["steps"] for r in said])]
    tails = [min(ms) for said, _ in runs for ms in zip(*[r["tail"] for r in said])]
    daemon = statistics.median([d for _, d in runs])
    each = statistics.median([statistics.mean([r["memory"] for r in said]) for said, _ in runs])
    return (statistics.median(steps), min(steps), statistics.median(tails), each,
            each * ranks + daemon, runs[0][0][0]["losses"])


def told(system, runs, ranks):
    """What a run found, for whoever waits, and if a later one fails."""
    step, least, tail, _, total, _ = figures(runs, ranks)
    return (f"{system}: {step:.0f} ms, {least:.0f} at least, {tail:.0f} after backward, "
            f"{total:.0f} MiB in all")


def report(build, size, ranks, found):
    rows = {s: figures(runs, ranks) for s, runs in found.items()}
    params = next(iter(found.values()))[0][0][0]["params"]
    print(f"\n{params / 1e6:.1f} M parameters, {ranks} ranks\n")
    print("| system | step ms, median | min | after backward ms | MiB per rank | MiB in all "
          "| loss |")
    print("|---|---|---|---|---|---|---|")
    for s, (median, least, tail, each, total, losses) in rows.items():
        times = "- | - | -" if s.endswith("bf16") else f"{median:.0f} | {least:.0f} | {tail:.0f}"
        print(f"| {s} | {times} | {each:.0f} | {total:.0f} | " +
              " ".join(f"{x:.5f}" for x in losses) + " |")
    others = {s: r for s, r in rows.items() if not s.startswith(("shardd", "bare"))}
    halves = {s: others.pop(s) for s in list(others) if s.endswith("bf16")}
    label = f"{size}m_{ranks}r"
    if "shardd-fp32" in rows and others:
        mine = rows["shardd-fp32"]
        line(f"torch_step_{label}", mine[0], "ms", min(r[0] for r in others.values()))
        line(f"torch_tail_{label}", mine[2], "ms", floor_ms(build, params))
        line(f"torch_memory_{label}", mine[4], "MiB", min(r[4] for r in others.values()))
        for mine_now, theirs in zip(mine[5], zip(*(r[5] for r in others.values()))):
            # They agree to five digits, or as far as the others do among themselves.
            if not min(theirs) * (1 - 1e-5) <= mine_now <= max(theirs) * (1 + 1e-5):
                sys.exit(f"bench: a loss of shardd is {mine_now}, and those of others {theirs}")
    for end, them in (("", halves), ("_fp32", others)):
        if "shardd-bf16" in rows and them:
            line(f"torch_memory_bf16{end}_{label}", rows["shardd-bf16"][4], "MiB",
                 min(r[4] for r in them.values()))


def line(name, value, unit, limit):
    print(f"bench: {name} {value:.2f} {unit} limit {limit:.2f} ratio {value / limit:.3f}",
          flush=True)


if __name__ == "__main__":
    main()
