#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""codec_loss.py BUILD SVG [--steps N] [--seeds N] [--jobs N]: trains the demo's model as eight
nodes with a rank each do, with and without codecs, from several seeds. Blocks have 1024 elements
and each node codes a gradient of two sequences, which is harder than the defaults. The reference
does it in one process, with the bits of daemons. Prints the loss over the last quarter of the steps
(a mean over seeds) and how far that is from the loss without codecs, and plots losses and bytes.
The bytes of a step are those that bench_codecs measures between two daemons. Fails if 8 bits with
error feedback are further from none than the seeds are from each other, or 4 bits without it are
not."""
import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "growth"))
import plot  # noqa: E402

BASE = "optimizer=adamw lr=6e-3 beta2=0.95 clip=1.0 chunk_elems=16384 codec_block=1024"
# Name, settings, bytes by which measured row, colour.
KINDS = (
    ("none", "", None, "#1f5fb4"),
    ("int8", "grad_codec=int8 image_codec=int8", "int8", "#2a8a57"),
    ("int4", "grad_codec=int4 image_codec=int4", "int4", "#c8501e"),
    ("int4, no feedback", "grad_codec=int4 image_codec=int4 error_feedback=no", "int4", "#8a8a8a"),
)


def text_of(path):
    with open(path, "wb") as out:
        for name in sorted(glob.glob("/usr/share/common-licenses/*")):
            if os.path.isfile(name) and not os.path.islink(name):
                with open(name, "rb") as f:
                    out.write(f.read())
    if os.path.getsize(path) == 0:
        sys.exit("codec_loss: no text to train on in /usr/share/common-licenses")


def losses(build, data, settings, seed, steps):
    done = subprocess.run(
        [f"{build}/reference", "--data", data, "--steps", str(steps), "--seed", str(seed),
         "--nodes", "1,1,1,1,1,1,1,1", "--dtype", "bf16",
         "--settings", f"{BASE} {settings}".strip()],
        stdout=subprocess.PIPE, check=True, text=True)
    return [float(x) for x in re.findall(r"\bloss=(\S+)", done.stdout)]


def measured_bytes(build):
    done = subprocess.run([f"{build}/tests/bench/bench_codecs", "--quick"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, text=True)
    m = re.search(r"int8 ([\d.]+), int4 ([\d.]+) of the bytes", done.stderr)
    return {None: 1.0, "int8": float(m.group(1)), "int4": float(m.group(2))}


def smooth(values, run=25):
    return [sum(values[max(0, i - run + 1):i + 1]) / min(i + 1, run) for i in range(len(values))]


def draw(path, curves, ends, wire, steps):
    lines = [(name, colour, "0", list(enumerate(curves[name]))[steps // 10:])
             for name, _, _, colour in KINDS]
    points = [(name, colour, [(wire[row], y) for y in ends[name]])
              for name, _, row, colour in KINDS]
    plot.write(path, [
        plot.Panel("Loss", "nats per byte: mean over seeds and the last 25 steps", lines,
                   linear=True, x="step"),
        plot.Panel("Loss at the end", "a point for each seed", [], points=points, linear=True,
                   x="bytes between nodes, none = 1")], by="make codec-loss")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("build")
    p.add_argument("svg")
    p.add_argument("--steps", type=int, default=800)
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    o = p.parse_args()
    runs = {}
    seeds = range(1, o.seeds + 1)
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        text_of(f"{folder}/text")
        text = f"{folder}/text"
        asked = {(name, seed): pool.submit(losses, o.build, text, settings, seed, o.steps)
                 for name, settings, _, _ in KINDS for seed in seeds}
        for nr, (key, f) in enumerate(asked.items()):
            runs[key] = f.result()
            print(f"codec_loss: {nr + 1} of {len(asked)} runs", file=sys.stderr)
    wire = measured_bytes(o.build)
    last = o.steps // 4
    ends, curves = {}, {}
    for name, *_ in KINDS:
        ends[name] = [sum(runs[name, s][-last:]) / last for s in seeds]
        curves[name] = smooth(
            [sum(runs[name, s][k] for s in seeds) / o.seeds for k in range(o.steps)])
    spread = max(ends["none"]) - min(ends["none"])
    print(f"| codec | bytes | loss | beside none, mean over {o.seeds} seeds |\n|---|---|---|---|")
    beside = {}
    for name, _, row, _ in KINDS:
        mean = sum(ends[name]) / o.seeds
        beside[name] = mean - sum(ends["none"]) / o.seeds
        print(f"| {name} | {wire[row]:.3f} | {mean:.4f} | {beside[name]:+.4f} |")
    print(f"\nThe seeds without codecs lie {spread:.4f} apart.")
    draw(o.svg, curves, ends, wire, o.steps)
    if abs(beside["int8"]) > spread or beside["int4, no feedback"] <= spread:
        sys.exit("codec_loss: FAILED: int8 must be within the spread of the seeds, "
                 "int4 without feedback beyond it")


if __name__ == "__main__":
    main()
