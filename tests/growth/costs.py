# SPDX-License-Identifier: Apache-2.0
"""Reads what bench_control measured and makes it a function of nodes, chunks and ranks. A cost is a
sum of terms that grow with these; each term is zero or more, and the sum of the squares of the
relative errors is the least (non-negative least squares by coordinate descent, which always ends in
the same place)."""
import collections

Case = collections.namedtuple("Case", "nodes chunks ranks copies step_ms packed role")
Op = collections.namedtuple("Op", "out out_bytes pack_ns into in_bytes unpack_ns handle_ns")
Own = collections.namedtuple("Own", "events ns writes reads")


class Measured:
    """The lines of the file: .core[case][op], .own[case], .frames [(bytes, send, second, receive)],
    .real[(nodes, role)][op] as (out, bytes, in, bytes), .loop[(nodes, role)] as (ns, ms of a step).
    """

    def __init__(self, lines):
        self.core, self.own, self.frames, self.real, self.loop = {}, {}, [], {}, {}
        for line in lines:
            word = line.split()
            if not word or word[0] == "#":
                continue
            if word[0] == "frame":
                self.frames.append((int(word[1]), float(word[2]), float(word[3]), float(word[4])))
            elif word[0] == "own":
                self.own[self.case(word)] = Own(*map(float, word[8:]))
            elif word[0] == "core":
                self.core.setdefault(self.case(word), {})[word[8]] = Op(*map(float, word[9:]))
            elif word[0] == "real":
                self.real.setdefault((int(word[1]), word[2]), {})[
                                     word[3]] = tuple(map(float, word[4:]))
            elif word[0] == "real_loop":
                self.loop[int(word[1]), word[2]] = (float(word[3]), float(word[4]))
            else:
                raise SystemExit(f"growth: a line of no known kind: {line.strip()}")

    @staticmethod
    def case(word):
        return Case(*map(int, word[1:6]), word[6], word[7])


def fit(rows, rounds=2000):
    """rows: [(terms, value)] -> the factor of each term."""
    rows = [(terms, value) for terms, value in rows if value > 0]
    if not rows:
        return None
    width = len(rows[0][0])
    factor = [0.0] * width
    scaled = [([t / value for t in terms]) for terms, value in rows]
    left = [1.0] * len(scaled)  # what the sum does not explain yet, relative to the value
    squares = [sum(row[i] * row[i] for row in scaled) for i in range(width)]
    for _ in range(rounds):
        moved = 0.0
        for i in range(width):
            if squares[i] == 0:
                continue
            step = sum(row[i] * l for row, l in zip(scaled, left)) / squares[i]
            step = max(step, -factor[i])
            if step == 0:
                continue
            factor[i] += step
            left = [l - row[i] * step for row, l in zip(scaled, left)]
            moved = max(moved, abs(step) * squares[i] ** 0.5)
        if moved < 1e-9:
            break
    return factor


def value(factor, terms):
    return sum(f * t for f, t in zip(factor, terms)) if factor else 0.0


class Costs:
    """Nanoseconds and bytes of one message of each kind, and of what is below and beside the
    messages."""

    def __init__(self, measured):
        self.measured = measured
        frames = measured.frames
        self.send_ns = fit([((1, b), s) for b, s, _, _ in frames])
        self.receive_ns = fit([((1, b), r) for b, _, _, r in frames])
        self.copy_ns = 0.1  # of a byte into the queue of a link
        self.second_ns = sum(s for b, _, s, _ in frames if b <= 1024) / \
                             sum(1 for f in frames if f[0] <= 1024)
        self.bytes, self.pack, self.each, self.unpack, self.handle, self.own = {}, {}, {}, {}, {}, {}
        ops = {op for case in measured.core.values() for op in case}
        for op in sorted(ops):
            self.fit_op(op)
        for role in ("coordinator", "other"):
            rows = [(self.own_terms(c), o.ns)
                     for c, o in measured.own.items() if c.role == role and c.packed == "once"]
            self.own[role] = fit(rows)

    @staticmethod
    def terms(c):
        """What a message grows with: the ranks of the world, and the chunks of one node."""
        return (1, c.nodes * c.ranks, c.chunks * c.copies)

    @staticmethod
    def handle_terms(c):
        """What the core does grows with the members, too, because it looks at all of them after
        each event."""
        return (1, c.nodes, c.nodes * c.ranks, c.chunks * c.copies)

    @staticmethod
    def own_terms(c):
        """A step's events that are no messages: chunks reduced, ranks ready, timers. Deciding a
        step reads all chunks."""
        events = c.chunks * c.copies + c.ranks
        return (1, events, events * c.nodes, c.nodes * c.ranks, c.nodes * c.chunks)

    def fit_op(self, op):
        sent, packed, each, unpacked, handled = [], [], [], {}, {}
        unpacked = {role: [] for role in ("coordinator", "other")}
        handled = {role: [] for role in ("coordinator", "other")}
        for c, row in self.measured.core.items():
            if op not in row:
                continue
            o = row[op]
            if o.out:
                sent.append((self.terms(c), o.out_bytes / o.out))
                (each if c.packed == "each" else packed).append((self.terms(c), o.pack_ns / o.out))
            if o.into:
                unpacked[c.role].append((self.terms(c), o.unpack_ns / o.into))
                handled[c.role].append((self.handle_terms(c), o.handle_ns / o.into))
        self.bytes[op] = fit(sent)
        self.pack[op], self.each[op] = fit(packed), fit(each)
        self.unpack[op] = {r: fit(rows) for r, rows in unpacked.items()}
        self.handle[op] = {r: fit(rows) for r, rows in handled.items()}

    def body(self, op, c):
        return value(self.bytes[op], self.terms(c))

    def frame_ns(self, kind, body):
        return value(self.send_ns if kind == "send" else self.receive_ns, (1, body))
