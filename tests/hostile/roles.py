# SPDX-License-Identifier: Apache-2.0
"""Peers that speak the protocol well and then lie.

Trainer is the connection of a trainer or a tool, Member a node that takes part in the step, and
Coordinator a node that decides it. Each works honestly until its liar says otherwise, so that the
lies meet a daemon in every state. An episode ends when the daemon closes the connection, or after a
number of actions. Everything random comes from one generator, so a seed repeats what was said, but
not what the scheduler did in between.
"""
import mmap
import os
import re
import socket
import struct
import time

import wire
from wire import FIELDS, NODE, OP, REPLY, TOOL, TRAINER
from wire import Closed, Conn, Frame, Hang, Refused, pace, pack

MASTER = 2
F32 = 1
CHUNK = 1024
# Of a group in a record. Asking a daemon finds it out, which names the number it wants.
ARGS_WORDS = 12


def spec(name, elems=1536, settings="", grad=F32, image=F32):
    return {"name": name, "tensors": [{"name": "w", "shape": [elems]}], "image": image,
            "grad": grad,
            "settings": settings or f"optimizer=sgd lr=0.1 chunk_elems={CHUNK} max_world=4 "
                                    "timeout=5s"}


class Counts:
    """Counts what an attack did, for its line of the report."""

    def __init__(self):
        self.connections = self.frames = self.lies = self.steps = 0
        self.refusals = set()

    def refused(self, text):
        self.refusals.add(re.sub(r"\d+", "N", re.sub(r'"[^"]*"', '""', text))[:90])


class Trainer:
    """An honest trainer of one model, step by step."""

    def __init__(self, conn, liar=None, counts=None):
        self.c, self.liar = conn, liar
        self.counts = counts or Counts()
        self.counts.connections += 1
        self.model = self.generation = 0
        self.attempt = None  # The ATTEMPT frame of the current attempt.
        self.arena = None
        self.elems = 1536
        self.joined = False

    def see(self, f):
        self.counts.frames += 1
        if self.liar:
            self.liar.saw(f)
        if f.name == "ATTEMPT":
            self.attempt = f
        elif f.name in ("ENDED", "RESULT"):
            self.counts.steps += f.name == "RESULT"
            self.attempt = None
        elif f.name == "LOST":
            self.generation, self.attempt = f.generation, None

    def ask(self, name, message=None, seconds=None, **fields):
        f = self.c.request(name, message, on_frame=self.see, seconds=seconds, **fields)
        self.see(f)
        return f

    def mine(self, **fields):
        return dict({"model": self.model, "generation": self.generation}, **fields)

    def define(self, model_spec, seconds=None):
        self.elems = model_spec["tensors"][0]["shape"][0]
        f = self.ask("DEFINE", {"spec": model_spec}, seconds=seconds)
        d = f.message()
        self.model, self.generation = d["model"] or f.model, f.generation
        return d

    def write(self, value=0.5, first=0, count=None, kind=MASTER):
        count = self.elems - first if count is None else count
        while count > 0:
            n = min(count, CHUNK - first % CHUNK)
            body = struct.pack("<f", value) * n
            self.ask("WRITE", None, body=body, **self.mine(step=first, chunk=kind))
            first, count = first + n, count - n

    def seal(self, step=0, seconds=None):
        return self.ask("SEAL", {"step": step}, seconds=seconds, **self.mine())

    def ready_model(self, model_spec):
        """Defines the model if that is allowed, writes and seals it."""
        d = self.define(model_spec)
        if not d["sealed"] and d["created"]:
            self.write()
            self.seal()
        return d

    def join(self, seconds=None):
        f = self.ask("JOIN", {"rank_hint": -1}, seconds=seconds, **self.mine())
        j = f.message()
        self.joined = True
        if self.c.unix and self.c.fds:
            self.arena = mmap.mmap(self.c.fds[0], j["arena_bytes"])
        return j

    def leave(self):
        self.ask("LEAVE", None, **self.mine())
        self.joined, self.attempt = False, None

    def wait_attempt(self, seconds):
        """Returns the current attempt, or None if none has begun in so many seconds of a quiet
        machine."""
        limit = pace.Bound(seconds)
        while self.attempt is None and not limit.passed():
            f = self.c.next(limit.left())
            if f is not None:
                self.see(f)
        return self.attempt

    def head(self, name, **fields):
        a = self.attempt
        same = ("model", "generation", "seq", "term", "step", "attempt")
        known = {k: getattr(a, k) for k in same} if a else {}
        return Frame(op=OP[name], **dict(known, **fields))

    def send(self, f):
        self.counts.frames += 1
        self.c.send(f)

    def chunks(self):
        return (self.elems + CHUNK - 1) // CHUNK

    def push(self, chunk, value=0.25):
        n = min(CHUNK, self.elems - chunk * CHUNK)
        body = struct.pack("<f", value) * n
        if self.arena is not None:
            self.arena[chunk * CHUNK * 4:chunk * CHUNK * 4 + len(body)] = body
        else:
            self.send(self.head("PUSH_DATA", chunk=chunk, body=body))
        self.send(self.head("PUSH", chunk=chunk))

    def ready(self, **fields):
        self.send(self.head("READY", body=pack("Ready", dict({"weight": 1.0}, **fields))))

    def step(self, seconds=5.0):
        """Makes one step, which is committed or ends. True: committed."""
        if self.wait_attempt(seconds) is None:
            return False
        for chunk in range(self.chunks()):
            self.push(chunk)
        self.ready()
        before = self.counts.steps
        limit = pace.Bound(seconds)
        while self.attempt is not None and not limit.passed():
            f = self.c.next(limit.left())
            if f is not None:
                self.see(f)
        return self.counts.steps > before

    def lie(self):
        """Sends a frame that is wrong in some way, or bytes that are not a frame."""
        r = self.liar.rng
        self.counts.lies += 1
        x = r.random()
        state = {k: getattr(self.attempt, k) for k in FIELDS[2:8]} if self.attempt else self.mine()
        if x < .80:
            self.send(self.liar.frame(TRAINER_OPS if r.random() < .9 else list(OP), state))
        elif x < .86 and self.liar.heads:  # Sends back a frame that came before.
            self.send(r.choice(self.liar.heads).copy(flags=0))
        elif x < .90:  # A frame that never ends.
            f = wire.frame_bytes(self.liar.frame(TRAINER_OPS, state), self.c.out)
            self.c.raw(f[:r.randrange(len(f))])
            raise Closed("half a frame")
        elif x < .93:
            f = bytearray(wire.frame_bytes(self.liar.frame(TRAINER_OPS, state), self.c.out))
            f[r.randrange(len(f))] ^= 1 << r.randrange(8)
            self.c.raw(bytes(f))
            self.c.out += 1
        elif self.arena is not None:  # Memory that changes under the daemon.
            for _ in range(50):
                at = r.randrange(0, len(self.arena) - 4, 4)
                odd = [1e30, float("nan"), 0.0, float("inf")]
                self.arena[at:at + 4] = struct.pack("<f", r.choice(odd))
        self.drain()

    def drain(self, seconds=0.002):
        while True:
            f = self.c.next(seconds)
            if f is None:
                return
            self.see(f)
            if f.name == "ERROR":
                self.counts.refused(f.message()["text"])


TRAINER_OPS = ["DEFINE", "WRITE", "SEAL", "READ", "JOIN", "LEAVE", "STATUS", "WAITS", "ATTACH",
               "MANAGE", "SAVE", "RESTORE", "BLOB", "VERIFY", "PUSH_DATA", "PUSH", "READY",
               "ABANDON", "IMAGE_ASK", "PING", "PONG", "HELLO"]
NODE_OPS = ["MODEL", "MODEL_DROP", "WRITTEN", "DETACHED", "CONTRIB_DATA", "CONTRIB", "SAVE_PART",
            "LOAD_PART", "PART_CANCEL", "RAIL", "REGION", "IMAGE_DATA", "IMAGE_ASK", "PING",
            "DEFINE", "WRITE", "SEAL", "READ", "MANAGE", "SAVE", "RESTORE", "BLOB", "PROGRESS",
            "ASK", "ANSWER", "VIEW", "VIEW_OK", "BEGIN", "GRANT", "VOTE", "COMMIT", "ABORT",
            "DONE", "DRAINED", "CORE_JOIN", "GONE", "CORE_ABANDON", "WAITING", "RANKS", "HEAR",
            "HEARD", "ODD", "GRAD_DATA", "GRAD", "HELD", "COPY_ASK", "COPY_DATA", "MEMBER",
            "VERIFY", "VERIFY_PART"]
SETTINGS = ["", "optimizer=adamw chunk_elems=1024 max_world=4 timeout=5s",
            "optimizer=sgd lr=1 chunk_elems=1024 max_world=4 timeout=5s max_staleness=1",
            "optimizer=lion chunk_elems=1024 max_world=2 clip=1 timeout=5s mode=0600",
            "optimizer=sgd momentum=0.9 lr=0.1 chunk_elems=1024 max_world=4 timeout=5s max_skips=2"]


def trainer_episode(connect, rng, counts, folder):
    """One connection of a trainer that does everything that a trainer may do, and lies now and
    then. connect() -> a Conn after HELLO."""
    liar = wire.Liar(rng)
    try:
        t = Trainer(connect(rng.choice([TRAINER, TRAINER, TOOL])), liar, counts)
    except (Closed, Refused) as e:
        counts.refused(str(e))
        return
    t.c.bound = 4.0
    name = f"m{rng.randrange(6)}"
    kind = int(name[1:]) % len(SETTINGS)
    acts = {
        "step": lambda: t.step(1.0), "save": lambda: t.ask("SAVE", {"name": name}, seconds=4),
        "save_here": lambda: t.ask("SAVE", {"name": name, "dir": folder, "tag": "x"}, seconds=4),
        "restore": lambda: t.ask("RESTORE", {"name": name, "force": rng.random() < .5}, seconds=4),
        "read": lambda: t.ask("READ", {"kind": rng.randrange(8), "count": 512,
                                       "first": rng.choice([0, 512, 1024])},
                              **t.mine()),
        "blob": lambda: t.ask("BLOB", {"rank": 0}, **t.mine()), "status": lambda: t.ask("STATUS"),
        "set": lambda: t.ask("MANAGE", {"name": name, "action": 2, "key": "lr", "value": "0.5"}),
        "resume": lambda: t.ask("MANAGE", {"name": name, "action": 4}),
        "drop": lambda: t.ask("MANAGE", {"name": name, "action": 1, "force": True}),
        "leave": t.leave, "join": lambda: t.join(seconds=2), "lie": t.lie,
        "write": lambda: t.write(rng.choice([0.5, float("nan")]), 0, 512),
        "seal": lambda: t.seal(seconds=2),
        "define": lambda: t.ready_model(spec(name, 1536, SETTINGS[kind])),
    }
    script = ["define", "join"] if rng.random() < .7 else ["define"]
    choice = ["step"] * 6 + ["lie"] * 9 + [a for a in acts if a not in ("step", "lie")]
    try:
        if rng.random() < .1:
            t.lie()
        for act in script + [rng.choice(choice) for _ in range(rng.randrange(4, 40))]:
            try:
                acts[act]()
            except Refused as e:
                counts.refused(e.args[1])
            except Hang:
                if act not in ("step", "join", "seal", "save", "save_here", "restore", "drop",
                               "define"):
                    t.c.bound = 20.0
                    t.ask("STATUS")  # This is answered whatever else waits.
    except Closed as e:
        counts.refused(str(e))
    finally:
        t.c.close()


class Member:
    """A node that another one coordinates. It answers what it must and holds its chunks. It lies
    with probability `lying` per frame, and never about the model whose name is in `honest`."""

    node = 1  # Its place in [nodes].

    def __init__(self, conn, liar, counts, lying, uuid, incarnation):
        self.c, self.liar, self.counts, self.lying = conn, liar, counts, lying
        self.uuid, self.incarnation = uuid, incarnation
        self.models = {}  # Number -> {generation, place_runs, record}.
        self.pinged = time.monotonic()
        self.imaged = False  # The other node has our chunks of the image.
        self.honest = None
        counts.connections += 1

    def send(self, f):
        self.counts.frames += 1
        self.c.send(f)

    def core(self, like, name, **message):
        self.send(like.copy(op=OP[name], flags=0, body=pack("Core", message)))

    def reply(self, f, message=None):
        row = wire.OPS[f.name]
        self.send(Frame(op=f.op, flags=REPLY, attempt=f.attempt, model=f.model,
                        generation=f.generation,
                        body=pack(row[2], message) if message is not None else b""))

    def chunks_here(self, m):
        out, at = [], 0
        runs = m["place_runs"]
        for who, n in zip(runs[::2], runs[1::2]):
            if who == self.node:
                out += range(at, at + n)
            at += n
        return out

    def on(self, f):
        name, m = f.name, self.models.get(f.model)
        if f.flags & REPLY:
            return
        if name == "MODEL":
            d = f.message()
            number = d["model"] or f.model
            self.models.setdefault(number, {"place_runs": d["place_runs"], "record": {},
                                            "generation": 0, "name": d["spec"]["name"]})
            self.reply(f, {"incarnation": self.incarnation})
        elif name == "MODEL_DROP":
            self.models.pop(f.model, None)
            if f.attempt:
                self.reply(f)
        elif name == "ASK" and m:
            answer = {"incarnation": self.incarnation, "generation": m["generation"]}
            if m["record"]:
                answer["record"] = m["record"]
            self.core(f, "ANSWER", answer=answer)
        elif name == "VIEW" and m:
            v = f.message()["view"]
            m["generation"], m["record"] = v["generation"], v["record"]
            self.core(f, "VIEW_OK")
        elif name == "WRITTEN":
            self.reply(f, {})
        elif name == "BEGIN" and m:
            self.core(f, "GRANT")
            self.core(f, "DRAINED")
            m["arrived"], m["voted"] = set(), False
            nodes = [r["node"] for r in f.message()["world"]]
            m["said"] = {i: {"weights": 1.0} for i, who in enumerate(nodes) if who == self.node}
            m["nodes"] = nodes
            if m["said"]:
                self.core(f, "RANKS", vote={"weights": [1.0] * len(m["said"])})
            self.vote(f, m)
        elif name == "RANKS" and m:
            v = f.message()["vote"]
            theirs = [i for i, who in enumerate(m.get("nodes", [])) if who != self.node]
            for i, weight in zip(theirs, v["weights"]):
                m["said"][i] = {"weights": weight, "lr": v["lr"], "skip": v["skip"]}
            self.vote(f, m)
        elif name == "CONTRIB" and m:
            m.setdefault("arrived", set()).add(f.chunk)
            self.vote(f, m)
        elif name == "COMMIT" and m:
            m["record"] = f.message()["record"]
            self.counts.steps += 1
            self.image(f, m)
            self.core(f, "DONE")
        elif name == "IMAGE_ASK" and m:
            self.image(f, m)
        elif name == "CORE_JOIN" or name == "GONE":
            pass
        elif name in ("WRITE", "SEAL", "SAVE_PART", "LOAD_PART", "BLOB", "VERIFY_PART"):
            self.reply(f, {} if wire.OPS[name][2] else None)
        elif name == "READ":
            self.send(Frame(op=f.op, flags=REPLY, attempt=f.attempt, model=f.model, step=1,
                            body=bytes(4 * min(f.message()["count"], 65536))))

    def image(self, f, m):
        """Sends the chunks held here, as of the step in the frame."""
        self.imaged = True
        for chunk in self.chunks_here(m):
            n = min(CHUNK, 1536 - chunk * CHUNK)
            if n > 0:
                self.send(f.copy(op=OP["IMAGE_DATA"], flags=0, chunk=chunk, body=bytes(4 * n)))

    def vote(self, f, m):
        here = self.chunks_here(m)
        said = m.get("said", {})
        if (m.get("voted") or not set(here) <= m.get("arrived", set())
                or len(said) < len(m.get("nodes", [0]))):
            return
        m["voted"] = True
        others = [r for r in said.values() if "lr" in r]
        self.core(f, "VOTE", vote={"sumsq": [1.0] * len(here),
                                   "finite": bytes([255]) * ((len(here) + 7) // 8),
                                   "weights": [said[i]["weights"] for i in sorted(said)],
                                   "lr": others[0]["lr"] if others else [],
                                   "skip": any(r["skip"] for r in others)})

    def lie(self):
        f = self.liar.frame(NODE_OPS)
        named = self.models.get(f.model, {}).get("name")
        if self.honest is not None and (named == self.honest or self.honest.encode() in f.body):
            return
        self.counts.lies += 1
        self.send(f)

    def run(self, seconds, feed=None):
        """Takes part for so long, or until the daemon closes the link. feed is called between
        frames."""
        until = time.monotonic() + seconds
        r = self.liar.rng
        while time.monotonic() < until:
            if time.monotonic() - self.pinged > 0.5:
                self.pinged = time.monotonic()
                self.send(Frame(op=OP["PING"]))
            f = self.c.next(0.02)
            if f is not None:
                self.counts.frames += 1
                self.liar.saw(f)
                if f.name == "ERROR":
                    self.counts.refused(f.message()["text"])
                self.on(f)
            if r.random() < self.lying:
                self.lie()
            if feed:
                feed()


def place_sum(runs):
    """Names a placement as proto/wire/README.md says."""
    table = [who for who, n in zip(runs[::2], runs[1::2]) for _ in range(n)]
    return wire.xxh3(struct.pack(f"<{len(table)}H", *table), len(table))


class Coordinator(Member):
    """The node that decides. It defines one model of two chunks, seals it and begins attempts with
    the trainers that joined at the other node."""

    node = 0

    def __init__(self, conn, liar, counts, lying, uuid, incarnation, term, settings=""):
        super().__init__(conn, liar, counts, lying, uuid, incarnation)
        self.spec = spec("m0", settings=settings)
        self.models[1] = {"place_runs": [0, 1, 1, 1]}
        self.id = {"model": 1, "generation": 1, "seq": 1, "term": term, "step": 0, "attempt": 0}
        self.trainers = []
        self.theirs = 0  # The incarnation of the node that dialled.
        self.their_uuid = bytes(16)
        self.granted = self.sealed = self.busy = False
        # A DEFINE that came before the other node holds the model. It is answered when that node
        # does.
        self.asked = []
        self.record = {}
        self.applied = 0
        self.content = 0  # The last step that changed weights.
        self.slow = pace.Bound(0)  # Of the current attempt.

    def frame(self, name, **message):
        return Frame(op=OP[name], **self.id, body=pack("Core", message))

    def begin_with(self, their_hello):
        self.theirs, self.their_uuid = their_hello["incarnation"], their_hello["uuid"]
        self.send(Frame(op=OP["MODEL"], attempt=77, body=pack("Model", {
            "model": 1, "spec": self.spec, "chunk_elems": CHUNK, "place_runs": [0, 1, 1, 1],
            "generation": 1,
            "incarnation": self.incarnation,
            "owner": {"known": True, "uid": os.getuid(), "gid": os.getgid()}})))

    def record_of(self, outcome):
        n = len(self.trainers)
        if outcome < 2:
            self.content = self.id["step"]
        self.applied += outcome == 1
        return {"content": self.content,
                "id": {k: self.id[k] for k in ("term", "step", "seq", "generation", "attempt")},
                "outcome": outcome,
                "applied": self.applied, "clip_factor": 1.0, "weight_sum": float(max(n, 1)),
                "loss_scale": 1.0,
                "lr": .1, "bad_tensor": -1, "bad_rank": -1, "scaler": {"scale": 1.0},
                "args": [0] * ARGS_WORDS,
                "world": self.world()}

    def world(self):
        return [dict(t, node=1, weight=1.0) for t in self.trainers]

    def view(self, sealed):
        self.id["seq"] += 1
        v = {"term": self.id["term"], "seq": self.id["seq"], "generation": 1,
             "members": 3, "coordinator": 0, "incarnation": [self.incarnation, self.theirs],
             "place": place_sum(self.models[1]["place_runs"]),
             "uuid": [self.uuid, self.their_uuid], "sealed": sealed}
        if sealed:
            self.record = self.record_of(0)
            v["record"] = self.record
        self.send(self.frame("VIEW", view=v))

    def answer(self):
        """Answers a DEFINE, but only once the other node holds the model, because its trainers ask
        for more at once."""
        while self.sealed and self.asked:
            f = self.asked.pop()
            self.send(Frame(op=f.op, flags=REPLY, attempt=f.attempt, model=1, generation=1,
                            body=pack("Defined", {
                "model": 1, "sealed": True, "chunk_elems": CHUNK, "optimizer": "sgd",
                "timeout_ms": 5000,
                "max_staleness": int("max_staleness=1" in self.spec["settings"]),
                "settings": self.spec["settings"]})))

    def begin(self):
        if not self.trainers or self.busy or not self.sealed or not self.imaged:
            return
        self.id["step"] += 1
        self.id["attempt"] += 1
        self.busy, self.slow = True, pace.Bound(2)
        self.send(self.frame("BEGIN", world=self.world(), record=self.record))
        self.send(self.frame("GRANT"))
        self.send(self.frame("DRAINED"))

    def on(self, f):
        if f.name == "MODEL" and f.flags & REPLY:
            self.send(self.frame("ASK"))
        elif f.flags & REPLY:
            return
        elif f.name == "ANSWER":
            self.view(False)
            self.send(Frame(op=OP["WRITE"], attempt=78, model=1, generation=1, step=CHUNK,
                            chunk=MASTER, term=1, seq=1,
                            # A node does not vote with weights that nobody wrote.
                            body=bytes(4 * (1536 - CHUNK))))
            self.view(True)
        elif f.name == "VIEW_OK":
            self.sealed = True
            self.answer()
            self.begin()
        elif f.name == "CORE_JOIN":
            # A node says it again after each view. A trainer is in the world once.
            t = f.message()["trainer"]
            others = [x for x in self.trainers if x["session"] != t["session"]]
            self.trainers = (others + [{"session": t["session"], "pid": t["pid"]}])[-4:]
            self.send(f.copy(body=f.body))
            self.begin()
        elif f.name == "GONE":
            t = f.message()["trainer"]
            self.trainers = [x for x in self.trainers if x["session"] != t["session"]]
            self.send(f.copy(body=f.body))
            self.busy = False
        elif f.name == "VOTE":
            self.record = self.record_of(self.liar.rng.choice([1, 1, 1, 2]))
            self.send(self.frame("COMMIT", record=self.record))
            self.counts.steps += 1
        elif f.name == "CORE_ABANDON":
            self.send(self.frame("ABORT", why="a node gave it up"))
            self.busy = False
            self.begin()
        elif f.name == "DONE":
            self.busy = False
            self.begin()
        elif f.name == "DEFINE":
            self.asked.append(f)
            self.answer()
        else:
            super().on(f)
            if f.name == "IMAGE_ASK":
                self.begin()
        if self.busy and self.slow.passed():
            self.send(self.frame("ABORT", why="too slow"))
            self.busy = False
            self.begin()


class Listener:
    """The port of a node that is not there. Who dials it is answered as by that node."""

    def __init__(self, port, node, secret):
        self.sock = socket.create_server(("127.0.0.1", port))
        self.node, self.secret = node, secret
        self.config = None  # config_hash and config that the dialling node said. Ours are the same.

    def accept(self, uuid, incarnation, seconds=15.0):
        """Accepts a link. Returns (Conn, the whole Hello of the other node)."""
        self.sock.settimeout(pace.seconds(seconds))
        sock, _ = self.sock.accept()
        c = Conn(sock=sock)
        first = c.read()
        if first is None or first.name != "HELLO":
            raise Closed("no hello")
        brief = first.message()
        mine = {"wire_min": 1, "wire_max": 1, "features": wire.FEATURE_BODY_SUM | wire.FEATURE_AUTH,
                "role": NODE,
                "node": self.node, "connection": 0, "release": "stranger"}
        nonce = os.urandom(32)
        reply = pack("Hello", dict(mine, nonce=nonce))
        c.send(Frame(op=OP["HELLO"], flags=REPLY, attempt=first.attempt, body=reply))
        auth = c.read()
        if auth is None or auth.name != "AUTH":
            raise Closed(c.last_error or "no proof")
        theirs = wire.unpack("Hello", auth.message()["hello"])
        whole = pack("Hello", dict(mine, run_id=theirs["run_id"], uuid=uuid,
                                   incarnation=incarnation,
                                   config_hash=theirs["config_hash"], pid=os.getpid(),
                                   config=theirs["config"]))
        sums = (brief["nonce"] + nonce + wire.hashlib.sha256(first.body).digest()
                + wire.hashlib.sha256(reply).digest())
        proof = wire.prove(self.secret, "shardd auth 2 node listener", sums, whole)
        c.send(Frame(op=OP["AUTH"], flags=REPLY, attempt=auth.attempt,
                     body=pack("Auth", {"proof": proof, "hello": whole})))
        return c, theirs

    def close(self):
        self.sock.close()
