# SPDX-License-Identifier: Apache-2.0
"""The messages of one step as formulas, and what they cost a node. test_growth.py compares them
with what real cores sent.

n nodes, each with r ranks. The timers of a step come 0.2 s and 0.6 s after BEGIN, and then each
full second: `rounds` says how many come before all ranks are ready. In the first one the
coordinator repeats BEGIN, because it has not heard of a node since."""
import collections

from costs import value

ROLES = ("coordinator", "other")
Count = collections.namedtuple("Count", "out into")


def rounds(step_s):
    nr, at = 0, 0.2
    while at <= step_s:
        nr += 1
        at = 0.6 if nr == 1 else float(int(at) + 1)
    return nr


def messages(n, r, timers, role):
    """-> {op: Count}. Of the messages that a node sends itself there are none on the wire."""
    others = n - 1
    first = 1 if timers else 0
    # of one node: each timer, the answer to BEGIN, each rank that is ready
    waiting = timers + first + (r if timers else 0)
    mesh = {"GRANT": Count(others * (1 + timers), others * (1 + timers)),
                           "RANKS": Count(others, others)}
    if role == "coordinator":
        own = {"BEGIN": Count(others * (1 + first), 0), "COMMIT": Count(others, 0), "VOTE": Count(
            0, others), "DONE": Count(0, others), "WAITING": Count(others * timers, others * waiting)}
    else:
        own = {
    "BEGIN": Count(
        0,
        1 + first),
        "COMMIT": Count(
            0,
            1),
            "VOTE": Count(
                1,
                0),
                "DONE": Count(
                    1,
                    0),
                    "WAITING": Count(
                        waiting,
                         timers)}
    return {op: c for op, c in {**mesh, **own}.items() if c.out or c.into}


def writes(n, timers, role):
    """Messages of one event to one node are one write: COMMIT and BEGIN; at a timer BEGIN, WAITING
    and GRANT."""
    others = n - 1
    if role == "coordinator":
        return others * (3 + timers)  # COMMIT with BEGIN, GRANT, RANKS
    return None


class Cpu:
    """Nanoseconds of a node's loop for the control messages of a step, by kind of work."""

    def __init__(self, costs, case, timers, packed="once"):
        n, w = case.nodes, case.nodes * case.ranks
        terms, handle = costs.terms(case), costs.handle_terms(case)
        own = costs.own[case.role]
        self.bytes_out = self.bytes_in = self.out = self.into = 0
        self.part = collections.Counter()
        for op, count in messages(n, case.ranks, timers, case.role).items():
            body = costs.body(op, case)
            self.out += count.out
            self.into += count.into
            self.bytes_out += count.out * (body + 64)
            self.bytes_in += count.into * (body + 64)
            alike = case.role == "coordinator" and op in ("BEGIN", "COMMIT", "WAITING")
            if count.out and alike and packed == "once":
                times = count.out / (n - 1)
                self.part["pack"] += times * value(costs.each[op] or costs.pack[op], terms)
                self.part["pack"] += count.out * body * costs.copy_ns
            elif count.out:
                self.part["pack"] += count.out * value(costs.each[op] or costs.pack[op], terms)
            self.part["send"] += count.out * body * costs.send_ns[1]
            if count.into:
                self.part["unpack"] += count.into * value(costs.unpack[op][case.role], terms)
                self.part["core"] += count.into * value(costs.handle[op][case.role], handle)
                self.part["receive"] += count.into * body * costs.receive_ns[1]
        wrote = writes(
    n,
    timers,
     case.role) if packed == "once" and case.role == "coordinator" else self.out
        self.part["send"] += wrote * costs.send_ns[0] + (self.out - wrote) * costs.second_ns
        self.part["receive"] += self.into * costs.receive_ns[0]
        self.part["core"] += value(own, costs.own_terms(case))
        self.ns = sum(self.part.values())
