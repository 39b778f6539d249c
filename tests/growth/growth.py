#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""growth.py COSTS SVG: simulates 8 to 2,048 nodes on the costs that bench_control measured, writes
the plot, and prints figures ("bench:" lines), what real daemons sent beside what is simulated, and
tables."""
import functools
import sys

import plot
import step
from costs import Case, Costs, Measured
from simulate import VARIANTS, simulate

NODES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
STEPS = (0.2, 1.0)
LIMIT = 64  # CORE_NODES_MAX
SHARE = 0.1  # of a core, which the coordinator may use
MODELS = {"7.5B": lambda n: max(1, round(7.5e9 / (1 << 20) / n)), "64Mi": lambda n: 64}
NAMES = {"before": "packed for each node", "one": "one coordinator",
    "tree": "votes by a tree of {}", "ranges": "votes by chunk ranges"}
BEFORE, ONE, TREE, TREE32, RANGES = VARIANTS


def named(v):
    return NAMES[v.name].format(v.fan)


def beyond(measured, costs, n):
    """What the loop of the coordinator takes beyond that of another node, in ns: (real daemons, as
    the parts say)."""
    real = measured.loop[n, "coordinator"][0] - measured.loop[n, "other"][0]
    timers = step.rounds(measured.loop[n, "coordinator"][1] / 1000)
    parts = [step.Cpu(costs, Case(n, 1, 1, 1, 0, "once", role), timers).ns for role in step.ROLES]
    return real, parts[0] - parts[1]


class Growth:
    """dear: how much more a real loop takes than its parts say. It sleeps between messages, is
    woken for each, and finds its caches cold. The middle one of the larger clusters counts."""

    def __init__(self, costs, measured):
        self.costs = costs
        ratios = sorted(
    real /
    parts for real,
    parts in (
        beyond(
            measured,
            costs,
            n) for n in (
                16,
                32,
                 64)))
        self.dear = max(1.0, ratios[1])

    @functools.lru_cache(maxsize=None)
    def at(self, n, model, step_s, variant, copies=2, ranks=1, free=False, steps=2):
        copies = min(copies, n)
        return simulate(
    self.costs,
    n,
    MODELS[model](n),
    ranks,
    copies,
    step_s,
    variant,
    free=free,
     steps=steps)

    def bears(self, model, step_s, variant, copies=2, ranks=1, dear=1.0, most=4096):
        """The largest cluster whose coordinator stays within its share of a core."""
        fits = lambda n: dear * self.at(n, model, step_s, variant,
                                        copies, ranks, False, 1).cpu_s <= SHARE * step_s
        low, high = 2, 4
        while high <= most and fits(high):
            low, high = high, high * 2
        if high > most:
            return most
        while high - low > max(1, low // 64):
            mid = (low + high) // 2
            low, high = (mid, high) if fits(mid) else (low, mid)
        return low


def total(ops):
    """(messages, bytes with headers) that a node sent and received, of {op: (out, bytes, in,
    bytes)}."""
    return (sum(o[0] + o[2] for o in ops.values()),
     sum(o[1] + o[3] + 64 * (o[0] + o[2]) for o in ops.values()))


def compare(measured, costs, out):
    """What real daemons sent beside the formulas. Their steps are shorter than the first timer, but
    for the largest cluster."""
    for (n, role), ops in sorted(measured.real.items()):
        loop_ns, step_ms = measured.loop[n, role]
        case = Case(n, 1, 1, 1, 0, "once", role)
        cpu = step.Cpu(costs, case, step.rounds(step_ms / 1000))
        nr, size = total(ops)
        who = "" if role == "coordinator" else "_other"
        out(f"bench: growth_messages_{n}{who} {nr:.1f} limit {cpu.out + cpu.into} ratio {nr / (cpu.out + cpu.into):.3f}")
        both = cpu.bytes_out + cpu.bytes_in
        out(f"bench: growth_bytes_{n}{who} {size:.0f} B limit {both:.0f} ratio {size / both:.3f}")
    for n in sorted({n for n, _ in measured.loop}):
        real, parts = beyond(measured, costs, n)
        out(f"bench: growth_loop_{n} {real / 1000:.0f} us limit {parts / 1000:.0f} ratio {real / parts:.2f}")


def figures(g, out):
    for step_s in STEPS:
        for v in (BEFORE, ONE):
            for name, dear in (("", 1.0), ("_dear", g.dear)):
                nr = g.bears("7.5B", step_s, v, dear=dear)
                out(f"bench: growth_bears_{v.name}_{step_s:g}s{name} {nr} nodes limit {LIMIT} ratio {nr / LIMIT:.2f}")
        for n in (LIMIT, NODES[-1]):
            ms = g.at(n, "7.5B", step_s, ONE).step_s * 1000
            free = g.at(n, "7.5B", step_s, ONE, free=True).step_s * 1000
            out(f"bench: growth_step_{n}_{step_s:g}s {ms:.1f} ms limit {free:.1f} ratio {ms / free:.3f}")


def table_bears(g, out):
    out(
        f"\nThe coordinator bears, in nodes, as the parts say; and if a loop takes {g.dear:.1f} times that, as real ones do:\n")
    out("| | " + " | ".join(named(v) for v in VARIANTS) + " |\n|---|" + "---|" * len(VARIANTS))
    for model in MODELS:
        for ranks in (1, 8):
            for step_s in STEPS:
                pairs = [[g.bears(model, step_s, v, 2, ranks, dear)
                                  for dear in (1.0, g.dear)] for v in VARIANTS]
                size = "7.5 B" if model == "7.5B" else "64 Mi a node"
                cells = " | ".join(f"{most}; {least}" for most, least in pairs)
                out(f"| {size}, {ranks} rank{'s' if ranks > 1 else ''} a node, {step_s:g} s | {cells} |")


def table_steps(g, out):
    for model in MODELS:
        for copies in (1, 2):
            out(f"\n{'7.5 B' if model == '7.5B' else '64 Mi a node'}, R = {copies}\n\n"
                "| nodes | step 0.2 s: without | one | tree of 16 | ranges | step 1 s: without | one | tree of 16 | ranges | "
                "messages | KB | other: messages | KB |\n|---|" + "---|" * 12)
            for n in NODES:
                cells = []
                for step_s in STEPS:
                    cells.append(f"{g.at(n, model, step_s, ONE, copies, free=True).step_s:.3f}")
                    cells += [f"{g.at(n, model, step_s, v, copies).step_s:.3f}" for v in (ONE, TREE, RANGES)]
                r = g.at(n, model, 1.0, ONE, copies)
                cells += [f"{r.messages:.0f}", f"{r.bytes / 1000:.0f}",
                    f"{r.messages_other:.0f}", f"{r.bytes_other / 1000:.0f}"]
                out(f"| {n} | " + " | ".join(cells) + " |")


def table_parts(costs, out):
    parts = ("pack", "send", "receive", "unpack", "core")
    out("\n| nodes, 7.5 B, 0.2 s | way | " + " | ".join(parts) + \
        " | ms |\n|---|---|" + "---|" * (len(parts) + 1))
    for n in NODES:
        for packed in ("each", "once"):
            cpu = step.Cpu(
    costs,
    Case(
        n,
        MODELS["7.5B"](n),
        1,
        2,
        0,
        packed,
        "coordinator"),
        0,
         packed)
            out(f"| {n} | {packed} | " +
    " | ".join(f"{cpu.part[p] / 1e6:.2f}" for p in parts) +
     f" | {cpu.ns / 1e6:.2f} |")


def panels(g, measured):
    lines = lambda pick, step_s: [
        (named(v), plot.COLOURS[v.name], "0", [(n, pick(g.at(n, "7.5B", step_s, v), v)) for n in NODES])
        for v in (BEFORE, ONE, TREE, RANGES)]
    real = [(n, beyond(measured, g.costs, n)[0] / 1e6)
             for n in NODES if (n, "other") in measured.loop]
    times = []
    for step_s, dash in zip(STEPS, ("0", "5 3")):
        for name, v in (("one", ONE), ("tree of 16", TREE), ("chunk ranges", RANGES)):
            added = [(n, g.at(n, "7.5B", step_s, v).step_s -
     g.at(n, "7.5B", step_s, ONE, free=True).step_s) for n in NODES]
            times.append((f"{name}, {step_s:g} s", plot.COLOURS[v.name], dash, [
                         (n, s * 1000) for n, s in added]))
    return [
        plot.Panel("The coordinator's loop", "ms of processor time a step of 0.2 s; 7.5 B, R = 2, a rank a node",
                   lines(lambda r, v: r.cpu_s * 1000, 0.2),
                   marks=[("a tenth of a core at 0.2 s", 20), ("and at 1 s", 100)],
                   points=[("real daemons, beyond another node", "#000000", real)], limit=LIMIT),
        plot.Panel("What messages add to a step", "ms; 7.5 B, R = 2, ranks compute for 0.2 s or 1 s", times, limit=LIMIT),
        plot.Panel("Control traffic", "KB a step of 0.2 s, in and out, with headers; 7.5 B, R = 2",
                   [(f"{named(v)}: {who}", plot.COLOURS[v.name], dash,
                     [(n, getattr(g.at(n, "7.5B", 0.2, v), field) / 1000) for n in NODES])
                    for v in (ONE, TREE, RANGES) for who, field, dash in (("coordinator", "bytes", "0"), ("other", "bytes_other", "5 3"))],
                   limit=LIMIT)]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="ascii") as f:
        measured = Measured(f)
    costs = Costs(measured)
    g = Growth(costs, measured)
    compare(measured, costs, print)
    figures(g, print)
    table_bears(g, print)
    table_parts(costs, print)
    table_steps(g, print)
    plot.write(sys.argv[2], panels(g, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
