#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""growth.py <LINES: the lines of bench_growth as plots. A bar is the time of a step on a logarithmic scale, and | is the
limit of memory."""
import collections
import math
import re
import sys

WIDTH = 44
UNITS = {"params": "Mi parameters", "trainers": "trainers", "daemons": "daemons"}


def main():
    rows = collections.defaultdict(list)
    for line in sys.stdin:
        m = re.match(r"bench: growth_(\w+)_(\d+) ([\d.]+) ms limit ([\d.]+) ratio ([\d.]+)", line)
        if m:
            rows[m[1]].append((int(m[2]), float(m[3]), float(m[4]), float(m[5])))
    if not rows:
        sys.exit("growth: there is no line of bench_growth")
    for axis, points in rows.items():
        low = math.log(min(min(p[1], p[2]) for p in points)) - 0.5
        high = math.log(max(max(p[1], p[2]) for p in points))

        def column(ms):
            return round((math.log(ms) - low) / (high - low) * (WIDTH - 1))

        print(f"\n{UNITS[axis]:>14}   step ms  limit ms  ratio")
        for at, ours, limit, ratio in points:
            bar = ["#" if i <= column(ours) else " " for i in range(WIDTH)]
            bar[column(limit)] = "|"
            print(f"{at:>14} {ours:>9.1f} {limit:>9.1f} {ratio:>6.2f}  {''.join(bar).rstrip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
