# SPDX-License-Identifier: Apache-2.0
"""Simulates steps of a cluster: one loop per node that does one thing at a time, in the order in
which things come, and links with a delay. From one decision of the coordinator to the next: COMMIT
and BEGIN go out, each node applies and sends the image of its chunks, all nodes lend their landing
slots (GRANT), the ranks compute, gradients travel meanwhile, RANKS go from each node to each, and
votes come back. Times of messages are measured (costs.py), those of links and memory are given
(LINKS).

Variants differ in the way that orders and votes take:
  before  one coordinator; BEGIN and COMMIT packed for each node, and a write for each
  one     one coordinator, packed once, COMMIT and BEGIN in one write
  tree    as one, over inner nodes with `fan` children each, which merge the votes below them and pass orders down
  ranges  orders as one; a node votes to the collector of its range of chunks, which passes one sum per range to the
          coordinator. There are about as many ranges as each has voters."""
import collections
import heapq
import math
import random

import step
from costs import Case, value

NS = 1e-9
# Stated, not measured: one way between two nodes, bytes per second of a
# node's link in each direction, and of its memory.
LINKS = {"delay": 20e-6, "link": 50e9, "memory": 200e9}
JITTER = 0.01  # of the time that ranks compute, as a standard deviation
CHUNK = 1 << 20
CHUNK_BYTES = 2 * CHUNK  # of a gradient or image in 16 bits
APPLY_BYTES = 28  # of memory traffic per parameter and step
RANGE_BYTES = 64  # a sum, flags, the first bad tensor, and a digest of what the ranks gave

Result = collections.namedtuple(
    "Result", "step_s cpu_s cpu_other_s messages messages_other bytes bytes_other")
Variant = collections.namedtuple("Variant", "name fan packed")
VARIANTS = (
    Variant(
        "before", 0, "each"), Variant(
            "one", 0, "once"), Variant(
                "tree", 16, "once"), Variant(
                    "tree", 32, "once"), Variant(
                        "ranges", 0, "once"))


class Node:
    """One loop. What it does, sends and receives is counted."""

    def __init__(self, costs_nothing):
        self.costs_nothing = costs_nothing
        self.free = self.busy = 0.0
        self.messages = self.bytes = 0

    def work(self, at, ns):
        ns = 0 if self.costs_nothing else ns
        self.free = max(at, self.free) + ns * NS
        self.busy += ns * NS
        return self.free

    def count(self, nr, body):
        self.messages += nr
        self.bytes += nr * (body + 64)


class Step:
    def __init__(
    self,
    costs,
    n,
    chunks,
    ranks,
    copies,
    step_s,
    variant,
    rng,
    links=None,
     free=False):
        self.costs, self.n, self.step_s, self.variant, self.rng = costs, n, step_s, variant, rng
        self.links = links or LINKS
        self.of = {role: Case(n, chunks, ranks, copies, 0, "once", role) for role in step.ROLES}
        self.chunks, self.ranks, self.copies = chunks, ranks, copies
        self.free = free  # messages cost nothing: what is left is computing, links and memory
        self.node = [Node(free) for _ in range(n)]
        self.events, self.order = [], 0
        self.children = self.tree() if variant.name == "tree" else {0: range(1, n)}
        self.parent = {c: p for p, cs in self.children.items() for c in cs}
        self.collector = self.ranges() if variant.name == "ranges" else {}
        self.timers = step.rounds(step_s)

    def tree(self):
        fan = self.variant.fan
        return {p: range(p * fan + 1, min(p * fan + fan + 1, self.n))
                         for p in range(self.n) if p * fan + 1 < self.n}

    def ranges(self):
        """Node -> the node that collects the votes for its chunks. Node 0 collects the first range
        itself."""
        size = max(1, math.ceil(math.sqrt(self.n)))
        return {i: i // size * size for i in range(self.n)}

    # --- costs ---

    def role(self, i):
        return "coordinator" if i == 0 else "other"

    def pack_ns(self, op, i, first=True):
        """first: it is packed here. Else its bytes are copied."""
        case = self.of[self.role(i)]
        if first or self.variant.packed == "each":
            return value(self.costs.each.get(op) or self.costs.pack[op], self.costs.terms(case))
        return self.costs.body(op, case) * self.costs.copy_ns

    def take_ns(self, op, i, members, body=None, chunks=None):
        """Reading, unpacking and handling one message, at a node whose core looks at so many
        members."""
        case = self.of[self.role(i)]
        held = chunks if chunks is not None else self.chunks * self.copies
        world = self.n * self.ranks
        role = case.role if self.costs.unpack[op].get(case.role) else "coordinator"
        return (
    self.costs.frame_ns(
        "receive",
        self.costs.body(
            op,
            case) if body is None else body) +
            value(
                self.costs.unpack[op][role],
                (1,
                world,
                held)) +
                value(
                    self.costs.handle[op][role],
                    (1,
                    members,
                    world,
                     held)))

    def vote_bytes(self, chunks):
        return value(self.costs.bytes["VOTE"], (1, self.n * self.ranks, chunks))

    # --- events ---

    def at(self, when, call, *args):
        self.order += 1
        heapq.heappush(self.events, (when, self.order, call, args))

    def run(self):
        while self.events:
            when, _, call, args = heapq.heappop(self.events)
            call(when, *args)

    def orders(self, when, i):
        """COMMIT and BEGIN to the children of a node. An inner node passes on the bytes that came."""
        node, case = self.node[i], self.of["coordinator"]
        body = self.costs.body("COMMIT", case) + self.costs.body("BEGIN", case)
        each = self.variant.packed == "each"
        at = when
        for k, child in enumerate(self.children.get(i, ())):
            ns = sum(self.pack_ns(op, 0, k == 0 and i == 0) for op in ("COMMIT", "BEGIN"))
            ns += self.costs.frame_ns("send", body) + \
                                      (self.costs.send_ns[0] if each else self.costs.second_ns)
            at = node.work(at, ns)
            node.count(2, body / 2)
            self.at(at + self.links["delay"], self.ordered, child, body)

    def ordered(self, when, i, body):
        ns = sum(self.take_ns(op, i, self.n) for op in ("COMMIT", "BEGIN"))
        self.node[i].count(2, body / 2)
        at = self.node[i].work(when, ns)
        self.orders(at, i)
        self.applies(self.node[i].free, i)

    def applies(self, when, i):
        held = self.chunks * self.copies
        self.at(when + held * CHUNK * APPLY_BYTES / self.links["memory"], self.applied, i)

    def applied(self, when, i):
        self.applied_nr += 1
        self.up("DONE", when, i)
        if self.applied_nr == self.n:
            image = (self.n - self.copies) * self.chunks * CHUNK_BYTES / self.links["link"]
            for k in range(self.n):
                self.at(when + image, self.enters, k)

    def enters(self, when, i):
        others, node, case = self.n - 1, self.node[i], self.of[self.role(i)]
        node.count(2 * others * (1 + self.timers), 0)
        lend = self.pack_ns("GRANT", i) + self.costs.frame_ns("send", 0) + \
                            self.take_ns("GRANT", i, self.n)
        own = value(self.costs.own[case.role], self.costs.own_terms(case))
        at = node.work(when, others * lend + own)
        # At a timer GRANT and WAITING are one write, so only the messages themselves are more.
        node.busy += self.timers * others * \
            (self.pack_ns("GRANT", i) + self.take_ns("GRANT", i, self.n)) * NS
        compute = self.step_s * max(0.5, self.rng.gauss(1, JITTER))
        self.lent.append(at)
        self.at(when + compute, self.ready, i)

    def ready(self, when, i):
        others, node = self.n - 1, self.node[i]
        body = self.costs.body("RANKS", self.of[self.role(i)])
        at = node.work(when, others *
    (self.pack_ns("RANKS", i) +
     self.costs.frame_ns("send", body)))
        node.count(2 * others, body)
        self.told.append(at)
        if len(self.told) < self.n:
            return
        wire = (self.n - 1) * self.chunks * CHUNK_BYTES / self.links["link"]
        staged = max(max(self.lent) + wire, max(self.told)) + self.links["delay"]
        for k in range(self.n):
            self.at(self.heard(k), self.votes, k, staged)

    def heard(self, i):
        """When the RANKS of all others are read here. They come in the order in which they were
        sent, at all nodes."""
        role = self.role(i)
        ns = 0.0 if self.free else self.take_ns("RANKS", i, self.n)
        if role not in self.heard_at:
            at = 0.0
            for told in sorted(self.told)[:self.n - 1]:
                at = max(at, told + self.links["delay"]) + ns * NS
            self.heard_at[role] = at
        self.node[i].busy += (self.n - 1) * ns * NS
        self.node[i].free = max(self.node[i].free, self.heard_at[role])
        return self.node[i].free

    def votes(self, when, i, staged):
        self.at(max(when, staged), self.voted, i)

    def voted(self, when, i):
        self.up("VOTE", when, i)

    # --- what goes up ---

    def waits_for(self, op, i):
        """How many messages of this kind a node waits for, its own word included."""
        if self.collector and op == "VOTE":
            below = sum(1 for k, c in self.collector.items() if c == i and k != i)
            ranges = sum(1 for k, c in self.collector.items() if c == k and k != 0) if i == 0 else 0
            return 1 + below + ranges
        return 1 + len(self.children.get(i, ()))

    def next_up(self, op, i):
        if self.collector and op == "VOTE":
            return self.collector[i] if self.collector[i] != i else 0
        return self.parent[i]

    def up(self, op, when, i, chunks=None):
        """A node has its own word, or one from below. When it has all, it tells the next one."""
        key = (op, i)
        own = self.chunks * self.copies
        self.have[key] = self.have.get(key, 0) + 1
        self.sums[key] = self.sums.get(key, 0) + (own if chunks is None else chunks)
        if self.have[key] < self.waits_for(op, i):
            return
        if i == 0:
            self.decided = max(self.decided, when) if op == "VOTE" else self.decided
            return
        partial = self.collector and op == "VOTE" and self.collector[i] == i
        held = 0 if partial else self.sums[key] if op == "VOTE" else 0
        body = RANGE_BYTES if partial else self.vote_bytes(held) if op == "VOTE" else 0
        at = self.node[i].work(when, self.pack_ns(op, i) + self.costs.frame_ns("send", body))
        self.node[i].count(1, body)
        self.at(at + self.links["delay"], self.came_up, op, self.next_up(op, i), held, body)

    def came_up(self, when, op, i, held, body):
        members = self.n if i == 0 else max(2, self.waits_for(op, i))
        at = self.node[i].work(when, self.take_ns(op, i, members, body, held))
        self.node[i].count(1, body)
        self.up(op, at, i, held)

    # --- one step ---

    def waiting(self):
        """The timers of a step: messages that nobody waits for, but which are work."""
        first = 1 if self.timers else 0
        said = self.timers + first + (self.ranks if self.timers else 0)
        for i, node in enumerate(self.node):
            below, body = len(
    self.children.get(
        i, ())), self.costs.body(
            "WAITING", self.of["other"]) if said else 0
            if not said:
                return
            begin = self.costs.body("BEGIN", self.of["coordinator"])
            text = self.costs.body("WAITING", self.of["coordinator"])
            ns = below * said * self.take_ns("WAITING", i, self.n if i == 0 else below + 1)
            ns += below * (self.timers * (self.pack_ns("WAITING",
    0,
    False) + self.costs.frame_ns("send",
    text)) + first * (self.pack_ns("BEGIN",
    0,
     False) + begin * self.costs.send_ns[1]))
            node.count(below * (said + self.timers), (body + text) / 2)
            node.count(below * first, begin)
            if i > 0:
                ns += said * (self.pack_ns("WAITING", i) + self.costs.frame_ns("send", body))
                ns += first * self.take_ns("BEGIN", i, self.n) + \
                                           self.timers * self.take_ns("WAITING", i, self.n)
                node.count(said + self.timers, (body + text) / 2)
                node.count(first, begin)
            node.busy += ns * NS

    def once(self, when):
        self.applied_nr, self.lent, self.told, self.have, self.sums, self.decided = 0, [], [], {}, {}, 0.0
        self.heard_at = {}
        self.orders(when, 0)
        self.applies(self.node[0].free, 0)
        self.run()
        self.waiting()
        return self.decided


def simulate(
    costs,
    n,
    chunks,
    ranks,
    copies,
    step_s,
    variant,
    seed=1,
    steps=2,
    links=None,
     free=False):
    s = Step(costs, n, chunks, ranks, copies, step_s, variant, random.Random(seed), links, free)
    when = 0.0
    for _ in range(steps):
        when = s.once(when)
    others = s.node[1:]
    return Result(
    step_s=when / steps,
    cpu_s=s.node[0].busy / steps,
    cpu_other_s=max(
        o.busy for o in others) / steps,
        messages=s.node[0].messages / steps,
        messages_other=max(
            o.messages for o in others) / steps,
            bytes=s.node[0].bytes / steps,
            bytes_other=max(
                o.bytes for o in others) / steps)
