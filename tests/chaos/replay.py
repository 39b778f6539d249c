# SPDX-License-Identifier: Apache-2.0
"""The checker of `make chaos`. It knows nothing of shardd's code. It computes each committed step
again from the logs of all trainers, as ARITHMETIC.md says, and compares bit by bit what the daemons
showed: the image before every begin of every trainer, what each result said, every finished
checkpoint, and masters and moments at the end.

The order of steps is found and not taken from a log. It starts from the weights that were written.
A step is a set of begins, one of each rank of one world, on the image that the step before left. It
counts if a trainer was told so or if something later shows its weights: an image, a checkpoint, or
the end. It also counts if a node has its record in its history, because a model can go back to a
checkpoint before any trainer is told. Nonces are random, so nothing fits by chance. Then these must
hold: every image that a trainer saw is explained; every result is of such a step; a begin that was
told to be without effect is in no step (where the coordinator is elected it is only counted); and
from each state only as many steps follow as there were arrivals at it (one, and one for each
restore of it).

    replay.py FOLDER [SHARDCTL]

FOLDER is what chaos.py left. With SHARDCTL the steps between two checkpoints are also computed by
`shardctl replay`, of which this program knows nothing, and both must find the same. FLIP=1 flips
one bit of one gradient in the replay, which must then fail.
"""

import glob
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict

import numpy as np

import arithmetic
import checkpoint
import history
from models import MODELS, STATES

WENT_BACK = re.compile("SHARD_ROLLED_BACK|was LOST|was lost|restored from")
OVER_HERE = " is over here"  # Of libshard: the step counted or not, and the next one says which.
MOST = {"int8": 127, "int4": 7}
BLOCK = 256  # codec_block of every model here.
OUTCOMES = {1: "applied", 2: "skipped (not finite)", 3: "skipped (vote)"}


# --- the trainers' values, for which trainer.c has the same functions ---


def mix(nonce, first, count):
    x = (np.arange(first, first + count, dtype=np.uint32) * np.uint32(0x9E3779B9)) + np.uint32(
        nonce & 0xFFFFFFFF
    )
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def fill(kind, nonce, first, count, scale=1.0):
    x = mix(nonce, first, count)
    if kind == "f16":
        exponent = (x >> 20 & 7) + (5 + int(math.log2(scale)))
        finite = np.clip(exponent, 1, 30) << 10 | (x & 0x3FF)
        return (
            ((x >> 16 & 0x8000) | np.where(exponent > 30, 0x7C00, finite))
            .astype(np.uint16)
            .view(np.float16)
        )
    bits = ((x & 0x807FFFFF) | (118 + (x >> 20 & 7)) << 23).astype(np.uint32)
    return bits.view(np.float32) if kind == "f32" else (bits >> 16).astype(np.uint16)


def gradient(model, b, tensor):
    """Returns what was pushed after a begin for tensor number `tensor`. None: it was pushed as
    "none"."""
    nonce = b.nonce
    name, at, numel, frozen = model.layout[tensor]
    if frozen or mix(nonce >> 32, tensor, 1)[0] & 3 == 0:
        return None
    g = fill(model.grad, nonce, at, numel, b.scale)
    if tensor == 0 and "overflow" in model.does and nonce >> 50 & 63 == 0:
        g.view(np.uint8)[: g.itemsize] = 0xFF
    return g


def weight(nonce):
    return float(1 + (nonce >> 32 & 3))


def votes_skip(nonce):
    return nonce >> 56 & 63 == 0


# --- logs ---


class Begin:
    __slots__ = (
        "file",
        "line",
        "ns",
        "id",
        "step",
        "attempt",
        "rank",
        "world",
        "nonce",
        "scale",
        "image",
        "lr",
        "node",
        "result",
        "ended",
        "over",
        "seen",
        "used",
        "weight",
    )

    def where(self):
        return f"{os.path.basename(self.file)}:{self.line}"


class Result:
    def __init__(self, ns, w):
        self.ns = ns
        self.outcome, self.applied, self.world, self.skipped = (int(x) for x in w[1:5])
        self.norm, self.clip, self.weights = (float.fromhex(x) for x in w[5:8])
        self.scale, self.next_scale, self.lr = (float(x) for x in w[8:11])


def read_logs(folder, model):
    """Reads all begins of a model, and the ids that were written."""
    begins, ids = [], []
    for path in sorted(glob.glob(f"{folder}/logs/{model.name}-*.log")):
        slot = int(re.search(r"-(\d+)\.log$", path).group(1))
        node = model.trainers[slot].split(":")[-1]
        last = {}  # Step → its last begin in this file.
        for line, text in enumerate(open(path, errors="replace"), 1):
            kind, ns, *w = text.split()
            if kind == "C":
                ids.append(int(w[0]))
            elif kind == "B":
                b = Begin()
                b.file, b.line, b.ns, b.node = path, line, int(ns), node
                b.id, b.step, b.attempt, b.rank, b.world, b.nonce = (int(x) for x in w[:6])
                b.scale, b.image, b.lr = float(w[6]), int(w[7], 16), float(w[8])
                b.weight = weight(b.nonce)
                b.result = b.ended = None
                b.over = b.seen = b.used = False
                begins.append(b)
                last[b.step] = b
            elif kind == "R" and int(w[0]) in last:
                last[int(w[0])].result = Result(int(ns), w)
            elif kind == "E" and int(w[0]) in last and last[int(w[0])].result is None:
                # Otherwise it may have counted before the weights went back.
                if not WENT_BACK.search(text):
                    last[int(w[0])].ended = w[1]
                    last[int(w[0])].over = OVER_HERE in text
    return begins, ids


# --- states ---


class State:
    """A model after a step. base: the image on which the next step is computed, which is one step
    older with max_staleness = 1."""

    def __init__(self, model, id, step, applied, kinds, images=None):
        """images: tensor name → image. None: they are the master weights, rounded."""
        self.model, self.id, self.step, self.applied, self.kinds = model, id, step, applied, kinds
        self.images = images or {
            n: arithmetic.narrow(kinds["master"][n], model.image) for n, *_ in model.layout
        }
        self.image = checkpoint.xxh3(b"".join(self.images[n].tobytes() for n, *_ in model.layout))
        self.content = checkpoint.xxh3(
            b"".join(a.tobytes() for k in sorted(kinds) for _, a in sorted(kinds[k].items()))
        )
        self.base = self.image

    def key(self):
        return (self.step, self.content, self.base)


def first_state(model, id):
    master, states = {}, {k: {} for k in STATES[model.optimizer]}
    for name, at, numel, frozen in model.layout:
        if frozen:
            master[name] = np.array([id >> 6 * (7 - k) & 63 for k in range(8)], np.float32)
            continue
        master[name] = fill("f32", id, at, numel)
        for s in states.values():
            s[name] = np.zeros(numel, np.float32)
    return State(model, id, 0, 0, {"master": master, **states})


def reduce_step(model, ranks, flip):
    out = {}
    for k, (name, _, numel, frozen) in enumerate(model.layout):
        if frozen:
            continue
        operands = [(b.node, gradient(model, b, k)) for b in ranks]
        for _, g in operands:
            if flip and g is not None:
                g.view(np.uint8)[
                    g.itemsize - 1
                ] ^= 0x80  # The sign, because a lower bit may be lost in the sum.
                flip = False
        out[name] = arithmetic.reduced(operands, model.grad, numel, model.predivide)
    return out


def coded_images(s, master):
    """Returns the images after s where several nodes gave gradients."""
    model, images = s.model, {}
    for name, at, numel, _ in model.layout:
        old, new = s.images[name], []
        cuts = range(model.chunk_elems - at % model.chunk_elems, numel, model.chunk_elems)
        for p, i in zip(np.split(master[name], cuts), np.split(old, cuts)):
            new.append(arithmetic.coded_image(p, i, model.image, MOST[model.image_codec], BLOCK))
        images[name] = np.concatenate(new)
    return images


class Verdict:
    """The numbers of a step's result."""


def next_state(s, ranks, flip):
    model, v = s.model, Verdict()
    g = reduce_step(model, ranks, flip)
    v.vote = any(votes_skip(b.nonce) for b in ranks)
    v.finite = all(np.isfinite(arithmetic.widen(w)).all() for w in g.values())
    v.applied = s.applied + (not v.vote and v.finite)
    weights = [weight(b.nonce) for b in ranks]
    if v.vote or not v.finite:
        t = State.__new__(State)
        t.__dict__.update(s.__dict__)
        t.step, v.weights = s.step + 1, math.fsum(weights)
    else:
        total = arithmetic.squares(model.layout, g, model.chunk_elems, model.elems)
        mult, v.norm, v.clip, v.weights = arithmetic.multiplier(
            total, weights, ranks[0].scale, model.predivide, model.clip
        )
        v.lr = ranks[0].lr if ranks[0].lr >= 0 else model.hyper["lr"]
        kinds = {k: {} for k in s.kinds}
        for name, _, _, frozen in model.layout:
            p = s.kinds["master"][name]
            if frozen:
                kinds["master"][name] = p
                continue
            old = [s.kinds[k][name] for k in STATES[model.optimizer]]
            p1, new = arithmetic.apply(
                model.optimizer, p, old, g[name], mult, model.hyper, v.lr, v.applied
            )
            kinds["master"][name] = p1
            for k, a in zip(STATES[model.optimizer], new):
                kinds[k][name] = a
        coded = model.image_codec and len({b.node for b in ranks}) > 1
        images = coded_images(s, kinds["master"]) if coded else None
        t = State(model, s.id, s.step + 1, v.applied, kinds, images)
    t.base = s.image if model.staleness and t.step >= model.staleness_after else t.image
    return t, v


# --- the search ---


class Node:
    def __init__(self):
        self.arrivals, self.children, self.made, self.expanded = 0, [], set(), False


class Shown:
    """Weights and moments that the daemons showed in a checkpoint or at the end."""

    def __init__(self, what, id, step, kinds, manifest=None):
        self.what, self.id, self.step, self.kinds, self.manifest = what, id, step, kinds, manifest
        self.content = checkpoint.xxh3(
            b"".join(a.tobytes() for k in sorted(kinds) for _, a in sorted(kinds[k].items()))
        )
        # States that it equals. Whether a model came back to it.
        self.nodes, self.came_back = [], False
        self.nearest = None  # The first difference from another state of the same step.


def difference(shown, state):
    for kind in state.kinds:
        for tensor, want in state.kinds[kind].items():
            got = shown.kinds.get(kind, {}).get(tensor)
            if got is None or len(got) != len(want):
                return f"{kind} of {tensor} is not there as it should be"
            odd = got.view(np.uint32) != want.view(np.uint32)
            if odd.any():
                i = int(np.argmax(odd))
                return (
                    f"{int(odd.sum())} of {len(odd)} elements of {kind} of {tensor} differ, first "
                    f"element {i}: "
                    f"{got[i]!r}, and the replay has {want[i]!r}"
                )
    return "kinds differ"


def element_id(kinds):
    id = 0
    for x in kinds["master"]["id"]:
        id = id << 6 | int(x)
    return id


class Replay:
    def __init__(self, folder, model, events, flip):
        self.folder, self.model, self.events, self.flip = folder, model, events, flip
        self.wrong, self.committed, self.untold, self.compared, self.images = [], 0, 0, 0, 0
        self.told = 0  # Records of committed steps in the histories of all nodes.
        self.over = 0  # Committed steps of which a rank was told that they begin again.
        self.nodes, self.todo, self.later, self.silent = {}, [], [], []
        self.begins, self.ids = read_logs(folder, model)
        self.at = defaultdict(list)
        for b in self.begins:
            self.at[b.id, b.step].append(b)
        self.shown, self.nearest = [], {}
        self.taken = sum(
            e["what"] == "memory_taken" or (e["what"] == "failed" and e["model"] == model.name)
            for e in events
        )
        self.final, self.steps = None, []  # steps: (state, ranks) of each committed one.
        self.entries = history.load(f"{folder}/final/{model.name}.history")
        self.merged = self.entries and history.Merged(self.entries)
        drops = [e["ns"] for e in events if e["what"] == "dropped" and e["model"] == model.name]
        self.dropped = max(drops, default=0)

    def fail(self, text):
        self.wrong.append(f"{self.model.name}: {text}")

    def load_shown(self):
        for folder in sorted(glob.glob(f"{self.folder}/archive/{self.model.name}/*")):
            try:
                manifest, kinds = checkpoint.read(folder)
                self.shown.append(
                    Shown(folder, element_id(kinds), manifest["step"], kinds, manifest)
                )
            except (checkpoint.Wrong, ValueError, KeyError, OSError) as e:
                self.fail(f"checkpoint {folder}: {e!r}")
        dump = f"{self.folder}/final/{self.model.name}"
        if os.path.exists(dump):
            step, kinds = checkpoint.read_dump(dump)
            self.final = Shown("the end", element_id(kinds), step, kinds)
            self.shown.append(self.final)

    def arrive(self, state):
        node = self.nodes.setdefault((state.id, *state.key()), Node())
        node.arrivals += 1
        for x in self.shown:
            if (x.id, x.step) != (state.id, state.step):
                continue
            if x.content == state.content:
                if node not in x.nodes:
                    x.nodes.append(node)
                if x.manifest and x.manifest["applied"] != state.applied:
                    self.fail(
                        f"{x.what}: applied {x.manifest['applied']}, and the replay has "
                        f"{state.applied}"
                    )
            elif x.nearest is None:
                x.nearest = difference(x, state)
        if not node.expanded:
            node.expanded = True
            self.todo.append((state, node))

    def evidence(self, ranks, t, v):
        """Finds out whether this set of begins committed. "seen": something later shows its
        weights. "told": a trainer was told so. "history": a node has written a record that fits."""
        told = [b for b in ranks if b.result is not None]
        if [b for b in told if self.odd_result(b, v)]:
            return None
        later = self.at[t.id, t.step + 1 + self.model.staleness]
        if t.step < self.model.staleness_after:
            later = self.at[t.id, t.step + 1]
        if any(b.image == t.image for b in later) or any(
            (x.id, x.step, x.content) == (t.id, t.step, t.content) for x in self.shown
        ):
            return "seen"
        if told:
            return "told"
        records = self.merged.steps().items() if self.merged else ()
        written = any(k[1] == t.step and history.fits(r, t, ranks) for k, r in records)
        return "history" if written else None

    def worlds(self, s):
        """Returns every set of begins that may be the step after s, those with results first."""
        ready = [b for b in self.at[s.id, s.step + 1] if b.image == s.base]
        ahead = (
            self.at[s.id, s.step + 2] if self.model.staleness else []
        )  # They were begun before the step between was decided.
        for b in ready + [b for b in ahead if b.image == s.image]:
            b.seen = True
        # SHARD_WORLD_CHANGED ends the call, and the number of the next step says whether this one
        # counted: with several copies others may decide it without the node that says so. With one
        # copy a node of which nothing but ranks is needed may miss the decision, and says so.
        ready = [b for b in ready if b.ended is None or b.over or self.model.replicas > 1]
        found = []
        for size in sorted({b.world for b in ready}):
            ranks = [[b for b in ready if b.world == size and b.rank == r] for r in range(size)]
            for ranks in itertools.islice(itertools.product(*ranks), 4096):
                told = [b.result.ns for b in ranks if b.result is not None]
                if told and max(b.ns for b in ranks) > min(told):
                    continue  # Nobody is told before all have begun.
                if (
                    len({b.attempt for b in ranks if b.attempt}) <= 1
                    and len({(b.scale, b.lr) for b in ranks}) == 1
                ):
                    found.append(
                        (
                            sum(b.ended is not None for b in ranks),
                            -sum(b.result is not None for b in ranks),
                            -min(b.ns for b in ranks),
                            len(found),
                            ranks,
                        )
                    )
        return [ranks for *_, ranks in sorted(found)]

    def expand(self, s, node):
        for ranks in self.worlds(s):
            if any(b.used for b in ranks):
                continue
            t, v = next_state(s, ranks, self.flip and self.flip == (s.id, s.step + 1))
            t.verdict = v
            evidence = self.evidence(ranks, t, v)
            told = any(b.result is not None for b in ranks)
            if evidence == "seen" and (
                told or t.key() not in node.made
            ):  # A skipped step shows nothing of its own.
                self.commit(node, ranks, t)
            elif (
                evidence == "told"
            ):  # It may fit another state after a restore, which later steps then show.
                self.later.append((node, ranks, t))
            elif evidence == "history":
                self.silent.append((node, ranks, t))

    def commit(self, node, ranks, t):
        for b in ranks:
            b.used = True
        node.children.append(ranks)
        node.made.add(t.key())
        self.committed += 1
        self.steps.append((t, ranks))
        self.untold += all(b.result is None for b in ranks)
        self.over += any(b.ended is not None for b in ranks)
        self.arrive(t)

    def odd_result(self, b, v):
        """Whether what the trainer was told differs from this step. The difference is kept for the
        case that no other world fits."""
        r = b.result
        outcomes = [1] if not v.vote and v.finite else [2] * (not v.finite) + [3] * v.vote
        told = [
            ("outcome", r.outcome, r.outcome if r.outcome in outcomes else outcomes[0]),
            ("applied", r.applied, v.applied),
            ("world", r.world, b.world),
            ("loss scale", r.scale, b.scale),
        ]
        if outcomes == [1]:
            told += [
                ("norm", r.norm, v.norm),
                ("clip", r.clip, v.clip),
                ("weights", r.weights, v.weights),
                ("lr", r.lr, v.lr),
            ]
        odd = [
            f"{name} {was!r}, and the replay has {want!r}"
            for name, was, want in told
            if was != want
        ]
        if odd:
            self.nearest[b] = ", ".join(odd)
        return bool(odd)

    def run(self):
        self.load_shown()
        used = {b.id for b in self.begins}
        for id in self.ids:
            if id in used:
                self.arrive(first_state(self.model, id))
        restores = [
            e for e in self.events if e["what"] == "restored" and e["model"] == self.model.name
        ]
        while True:
            while self.todo:
                self.expand(*self.todo.pop())
            ready = [
                e for e in restores if any(x.nodes for x in self.shown if x.what == e["archive"])
            ]
            if ready:
                restores.remove(ready[0])
                self.restored(next(x for x in self.shown if x.what == ready[0]["archive"]))
            elif self.came_back():
                continue
            elif self.later:
                node, ranks, t = self.later.pop(0)
                if not any(b.used for b in ranks):
                    self.commit(node, ranks, t)
            elif self.silent:
                node, ranks, t = self.silent.pop(0)
                if not any(b.used for b in ranks) and history.shows(
                    self.entries, self.steps, self.dropped, t, ranks
                ):
                    self.commit(node, ranks, t)
            else:
                break
        self.judge(restores)
        return self

    def restored(self, x):
        """Its base is its own image. With max_staleness = 1 the next two steps use it."""
        self.arrive(self.state_of(x))

    def state_of(self, x):
        kinds = {k: dict(v) for k, v in x.kinds.items()}
        return State(self.model, x.id, x.step, x.manifest["applied"], kinds)

    def came_back(self):
        """After a node's memory was taken, the model returns to a checkpoint by itself. Returns
        whether a checkpoint explains the first begin that is not explained yet."""
        unseen = [b for b in self.begins if not b.seen]
        if not unseen or not self.taken:
            return False
        b = min(unseen, key=lambda b: b.ns)
        for x in self.shown:
            if x.manifest and x.nodes and (x.id, x.step) == (b.id, b.step - 1) and not x.came_back:
                x.came_back = self.state_of(x).image == b.image
                if x.came_back:
                    self.restored(x)
                    return True
        return False

    def judge(self, restores):
        for e in restores:
            self.fail(f"restored {e['archive']}, which is no state of any committed step")
        for b in sorted(self.begins, key=lambda b: b.ns):
            self.images += b.seen
            if not b.seen:
                self.fail(
                    f"{b.where()}: begin of step {b.step} on an image (sum {b.image:016x}) that no "
                    "committed step made"
                )
            elif b.result is not None and not b.used:
                self.fail(
                    f"{b.where()}: was told that step {b.step} is "
                    f"{OUTCOMES.get(b.result.outcome)}, "
                    f"and no whole world fits it: {self.nearest.get(b, 'ranks are missing')}"
                )
        saved = {node for x in self.shown if x.manifest for node in x.nodes}
        for node in self.nodes.values():
            if len(node.children) > node.arrivals + (self.taken if node in saved else 0):
                ranks = [
                    f"step {c[0].step} by {', '.join(b.where() for b in c)}" for c in node.children
                ]
                self.fail(
                    f"{len(ranks)} committed steps on one state, where {node.arrivals} may be: "
                    f"{'; '.join(ranks)}"
                )
        for x in self.shown:
            if x.nodes:
                self.compared += 1
            else:
                self.fail(
                    f"{x.what} (step {x.step}): {x.nearest or 'no committed step of that number'}"
                )
        if (
            self.final is not None
            and self.final.nodes
            and not any(len(n.children) < n.arrivals for n in self.final.nodes)
        ):
            self.fail(
                f"what was read at the end is of step {self.final.step}, and later ones had been "
                "committed"
            )
        self.judge_ids()
        self.judge_history()

    def judge_history(self):
        """Compares the histories of the nodes. A drop takes them, so they have the steps since the
        last one. Weights of an older checkpoint may have come back after it."""
        if self.entries is None or self.final is None:
            self.fail("no history was read at the end")
            return
        args = self.entries, self.steps, self.model.replicas == 1, self.dropped
        wrong, self.told, lost = history.check(*args)
        for text in wrong:
            self.fail(f"history: {text}")
        if not wrong and (unseen := history.mistakes(*args)):
            self.fail(f"history: the checker does not see these mistakes: {', '.join(unseen)}")
        if lost:
            print(f"replay: {self.model.name}: {lost} steps are in no history: all nodes were "
                  "killed")

    def judge_ids(self):
        """Checks that weights are written once, and once after each drop."""
        drops = sum(e["what"] == "dropped" and e["model"] == self.model.name for e in self.events)
        made = {b.id for b in self.begins}
        if len(made) > 1 + drops:
            self.fail(
                f"was written anew {len(made)} times, and dropped {drops} times: weights were lost"
            )
        for id in made - set(self.ids):
            self.fail(f"nobody wrote the weights that have the id {id}")


def write_gradients(model, folder, steps):
    """Writes what each rank pushed in these steps, as `shardctl replay` wants it."""
    kind = {"f32": "F32", "f16": "F16", "bf16": "BF16"}[model.grad]
    for t, ranks in steps:
        for rank, b in enumerate(ranks):
            header, data = {}, b""
            for k, (name, *_) in enumerate(model.layout):
                g = gradient(model, b, k)
                if g is None:
                    continue
                at, data = len(data), data + g.tobytes()
                header[name] = {"dtype": kind, "shape": [len(g)], "data_offsets": [at, len(data)]}
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            with open(f"{folder}/step{t.step}-rank{rank}.safetensors", "wb") as f:
                f.write(len(text).to_bytes(8, "little") + text + data)


def tool_agrees(r, shardctl):
    """Returns what `shardctl replay` says of the longest way from one checkpoint to a later one of
    at most 60 steps, or None: it says that all is equal. Models that came back from a checkpoint
    have steps of one number in several generations, so they are left out."""
    saved = sorted((x for x in r.shown if x.manifest and x.nodes), key=lambda x: x.step)
    pairs = [(a, b) for a in saved for b in saved if 0 < b.step - a.step <= 60]
    if not pairs or r.model.replicas == 1:
        return None
    a, b = max(pairs, key=lambda p: p[1].step - p[0].step)
    folder = f"{r.folder}/final/{r.model.name}.gradients"
    os.makedirs(folder, exist_ok=True)
    write_gradients(r.model, folder, [s for s in r.steps if a.step < s[0].step <= b.step])
    words = ["--history", f"{r.folder}/final/{r.model.name}.history", "--from", a.what]
    done = subprocess.run(
        [shardctl, "replay", *words, "--gradients", folder, b.what], capture_output=True, text=True
    )
    if done.returncode != 0:
        return done.stderr.strip()
    print(f"replay: {r.model.name:7} shardctl: {done.stdout.strip()}")
    return None


def choose_flip(replays):
    """Chooses a step in the middle of a model's life whose world has a result."""
    for r in replays:
        told = sorted(
            (b.id, b.step) for b in r.begins if b.result is not None and b.result.outcome == 1
        )
        if told:
            r.flip = told[len(told) // 2]
            print(f"replay: FLIP: one bit of a gradient of step {r.flip[1]} of {r.model.name}")
            return


def main():
    folder = sys.argv[1]
    events = [json.loads(line) for line in open(f"{folder}/events.log")]
    replays = [Replay(folder, m, events, None) for m in MODELS[events[0]["kind"]]]
    if os.environ.get("FLIP") == "1":
        choose_flip(replays)
    wrong = []
    for r in replays:
        r.run()
        if len(sys.argv) > 2 and not r.wrong and (odd := tool_agrees(r, sys.argv[2])):
            r.fail(f"shardctl replay does not agree: {odd}")
        wrong += r.wrong
        print(
            f"replay: {r.model.name:7} {r.committed:5} committed steps, {r.untold} of them told to "
            f"nobody; equal: {r.images} images, "
            f"{r.compared} checkpoints and readings",
            flush=True,
        )
        print(f"replay: {r.model.name:7} {r.told:5} records of these steps in the histories of "
              "nodes")
        if r.over:
            print(
                f"replay: {r.model.name}: a rank was told of {r.over} steps that they begin again"
            )
        for text in r.wrong[:6]:  # In the order of time, because later ones follow from the first.
            print(f"replay: WRONG: {text}")
        if len(r.wrong) > 6:
            print(f"replay: and {len(r.wrong) - 6} more of {r.model.name}")
    print("replay: exact" if not wrong else f"replay: not exact: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
