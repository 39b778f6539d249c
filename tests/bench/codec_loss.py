#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""codec_loss.py BUILD SVG [--steps N] [--seeds N] [--jobs N]: trains the demo's model as eight nodes
with a rank each do, with and without codecs, from several seeds. Blocks have 1024 elements and each
node codes a gradient of two sequences, which is harder than the defaults. The reference does it in one
process, with the bits of daemons. Prints the loss over the last quarter of the steps (a mean over
seeds) and how far that is from the loss without codecs, and plots losses and bytes. The bytes of a
step are those that bench_codecs measures between two daemons. Fails if 8 bits with error feedback
are further from none than the seeds are from each other, or 4 bits without it are not."""
import argparse
import concurrent.futures
import glob
import html
import os
import re
import subprocess
import sys
import tempfile

BASE = "optimizer=adamw lr=6e-3 beta2=0.95 clip=1.0 chunk_elems=16384 codec_block=1024"
# Name, settings, bytes by which measured row, colour.
KINDS = (
    ("none", "", None, "#1f5fb4"),
    ("int8", "grad_codec=int8 image_codec=int8", "int8", "#2a8a57"),
    ("int4", "grad_codec=int4 image_codec=int4", "int4", "#c8501e"),
    ("int4, no feedback", "grad_codec=int4 image_codec=int4 error_feedback=no", "int4", "#8a8a8a"),
)
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 520, 330, 60, 44, 40


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
        [f"{build}/reference", "--data", data, "--steps", str(steps), "--seed", str(seed), "--nodes", "1,1,1,1,1,1,1,1",
         "--dtype", "bf16", "--settings", f"{BASE} {settings}".strip()], stdout=subprocess.PIPE, check=True, text=True)
    return [float(x) for x in re.findall(r"\bloss=(\S+)", done.stdout)]


def measured_bytes(build):
    done = subprocess.run([f"{build}/tests/bench/bench_codecs", "--quick"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, text=True)
    m = re.search(r"int8 ([\d.]+), int4 ([\d.]+) of the bytes", done.stderr)
    return {None: 1.0, "int8": float(m.group(1)), "int4": float(m.group(2))}


def smooth(values, run=25):
    return [sum(values[max(0, i - run + 1):i + 1]) / min(i + 1, run) for i in range(len(values))]


class Axes:
    def __init__(self, out, left, title, unit, x, y):
        self.out, self.left, self.x, self.y = out, left, x, y
        self.say(LEFT, 18, title, 'font-weight="bold"')
        self.say(LEFT, 33, unit, 'fill="#555"')
        for i in range(6):
            ax, ay = x[0] + (x[1] - x[0]) * i / 5, y[0] + (y[1] - y[0]) * i / 5
            left_end, right_end = self.at(x[0], ay), self.at(x[1], ay)
            out.append(f'<line x1="{left_end[0]:.1f}" y1="{left_end[1]:.1f}" x2="{right_end[0]:.1f}" '
                       f'y2="{right_end[1]:.1f}" stroke="#e4e4e4"/>')
            self.say(LEFT - 6, left_end[1] + 4, f"{ay:.3g}", 'text-anchor="end" fill="#555"')
            self.say(self.at(ax, y[0])[0] - self.left, HEIGHT - BOTTOM + 16, f"{ax:.3g}",
                     'text-anchor="middle" fill="#555"')

    def at(self, x, y):
        fx, fy = (x - self.x[0]) / (self.x[1] - self.x[0]), (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + LEFT + fx * (WIDTH - LEFT - 20), HEIGHT - BOTTOM - fy * (HEIGHT - TOP - BOTTOM)

    def say(self, x, y, text, more=""):
        self.out.append(f'<text x="{self.left + x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>')


def plot(path, curves, ends, wire):
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           'font-size="11">', "<!-- SPDX-License-Identifier: Apache-2.0. Written by `make codec-loss`. -->",
           '<rect width="100%" height="100%" fill="#ffffff"/>']
    steps = len(curves["none"])
    low = min(min(c[steps // 10:]) for c in curves.values())
    high = max(max(c[steps // 10:]) for c in curves.values())
    a = Axes(out, 0, "Loss", "nats per byte; mean over seeds and the last 25 steps; by step", (0, steps), (low, high))
    for i, (name, _, _, colour) in enumerate(KINDS):
        line = " ".join("%.1f,%.1f" % a.at(k + 1, v) for k, v in enumerate(curves[name]) if k >= steps // 10)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        a.say(WIDTH - 150, TOP + 16 + 16 * i, name, f'fill="{colour}"')
    every = [v for values in ends.values() for v in values]
    b = Axes(out, WIDTH, "Loss at the end, by bytes", "a point for each seed; bytes between nodes, none = 1", (0, 1.1),
             (min(every), max(every)))
    for name, _, row, colour in KINDS:
        for v in ends[name]:
            x, y = b.at(wire[row], v)
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" fill-opacity="0.7"/>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>"]) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("build")
    p.add_argument("svg")
    p.add_argument("--steps", type=int, default=800)
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    o = p.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        text_of(f"{folder}/text")
        asked = {(name, seed): pool.submit(losses, o.build, f"{folder}/text", settings, seed, o.steps)
                 for name, settings, _, _ in KINDS for seed in range(1, o.seeds + 1)}
        for nr, (key, f) in enumerate(asked.items()):
            runs[key] = f.result()
            print(f"codec_loss: {nr + 1} of {len(asked)} runs", file=sys.stderr)
    wire = measured_bytes(o.build)
    last = o.steps // 4
    ends = {name: [sum(runs[name, s][-last:]) / last for s in range(1, o.seeds + 1)] for name, *_ in KINDS}
    curves = {name: smooth([sum(runs[name, s][k] for s in range(1, o.seeds + 1)) / o.seeds for k in range(o.steps)])
              for name, *_ in KINDS}
    spread = max(ends["none"]) - min(ends["none"])
    print(f"| codec | bytes | loss | beside none, mean over {o.seeds} seeds |\n|---|---|---|---|")
    beside = {}
    for name, _, row, _ in KINDS:
        mean = sum(ends[name]) / o.seeds
        beside[name] = mean - sum(ends["none"]) / o.seeds
        print(f"| {name} | {wire[row]:.3f} | {mean:.4f} | {beside[name]:+.4f} |")
    print(f"\nThe seeds without codecs lie {spread:.4f} apart.")
    plot(o.svg, curves, ends, wire)
    if abs(beside["int8"]) > spread or beside["int4, no feedback"] <= spread:
        sys.exit("codec_loss: FAILED: int8 must be within the spread of the seeds, int4 without feedback beyond it")


if __name__ == "__main__":
    main()
