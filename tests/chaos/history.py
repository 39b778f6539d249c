# SPDX-License-Identifier: Apache-2.0
"""Compares what the nodes wrote down with what the replay found. chaos.py leaves the output of
`shardctl history MODEL --node all --json` of the end, and replay.py calls check().

The records of all nodes are merged. A record of one step must be the same on each node that has it,
byte by byte, and each node has it once. From one entry of a node to the next no step may be left
out, unless the history says so and why: the process was killed before it had written them, the disk
was full, or the node was away and took them over with a view. Then the merged records must be the
committed steps of the replay, one for one: number, outcome, world, weights, norm, clip factor,
learning rate and loss scale. Nothing may be in one and not in the other. Only if all daemons may
have been killed together (the static cluster) steps may be on no node, if all nodes say so.

mistakes() makes a right history wrong in several ways, each of which check() must notice."""

import copy
import json
import os
from collections import defaultdict

OUTCOMES = {"applied": 1, "nonfinite": 2, "skipped": 3}


def load(path):
    """Returns the entries, or None: nothing was read."""
    if not os.path.exists(path):
        return None
    return [json.loads(line) for line in open(path)]


def number(x):
    """JSON has no infinity, so a word stands for it."""
    return float(x)


class Merged:
    def __init__(self, entries):
        self.wrong, self.records, self.on, self.excused = [], {}, defaultdict(set), {}
        self.nodes = defaultdict(list)
        for e in entries:
            self.nodes[e["node"]].append(e)
        for node, own in self.nodes.items():
            self.walk(node, own)

    def fail(self, e, why):
        self.wrong.append(f"node {e['node']}, entry {e.get('number', '-')}: {why}")

    def walk(self, node, entries):
        last, key, excuse, seen = None, None, None, set()
        excused = self.excused[node] = []  # (first, last) steps that it says are missing.
        for e in entries:
            if e["kind"] in ("damaged", "unknown"):
                self.fail(e, f"{e['kind']}: {e.get('text')}")
                continue
            if e["kind"] in ("missing", "gap"):
                excuse = e["last"]
                excused.append((e["first"], e["last"]))
                if e.get("text") == "no entry has them":
                    self.fail(e, f"steps {e['first']} to {e['last']} are missing")
            if e["kind"] == "missing" or e["kind"] == "late":
                continue
            if last is not None and e["number"] != last + 1:
                self.fail(e, f"follows entry {last}")
            last = e["number"]
            r = e.get("record")
            if r is None:
                continue
            now = (r["generation"], r["step"])
            before = self.records.setdefault(now, r)
            if before != r:
                self.fail(e, f"another record of step {r['step']} than other nodes have")
            self.on[now].add(node)
            if e["kind"] == "step":
                if now in seen:
                    self.fail(e, f"step {r['step']} is there twice")
                seen.add(now)
                if key and key[0] == now[0] and now[1] != key[1] + 1 and excuse != now[1] - 1:
                    self.fail(e, f"step {now[1]} follows step {key[1]}")
            key = max(key, now) if key else now
            excuse = None

    def steps(self):
        return {k: r for k, r in self.records.items() if r["outcome"] != "seal"}


def fits(record, t, ranks):
    """Is this the record of that committed step of the replay?"""
    v = t.verdict
    if record["step"] != t.step or len(record["world"]) != len(ranks):
        return False
    if any(b.attempt not in (0, record["attempt"]) for b in ranks if b.result is not None):
        return False
    outcomes = [1] if not v.vote and v.finite else [2] * (not v.finite) + [3] * v.vote
    if OUTCOMES.get(record["outcome"]) not in outcomes or record["applied"] != v.applied:
        return False
    if any(w["node"] != b.node or w["weight"] != b.weight for w, b in zip(record["world"], ranks)):
        return False
    if number(record["loss_scale"]) != ranks[0].scale or record["weight_sum"] != v.weights:
        return False
    return outcomes != [1] or (
        number(record["grad_norm"]) == v.norm
        and number(record["clip_factor"]) == v.clip
        and number(record["lr"]) == v.lr
    )


def match(merged, committed, dropped):
    """Finds the record of each committed step. Returns the records of which there is no step,
    by their number, and the steps of which there is no record."""
    free, none = defaultdict(list), []
    for (_, step), r in sorted(merged.steps().items()):
        free[step].append(r)
    # Those that have to be there choose first.
    later = [c for c in committed if all(b.ns > dropped for b in c[1])]
    earlier = [c for c in committed if not all(b.ns > dropped for b in c[1])]
    for t, ranks in later + earlier:
        found = [r for r in free[t.step] if fits(r, t, ranks)]
        if found:
            free[t.step].remove(found[0])
        elif all(b.ns > dropped for b in ranks):
            none.append(t)
    return free, none


def shows(entries, committed, dropped, t, ranks):
    """Whether a record that belongs to none of the committed steps is the one of this step."""
    free, _ = match(Merged(entries), committed, dropped)
    return any(fits(r, t, ranks) for r in free[t.step])


def check(entries, committed, together, dropped=0):
    """committed: (state, ranks) of each step of the replay. together: all nodes may have been
    killed at one moment. dropped: when the model was dropped last, in the time of the logs. Steps
    that were begun before may be in no history. Returns what is wrong, and how many steps are on
    how many nodes."""
    merged = Merged(entries)
    wrong, lost = list(merged.wrong), 0
    free, none = match(merged, committed, dropped)
    for t in none:
        if free[t.step]:
            wrong.append(f"the record of step {t.step} differs from the replay: "
                         f"{free[t.step][0]}")
        elif together and all(
            any(a <= t.step <= b for a, b in spans) for spans in merged.excused.values()
        ):
            lost += 1
        else:
            wrong.append(f"step {t.step} is in no history")
    if not wrong:
        wrong += [
            f"step {step} is in a history, and the replay has none such"
            for step, rest in sorted(free.items())
            for _ in rest
        ]
    return wrong, sum(len(on) for k, on in merged.on.items() if k in merged.steps()), lost


def mistakes(entries, committed, together, dropped=0):
    """Returns the mistakes that check() does not notice."""
    steps = [i for i, e in enumerate(entries) if e["kind"] == "step"]
    if not steps:
        return ["there is no step"]
    # A record between two others of its node, if there is one. The first and the last one may be
    # missing, as far as anybody can tell.
    inner = [i for i in steps if {i - 1, i + 1} <= set(steps) and
             {entries[j]["node"] for j in (i - 1, i + 1)} == {entries[i]["node"]}]
    at = (inner or steps)[len(inner or steps) // 2]
    step = entries[at]["record"]["step"]

    def lr(x):
        x[at]["record"]["lr"] = number(x[at]["record"]["lr"]) * (1 + 2**-52) + 5e-324

    def everywhere(x):
        for e in x:
            if e.get("record", {}).get("step") == step and e["record"]["outcome"] != "seal":
                e["record"]["world"][0]["weight"] += 1

    def nowhere(x):
        x[:] = [e for e in x if e.get("record", {}).get("step") != step]

    def one_gone(x):
        del x[at]

    def twice(x):
        x.insert(at, copy.deepcopy(x[at]))

    def one_more(x):
        last = max(e["record"]["step"] for e in x if e["kind"] == "step")
        for e in [e for e in x if e["kind"] == "step" and e["record"]["step"] == last]:
            more = copy.deepcopy(e)
            more["record"]["step"] += 1
            x.append(more)

    unseen = []
    for spoil in (lr, everywhere, nowhere, twice, one_more) + ((one_gone,) if inner else ()):
        spoiled = copy.deepcopy(entries)
        spoil(spoiled)
        if not check(spoiled, committed, together, dropped)[0]:
            unseen.append(spoil.__name__)
    return unseen
