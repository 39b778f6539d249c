# SPDX-License-Identifier: Apache-2.0
"""Named attacks, each of which was possible once. An attack takes a Stage, starts what it needs and
asserts that the harm does not come.

They are written as the attacker would do it: with frames of wire.py, with another user's id where
the machine allows it, and with plain files. The README says what the daemon must do: refuse, keep
what it has, and go on for all others.
"""
import contextlib
import ctypes
import os
import random
import struct
import threading
import time
import urllib.error
import urllib.request

import roles
import wire
import ports
from wire import NODE, OP, REPLY, TOOL, TRAINER, Closed, Conn, Frame, Hang, Refused, pace, pack

STRANGER = 12345  # A user id that no daemon knows.
DROP = 1          # The action of MANAGE.


class Skip(Exception):
    """This machine cannot show it. args[0] says why."""


class Failed(Exception):
    """The harm came. args[0] is the sentence."""


ATTACKS = {}


def attack(names="a"):
    """Registers a named attack, on nodes with these names (one letter each, the first coordinates).
    """
    def add(f):
        ATTACKS[f.__name__] = (names, f)
        return f
    return add


def expect(condition, sentence):
    if not condition:
        raise Failed(sentence)


def refused(work, what):
    """Returns the text with which the daemon refused. Fails if it did not refuse."""
    try:
        work()
    except Refused as e:
        return e.args[1]
    except Closed as e:
        return str(e)
    raise Failed(f"{what} was not refused")


@contextlib.contextmanager
def somebody_else():
    """Connections made in this context belong to another user, as the kernel sees it."""
    if os.geteuid() != 0:
        raise Skip("needs root, to be another user")
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def opened(node):
    """Lets every user of the machine reach the node's socket and look into the folders of the run,
    as a group of trainers would."""
    os.chmod(node.socket, 0o666)
    at = os.path.dirname(node.socket)
    while at != "/":
        with contextlib.suppress(PermissionError):
            os.chmod(at, os.stat(at).st_mode | 0o055)
        at = os.path.dirname(at)


def tool(node, role=TOOL):
    c = Conn(node.socket)
    c.hello(role=role)
    return c


def trainer(node):
    c = Conn(node.socket)
    c.hello()
    return roles.Trainer(c)


def sealed_model(node, name="m", elems=1536, settings=""):
    t = trainer(node)
    t.ready_model(roles.spec(name, elems, settings))
    return t


def read(t, kind=roles.MASTER, first=0, count=512):
    f = t.ask("READ", {"kind": kind, "first": first, "count": count}, **t.mine())
    return struct.unpack(f"<{len(f.body) // 4}f", f.body)


def link_downs(node):
    return node.logged().count("event=link_down")


def linked(node, peer, bound=30):
    limit = pace.Bound(bound)
    while not limit.passed():
        if f"event=link_up peer={peer}" in node.logged():
            return
        time.sleep(0.05)
    raise Failed(f"no link to {peer} within {time.monotonic() - limit.began:.0f} s: see {node.log}")


def dial_as(st, node, name, uuid, incarnation, connection=0):
    """Makes one connection of a link with a real node, as the node of that name."""
    look = Conn(node.tcp())
    config = look.hello(role=TRAINER, secret=st.key("secret"))
    look.close()
    c = Conn(node.tcp())
    c.hello(role=NODE, secret=st.key("node_secret"), brief={"node": name, "connection": connection}, whole={
        "node": name, "connection": connection, "uuid": uuid, "incarnation": incarnation, "run_id": config["run_id"],
        "config_hash": config["config_hash"], "config": config["config"]})
    return c


class Aside:
    """Runs work in a thread. What the work raised is raised again where the thread is awaited."""

    def __init__(self, work, *args):
        self.error = self.result = None

        def run():
            try:
                self.result = work(*args)
            except Exception as e:  # It is raised again by the waiting thread.
                self.error = e
        self.thread = threading.Thread(target=run)
        self.thread.start()

    def wait(self):
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self.result


# --- who may be a node, and who may connect at all ---

@attack("ab")
def node_role_at_the_unix_socket(st):
    """A process that can open the unix socket says that it is node b."""
    a, _ = st.node("a"), st.node("b")
    linked(a, "b")
    t = sealed_model(a, settings="optimizer=sgd chunk_elems=1024 mode=0600")
    opened(a)
    with somebody_else():
        c = Conn(a.socket)
    config = Conn(a.socket).hello(role=TOOL)
    text = refused(lambda: c.hello(role=NODE, whole={
        "node": "b", "uuid": os.urandom(16), "incarnation": 1, "config_hash": config["config_hash"],
        "config": config["config"]}), "the node role at a unix socket")
    expect("node" in text, f"the refusal names no reason: {text}")
    expect(link_downs(a) == 0, "the link with the real node fell")
    expect(read(t)[0] == 0.5, "the model is not what it was")


@attack("ab")
def trainers_secret_as_a_node(st):
    """A process with the trainers' secret is not a node by that."""
    a, _ = st.node("a"), st.node("b")
    linked(a, "b")
    for label in (None, "shardd auth 2 client"):
        c = Conn(a.tcp())
        refused(lambda: c.hello(role=NODE, secret=st.key("secret"), label=label, brief={"node": "b"},
                                whole={"node": "b", "uuid": os.urandom(16), "incarnation": 1}), "a trainer's key")
    c = Conn(a.tcp())  # It proves as a trainer, and then says in the whole Hello that it is a node.
    refused(lambda: c.hello(role=NODE, secret=st.key("secret"), label="shardd auth 2 client",
                            brief={"node": "b", "role": TRAINER}, whole={"node": "b"}), "a role that changes")
    expect(link_downs(a) == 0, "the link with the real node fell")


@attack("ab")
def link_taken_over_and_over(st):
    """A process that has the nodes' key but is not b cannot end the link of the real b."""
    a, b = st.node("a"), st.node("b")
    linked(a, "b")
    for _ in range(20):
        with contextlib.suppress(Refused, Closed):
            dial_as(st, a, "b", os.urandom(16), 1).close()
    expect(link_downs(a) == 0 and link_downs(b) == 0, "the link with the real node fell")


@attack()
def loopback_without_a_secret(st):
    """Every user of the machine reaches 127.0.0.1. Without a key none of them is accepted there."""
    a = st.node("a", secrets={}, start=False)
    with open(a.conf) as f:
        lines = f.read().splitlines()
    with open(a.conf, "w") as f:
        f.write("\n".join(x for x in lines if not x.startswith("listen")) + "\n")
    a.start()
    with contextlib.suppress(ConnectionRefusedError):
        c = Conn(a.tcp())
        refused(c.hello, "a stranger over loopback")


@attack()
def mode_of_a_model(st):
    """Another user reads, drops and restores over a model that belongs to its owner alone."""
    a = st.node("a")
    sealed_model(a, "m", settings="optimizer=sgd chunk_elems=1024 mode=0600")
    opened(a)
    with somebody_else():
        c = Conn(a.socket)
    c.hello()
    refused(lambda: c.request("ATTACH", {"name": "m"}), "attach")
    refused(lambda: c.request("READ", {"kind": 2, "first": 0, "count": 4}, model=1, generation=1), "read")
    refused(lambda: c.request("MANAGE", {"name": "m", "action": DROP, "force": True}), "drop")
    refused(lambda: c.request("MANAGE", {"name": "m", "action": DROP, "force": True,
                                         "cred": {"known": True, "uid": 0, "gid": 0, "root": True}}), "drop as root")


# --- memory ---

@attack("ab")
def answer_after_its_end(st):
    """The answer ends on one connection of a link, and its bytes still come on another one."""
    a = st.node("a", net="connections = 2")
    uuid = os.urandom(16)
    first = dial_as(st, a, "b", uuid, 1)
    second = dial_as(st, a, "b", uuid, 1, connection=1)
    m = roles.Member(first, wire.Liar(random.Random(1)), roles.Counts(), 0, uuid, 1)

    def ask():
        t = trainer(a)
        t.ready_model(roles.spec("m", 132096, "optimizer=sgd chunk_elems=65536"))
        for k in range(8):
            with contextlib.suppress(Refused, Hang):
                t.ask("READ", {"kind": 2, "first": 65536, "count": 65536}, seconds=2, **t.mine())
        t.c.close()

    real = m.on

    def on(f):
        if f.name != "READ" or f.flags & REPLY:
            return real(f)
        body = bytes(4 * f.message()["count"])
        h = Frame(op=f.op, flags=REPLY, attempt=f.attempt, model=f.model, step=1, body=body)
        data = wire.frame_bytes(h, second.out)
        second.raw(data[:1064])
        m.send(Frame(op=OP["ERROR"], flags=REPLY, attempt=f.attempt, body=pack("Error", {"status": 21, "text": "no"})))
        time.sleep(0.05)  # The daemon reads both, and either order must be harmless.
        second.raw(data[1064:])
        second.out += 1
        return None

    m.on = on
    asking = Aside(ask)
    with contextlib.suppress(Closed):
        m.run(6)
    first.close()
    second.close()
    with contextlib.suppress(Closed, Refused, Hang):
        asking.wait()
    a.status()


@attack()
def write_that_goes_on_after_the_seal(st):
    """A WRITE begins before the seal, and the rest of its body comes after a committed step."""
    a = st.node("a")
    t = trainer(a)
    t.define(roles.spec("m", 65536, "optimizer=sgd lr=0 chunk_elems=65536"))
    late = Conn(a.socket)
    late.hello()
    late.request("ATTACH", {"name": "m"})
    body = struct.pack("<f", 666.0) * 65536
    data = wire.frame_bytes(Frame(op=OP["WRITE"], attempt=9, model=t.model, generation=t.generation, chunk=2,
                                  body=body), late.out)
    for first in range(0, 65536, 1024):
        t.write(0.5, first, 1024)
    late.raw(data[:64 + 4096])
    t.seal()
    before = read(t, count=65536)
    with contextlib.suppress(Closed):
        late.raw(data[64 + 4096:])
        late.out += 1
        late.read(2)
    expect(read(t, count=65536) == before, "masters of a sealed model were written")


@attack("ab")
def gradient_that_changes_after_the_push(st):
    """A trainer goes on writing into its arena after PUSH. The link of the other model stays, and
    the daemon applies what it judged."""
    a, b = st.node("a"), st.node("b")
    linked(a, "b")
    honest = st.trains(b)
    t = sealed_model(a, "scribbler", 65536, "optimizer=sgd lr=1 chunk_elems=4096 clip=1 timeout=20s")
    t.join()
    stop = []

    def scribble():
        words = [struct.pack("<f", x) * 1024 for x in (1e6, 1e-3, 7.0)]
        while not stop:
            for w in words:
                for at in range(0, 65536 * 4, 4096):
                    t.arena[at:at + 4096] = w

    other = Aside(scribble)
    steps = 0
    try:
        for _ in range(8):
            if t.wait_attempt(20) is None:
                break
            for chunk in range(16):
                t.send(t.head("PUSH", chunk=chunk))
            t.ready()
            while t.attempt is not None:
                f = t.c.next(pace.seconds(20))
                if f is None:
                    raise Failed("the attempt neither commits nor ends")
                if f.name == "RESULT":
                    steps += 1
                t.see(f)
    except Closed:
        pass  # It was expelled, which is an answer, too.
    finally:
        stop.append(1)
        other.wait()
    expect(link_downs(a) == 0 and link_downs(b) == 0, "the link of all models fell")
    problem = honest.moves()
    expect(problem is None, problem)
    try:
        t2 = trainer(a)
        t2.define(roles.spec("scribbler", 65536, "optimizer=sgd lr=1 chunk_elems=4096 clip=1 timeout=20s"))
        worst = max(abs(x) for first in range(0, 65536, 4096) for x in read(t2, first=first, count=4096))
        # clip = 1: no step moves the weights by more than 1 in norm.
        expect(worst <= 0.5 + steps + 1.1, f"a weight is {worst} after {steps} steps that were clipped to 1")
    except Refused:
        pass


@attack()
def clip_evaded_by_a_late_gradient(st):
    """The gradient grows between PUSH and READY. The norm and the update must see the same one,
    also with memory that is not kept."""
    a = st.node("a", daemon="warm_restart = off")
    t = sealed_model(a, "m", 1024, "optimizer=sgd lr=1 chunk_elems=1024 clip=1")
    t.join()
    t.wait_attempt(10)
    t.arena[:4096] = struct.pack("<f", 0.001) * 1024
    t.send(t.head("PUSH", chunk=0))
    time.sleep(0.2)  # The norm is computed meanwhile.
    t.arena[:4096] = struct.pack("<f", 1e6) * 1024
    t.ready()
    limit = pace.Bound(20)
    result = None
    while result is None and not limit.passed():
        f = t.c.next(1)
        if f is not None and f.name == "RESULT":
            result = f.message()
    expect(result is not None, "no result")
    moved = max(abs(x - 0.5) for x in read(t, count=1024))
    expect(moved <= 1.0, f"norm {result['grad_norm']} and clip {result['clip_factor']}, but a weight moved by {moved}")


@attack()
def holes_in_the_arena(st):
    """The trainer punches holes into its arena and truncates it."""
    a = st.node("a")
    honest = st.trains(a)
    t = sealed_model(a, "m", 65536, "optimizer=sgd lr=1 chunk_elems=4096")
    t.join()
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in list(t.c.fds):
        libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(1 << 18))
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
    for _ in range(3):
        with contextlib.suppress(Closed):
            t.step(5)
    problem = honest.moves()
    expect(problem is None, problem)


@attack()
def a_part_that_comes_again(st):
    """A part that comes twice does not complete a chunk in which another one is missing."""
    a = st.node("a")
    c = Conn(a.tcp())
    c.hello(secret=st.key("secret"))
    t = roles.Trainer(c)
    t.ready_model(roles.spec("m", 131072, "optimizer=sgd lr=1 chunk_elems=131072"))
    t.join()
    expect(t.wait_attempt(10) is not None, "no attempt")
    part = bytes(262144)
    with contextlib.suppress(Closed):
        for _ in range(2):
            t.send(t.head("PUSH_DATA", chunk=0, body=part))
        t.send(t.head("PUSH", chunk=0))
        t.ready()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            f = t.c.next(1)
            expect(f is None or f.name != "RESULT", "a chunk was closed with a part missing")
            if f is None:
                t.send(Frame(op=OP["PING"]))


# --- messages of a coordinator or a member ---

@contextlib.contextmanager
def fake_coordinator(st, settings=""):
    """Plays an a that coordinates the real b, with a trainer joined at b. Returns (Coordinator,
    node b, Trainer). It begins no attempt."""
    listener = roles.Listener(st.ports["a"], "a", st.key("node_secret"))
    b = st.node("b")
    uuid = os.urandom(16)
    c, theirs = listener.accept(uuid, 5, seconds=60)
    fake = roles.Coordinator(c, wire.Liar(random.Random(1)), roles.Counts(), 0, uuid, 5, 5, settings)
    fake.begin_with(theirs)
    fake.begin, begin = (lambda: None), fake.begin

    def join():
        t = trainer(b)
        t.define(roles.spec("m0", settings=settings))
        t.join()
        return t

    joining = Aside(join)
    came = runs_until(fake, lambda: joining.error or fake.trainers and fake.sealed and fake.imaged)
    expect(came and not joining.error, f"no trainer joined: {joining.error!r}: see {b.log}")
    fake.begin = begin
    try:
        yield fake, b, joining.wait()
    finally:
        c.close()
        listener.close()


def runs_until(fake, condition, seconds=30):
    """Takes part until the condition holds (true). False: the daemon closed the link, or the time
    passed."""
    limit = pace.Bound(seconds)
    with contextlib.suppress(Closed):
        while not condition() and not limit.passed():
            fake.run(0.05)
    return condition()


@attack("ab")
def begin_with_a_world_that_lies(st):
    """BEGIN names one trainer eight times, or more trainers than a node may have, or unknown ones.
    """
    with fake_coordinator(st) as (fake, b, _):
        fake.id["step"] = 1
        one = fake.world()[0]
        for world in ([one] * 8, [one] * 64, [dict(one, session=one["session"] + k) for k in range(8)],
                      [dict(one, node=9)], [dict(one, session=0)], []):
            fake.id["attempt"] += 1
            with contextlib.suppress(Closed):
                fake.send(fake.frame("BEGIN", world=world, record=fake.record))
                fake.run(0.2)
        b.status()


@attack("ab")
def commit_that_does_not_follow(st):
    """COMMIT comes with counters that do not follow from the previous record, after an honest vote,
    with two images."""
    with fake_coordinator(st, "optimizer=sgd lr=1 chunk_elems=1024 max_world=4 timeout=5s max_staleness=1") as (fake, b, t):
        voted = []
        honest = fake.on
        fake.on = lambda f: voted.append(f) if f.name == "VOTE" else honest(f)
        fake.begin()
        stepping = Aside(t.step, 5.0)
        expect(runs_until(fake, lambda: bool(voted or stepping.error)) and voted,
               f"node b does not vote: {stepping.error!r}: see {b.log}")
        record = fake.record_of(1)
        for change in ({"applied": 3}, {"applied": 0}, {"applied": (1 << 64) - 1}, {"content": 99}, {"outcome": 0},
                       {"attempts": (1 << 64) - 1}, {"clip_factor": float("nan")}, {"weight_sum": 0.0}):
            with contextlib.suppress(Closed):
                fake.send(fake.frame("COMMIT", record=dict(record, **change)))
                fake.run(0.1)
        b.status()
        with contextlib.suppress(Closed, Hang):
            stepping.wait()


# --- files ---

@attack()
def save_into_the_state_folder(st):
    """SAVE names a folder in the daemon's own state. The next start must succeed."""
    a = st.node("a")
    sealed_model(a)
    opened(a)
    state = os.path.join(a.dir, "state")
    with somebody_else():
        c = Conn(a.socket)
    c.hello(role=TOOL)
    refused(lambda: c.request("SAVE", {"name": "m", "dir": state, "tag": "model-00000063"}), "SAVE into the state folder")
    own = tool(a)  # The daemon's own user may save elsewhere, but not there either.
    os.symlink(state, os.path.join(a.dir, "link"))
    for d in (state, state + "/../state", os.path.join(a.dir, "link")):
        refused(lambda d=d: own.request("SAVE", {"name": "m", "dir": d, "tag": "model-00000063"}), f"SAVE into {d}")
    wrong = a.stop()
    expect(wrong is None, wrong)
    a.start()


@attack()
def foreign_folder_replaced(st):
    """A folder with any file manifest.json is somebody's web application and not a checkpoint."""
    a = st.node("a")
    sealed_model(a)
    root = os.path.join(a.dir, "srv")
    web = os.path.join(root, "webapp")
    os.makedirs(web)
    for name, text in (("manifest.json", '{"name": "shop"}'), ("index.html", "<p>"), ("data.db", "rows")):
        with open(os.path.join(web, name), "w") as f:
            f.write(text)
    before = sorted(os.listdir(web))
    c = tool(a)
    for fresh in (True, False):
        refused(lambda fresh=fresh: c.request("SAVE", {"name": "m", "dir": root, "tag": "webapp", "fresh": fresh}),
                "SAVE over a foreign folder")
    expect(sorted(os.listdir(web)) == before, "files of a foreign folder are gone")
    # A real checkpoint, beside which a user keeps a file of his own.
    c.request("SAVE", {"name": "m", "dir": root, "tag": "mine"})
    with open(os.path.join(root, "mine", "notes.txt"), "w") as f:
        f.write("do not lose")
    with contextlib.suppress(Refused):
        c.request("SAVE", {"name": "m", "dir": root, "tag": "mine"})
    expect(os.path.exists(os.path.join(root, "mine", "notes.txt")), "a file that is no checkpoint's was removed")


@attack()
def checkpoint_folders_of_strangers(st):
    """A foreign user names folders for the daemon to write to and read from: directly, by `..` and
    by links."""
    a = st.node("a")
    sealed_model(a)
    opened(a)
    target = os.path.join(a.dir, "elsewhere")
    os.mkdir(target)
    with somebody_else():
        c = Conn(a.socket)
    c.hello(role=TOOL)
    root = os.path.join(a.dir, "state", "checkpoints")
    os.makedirs(root, exist_ok=True)
    os.symlink(target, os.path.join(root, "link"))
    for d in (target, root + "/../../elsewhere", root + "/link", root + "/link/x", "/", "/tmp"):
        refused(lambda d=d: c.request("SAVE", {"name": "m", "dir": d, "tag": "t"}), f"SAVE into {d}")
        refused(lambda d=d: c.request("RESTORE", {"name": "n", "dir": d, "tag": "t"}), f"RESTORE from {d}")
    expect(os.listdir(target) == [], "the daemon wrote into a folder of a stranger's choice")


@attack()
def checkpoint_of_a_private_model(st):
    """A checkpoint of a model with mode 0600 is neither restored nor read by another user."""
    a = st.node("a")
    sealed_model(a, settings="optimizer=sgd chunk_elems=1024 mode=0600")
    opened(a)
    c = tool(a)
    path = c.request("SAVE", {"name": "m", "dir": os.path.join(a.dir, "state", "checkpoints"), "tag": "t"}).message()["path"]
    c.request("MANAGE", {"name": "m", "action": DROP})
    for folder, _, files in os.walk(path):
        for f in files:
            mode = os.stat(os.path.join(folder, f)).st_mode & 0o777
            expect(mode & 0o077 == 0, f"{f} has mode {mode:o}")
    with somebody_else():
        other = Conn(a.socket)
    other.hello(role=TOOL)
    refused(lambda: other.request("RESTORE", {"dir": os.path.dirname(path), "tag": "t"}), "RESTORE of a private model")
    c.request("RESTORE", {"dir": os.path.dirname(path), "tag": "t"})
    refused(lambda: other.request("MANAGE", {"name": "m", "action": DROP, "force": True}), "drop of what was restored")


@attack()
def manifest_that_swells(st):
    """A manifest of nested lists with a right checksum takes a small multiple of its size."""
    a = st.node("a")
    c = tool(a)
    root = os.path.join(a.dir, "state", "checkpoints")
    os.makedirs(os.path.join(root, "t"), exist_ok=True)
    for text in ("[" + ",".join(["[]"] * (4 << 20)) + "]", "[" * (8 << 20), '{"format":"shardd checkpoint","x":[' +
                 ",".join(["{}"] * (4 << 20)) + "]}"):
        text = text[:-1] + ',"sum":"' if text.startswith("{") else text + '"sum":"'
        text += f'{wire.xxh3(text[:-7].encode()):016x}"}}\n'
        with open(os.path.join(root, "t", "manifest.json"), "w") as f:
            f.write(text)
        before = a.rss()
        high = [before]
        done = []

        def watch():
            while not done:
                high[0] = max(high[0], a.rss())
                time.sleep(0.01)

        watching = Aside(watch)
        try:
            refused(lambda: c.request("RESTORE", {"dir": root, "tag": "t"}, seconds=120), "a manifest that is none")
        finally:
            done.append(1)
            watching.wait()
        # This bound is generous, because a sanitizer's allocator keeps freed memory in quarantine.
        # The manifest took 46 times its size once.
        expect(high[0] - before < 256 << 20, f"{(high[0] - before) >> 20} MiB for a manifest of {len(text) >> 20} MiB")


# --- shares ---

@attack("ab")
def idle_sessions_of_one_user(st):
    """One user opens all the sessions that it can and says nothing. Tools, trainers and the other
    node are still accepted."""
    a = st.node("a")
    opened(a)
    held = []
    with somebody_else():
        for _ in range(300):
            with contextlib.suppress(OSError):
                held.append(Conn(a.socket))
    for c in held:
        with contextlib.suppress(Closed, Refused, Hang):
            c.bound = 5
            c.hello()
    b = st.node("b")
    linked(b, "a")
    t = sealed_model(a)
    t.join()
    expect(t.step(20), "no step beside idle sessions")
    remote = Conn(a.tcp())
    remote.hello(secret=st.key("secret"))
    for c in held:
        c.close()


@attack()
def readers_that_do_not_read(st):
    """Sixty connections ask for weights and do not read them. The daemon's memory stays bounded."""
    a = st.node("a")
    t = sealed_model(a, "m", 1 << 20, "optimizer=sgd chunk_elems=1048576")
    before, held = a.rss(), []
    for _ in range(60):
        try:
            c = Conn(a.socket, bound=5)
            c.hello()
            c.request("ATTACH", {"name": "m"})
            held.append(c)
            # The daemon may stop reading from a client that does not read, which bounds its memory,
            # too.
            c.bound = 0.5
            for tag in range(100, 164):
                c.send(Frame(op=OP["READ"], attempt=tag, model=t.model, generation=t.generation,
                             body=pack("Read", {"kind": 2, "first": 0, "count": 65536})))
        except (Closed, Refused, Hang):
            pass
    a.status()
    grown = a.rss() - before
    # It was 950 MiB once. This has room for half a session's limit and a sanitizer's quarantine.
    expect(grown < 450 << 20, f"{grown >> 20} MiB for {len(held)} readers that do not read")
    for c in held:
        c.close()


# --- HTTP ---

@attack()
def http_for_another_name(st):
    """A page in a browser reaches the port under a name of its own (DNS rebinding)."""
    port = ports.take()
    a = st.node("a", start=False)
    with open(a.conf) as f:
        text = f.read().replace("http = off", f"http = 127.0.0.1:{port}")
    with open(a.conf, "w") as f:
        f.write(text)
    a.start()
    url = f"http://127.0.0.1:{port}/status"
    urllib.request.urlopen(url, timeout=pace.seconds(10)).read()
    try:
        urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "evil.example"}), timeout=pace.seconds(10)).read()
    except urllib.error.HTTPError as e:
        expect(e.code in (400, 403, 421), f"HTTP status {e.code}")
    else:
        raise Failed("/status is told to whoever names the daemon evil.example")
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=pace.seconds(10))
    policy = page.headers.get("Content-Security-Policy", "")
    scripts = [p for p in policy.split(";") if "script-src" in p or "default-src" in p]
    expect(not any("unsafe-inline" in p for p in scripts if "script-src" in p), f"scripts by {policy}")
