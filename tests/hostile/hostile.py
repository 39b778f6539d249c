#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hostile.py --san DIR --plain DIR [--seconds N] [--seed K] [--only NAME]: what hostile peers can
do to daemons.

First every named attack of attacks.py runs, and then lying peers in each role (a trainer at the
unix socket, a trainer over TCP, a member node, a coordinator, a flood of connections), for N
seconds in all, against daemons of a sanitizer build. Beside each of them but the coordinator an
honest trainer trains. A node takes part in each step of every model of its cluster, so the lying
member is honest about one model. A coordinator decides for all models, so nobody can train beside
one that lies, and a true one must bring its node back. After each role no daemon may have crashed,
hung, leaked or kept a descriptor, and an honest trainer must go on. The last line is "N passed, N
failed, N skipped". If anything failed, the logs stay in a folder whose name is printed.
"""
import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback

import attacks
import roles
import wire
from attacks import Failed, dial_as
import ports
from daemons import Honest, Node
from wire import OP, TRAINER, Closed, Conn, Frame, Hang, Refused, pace

HONEST = "chunk_elems=4096 max_world=4"


class Stage:
    """The daemons and keys of one test, in a folder of its own."""

    def __init__(self, run, name, san, plain, names="a"):
        self.dir = os.path.join(run, name)
        os.makedirs(self.dir)
        self.san, self.plain = san, plain
        self.ports = {n: ports.take() for n in names}
        self.keys = {"secret": os.urandom(32).hex(), "node_secret": os.urandom(32).hex()}
        self.nodes, self.honest = {}, []

    def key(self, option):
        return bytes.fromhex(self.keys[option])

    def node(self, name, start=True, **conf):
        secrets = self.keys if len(self.ports) > 1 else {"secret": self.keys["secret"]}
        self.nodes[name] = Node(self.dir, name, self.san, self.ports, secrets=conf.pop("secrets", secrets), **conf)
        return self.nodes[name].start() if start else self.nodes[name]

    def begins(self, node, name="honest", settings=HONEST):
        self.honest.append(Honest(node, self.plain, name, settings=settings))
        return self.honest[-1]

    def trains(self, node, name="honest"):
        self.begins(node, name)
        problem = self.honest[-1].moves(2, bound=120)
        if problem:
            raise Failed(problem)
        return self.honest[-1]

    def finish(self):
        """Returns everything that is wrong at the end, as a list of sentences."""
        wrong = []
        for h in self.honest:
            try:
                wrong.append(h.moves())
            except (OSError, wire.Closed, Hang) as e:
                wrong.append(f"{h.name}: {type(e).__name__} {e}")
            h.stop()
        for n in self.nodes.values():
            if n.process is not None:
                wrong.append(n.stop())
        return [w for w in wrong if w]

    def kill(self):
        for h in self.honest:
            h.stop()
        for n in self.nodes.values():
            if n.process is not None and n.alive():
                n.process.kill()
                n.process.wait()


def settles(node, before, bound=30):
    """Waits until the daemon has no more descriptors than before. Returns None, or what is wrong.
    """
    limit = pace.Bound(bound)
    while not limit.passed():
        if node.fds() <= before:
            return None
        time.sleep(0.1)
    return f"node {node.name} has {node.fds()} descriptors, {before} before: see {node.log}"


def drop_all(node, keep):
    for m in node.status()["models"]:
        if m["name"] not in keep:
            c = Conn(node.socket)
            c.hello(role=wire.TOOL)
            try:
                c.request("MANAGE", {"name": m["name"], "action": 1, "force": True})
            except Refused as e:
                raise Failed(f"drop of {m['name']}: {e.args[1]}") from None
            finally:
                c.close()


def report(name, counts, seconds, more=""):
    print(f"hostile: {name}: {seconds:.0f} s, {counts.connections} connections, {counts.frames} frames, "
          f"{counts.lies} lies, {counts.steps} steps, {len(counts.refusals)} different refusals{more}", flush=True)
    if os.environ.get("SHOW"):
        print("\n".join("    " + r for r in sorted(counts.refusals)))


def fuzz_trainer(st, rng, seconds, over_tcp):
    a, _ = st.node("a"), st.node("b")
    honest = st.trains(a)
    node, counts = a, roles.Counts()
    folder = os.path.join(a.dir, "ck")
    began, before = honest.step(), a.fds()

    def connect(role):
        c = Conn(node.tcp() if over_tcp else node.socket)
        c.hello(role=role, secret=st.key("secret") if over_tcp else None)
        return c

    until = time.monotonic() + seconds
    broken = []

    def liar(own):
        try:
            while time.monotonic() < until and not broken:
                roles.trainer_episode(connect, own, counts, folder)
        except Exception:  # A daemon hangs or has ended, or this program has a mistake.
            broken.append(traceback.format_exc(limit=-3))

    threads = [threading.Thread(target=liar, args=(random.Random(rng.random()),)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if broken:
        raise Failed(broken[0])
    problem = honest.moves()
    if problem:
        raise Failed(problem)
    report("tcp trainer" if over_tcp else "unix trainer", counts, seconds, f", honest steps {honest.step() - began}")
    drop_all(a, ["honest"])
    for n in st.nodes.values():
        problem = settles(n, before + 8)
        if problem:
            raise Failed(problem)


class FakeMember:
    """A node b that comes and goes beside a real coordinator a. It never lies about the model
    "honest", all of which is at a."""

    def __init__(self, st, a, rng):
        self.st, self.a, self.rng = st, a, rng
        self.counts, self.uuid, self.incarnation = roles.Counts(), rng.randbytes(16), 1

    def visit(self, seconds, lying, beside=None):
        """Makes one link to a, for so long or until a ends it."""
        try:
            c = dial_as(self.st, self.a, "b", self.uuid, self.incarnation)
        except (Closed, Refused) as e:
            self.counts.refused(str(e))
            time.sleep(0.05)
            self.incarnation += 1
            return
        self.incarnation += self.rng.random() < .2
        member = roles.Member(c, wire.Liar(self.rng), self.counts, lying, self.uuid, self.incarnation)
        member.honest = "honest"
        trainer = threading.Thread(target=beside or (lambda: None))
        trainer.start()
        try:
            member.run(seconds)
        except Closed as e:
            self.counts.refused(str(e))
        finally:
            c.close()
            trainer.join()

    def until_step(self, honest, step, bound=120.0):
        """Takes part as a good node does until the honest trainer has committed that step."""
        limit = pace.Bound(bound)
        while honest.step() < step:
            if limit.passed():
                raise Failed(f"the honest trainer stands at step {honest.step()} beside a member that does its duty")
            self.visit(1.0, 0)


def fuzz_member(st, rng, seconds):
    """Plays a node b with a trainer of its own, beside an honest one at a. Then the real b comes,
    and all must be well again."""
    a = st.node("a")
    fake = FakeMember(st, a, rng)
    honest = st.begins(a, settings=f"chunk_elems={1 << 24} max_world=4")  # One chunk, at a.
    fake.until_step(honest, 2)
    began, before = honest.step(), a.fds()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        fake.visit(min(2.5, max(0.1, until - time.monotonic())), rng.choice([0, .02, .1, .5]),
                   lambda: one_trainer(a, rng.random()))
        a.status()
    lied = honest.step()
    fake.until_step(honest, lied + 3)
    report("member node", fake.counts, seconds, f", honest steps {lied - began}")
    drop_all_until(a)
    st.node("b")
    problem = honest.moves() or settles(a, before + 8)
    if problem:
        raise Failed(problem)


def drop_all_until(a):
    """Drops the models in which a vanished node took part by force."""
    try:
        drop_all(a, ["honest"])
    except Hang as e:
        raise Failed(f"drop hangs: {e}") from None


def one_trainer(node, x):
    """Trains a few steps of a model at a node, as far as its cluster allows it."""
    try:
        c = Conn(node.socket, bound=2.0)
        c.hello()
        t = roles.Trainer(c)
        t.ready_model(roles.spec(f"m{int(x * 3)}"))
        t.join()
        for _ in range(20):
            if not t.step(1.0):
                break
        c.close()
    except (Closed, Refused, Hang, OSError):
        pass


def forget_model(listener, uuid, term):
    """Forgets what a coordinator defined, because the next one has models of its own."""
    limit = pace.Bound(30)
    while True:
        try:
            c, _ = listener.accept(uuid, term)
            try:
                c.request("MODEL_DROP", {}, model=1, generation=1)
            finally:
                c.close()
            return
        except Closed:
            if limit.passed():
                raise


def fuzz_coordinator(st, rng, seconds):
    """Plays a coordinator a beside a real node b, with a trainer of its own at b. Then the real a
    comes, and all must be well again."""
    listener = roles.Listener(st.ports["a"], "a", st.key("node_secret"))
    b = st.node("b")
    before = b.fds()
    counts, term, uuid = roles.Counts(), 1, rng.randbytes(16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        term += 1
        try:
            c, theirs = listener.accept(uuid, term)
        except Closed as e:
            counts.refused(str(e))
            continue
        fake = roles.Coordinator(c, wire.Liar(rng), counts, rng.choice([0, .02, .1, .5]), uuid, term, term)
        trainer = threading.Thread(target=one_trainer, args=(b, 0.0))
        try:
            fake.begin_with(theirs)
            trainer.start()
            fake.run(min(2.5, max(0.1, until - time.monotonic())))
        except Closed as e:
            counts.refused(str(e))
        finally:
            c.close()
            if trainer.is_alive():
                trainer.join()
        b.status()
    forget_model(listener, uuid, term + 1)
    listener.close()
    report("coordinator", counts, seconds)
    st.node("a")
    st.trains(b)
    drop_all_until(b)
    problem = settles(b, before + 24)
    if problem:
        raise Failed(problem)


def fuzz_flood(st, rng, seconds):
    """Makes connections that say nothing, say half of something, or hang up, bounded in number and
    rate."""
    a, _ = st.node("a"), st.node("b")
    honest = st.trains(a)
    counts, before, held = roles.Counts(), a.fds(), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        c = None
        try:
            c = Conn(rng.choice([a.tcp(), a.socket]), bound=5.0)
            counts.connections += 1
            x = rng.random()
            if x < .4:
                pass
            elif x < .6:
                c.raw(rng.randbytes(rng.randrange(1, 200)))
            elif x < .8:
                c.raw(wire.frame_bytes(Frame(op=OP["HELLO"], body=b"x" * 500), 0)[:rng.randrange(1, 500)])
            elif c.unix:
                c.hello()
            if rng.random() < .3 and len(held) < 300:
                held.append(c)
                c = None
        except (Closed, Refused, OSError, Hang) as e:
            counts.refused(str(e))
        if c is not None:
            c.close()
        if len(held) >= 300 or (held and rng.random() < .05):
            held.pop(rng.randrange(len(held))).close()
    began = honest.step()
    problem = honest.moves()
    if problem:
        raise Failed(problem)
    for c in held:
        c.close()
    report("flood", counts, seconds, f", honest steps {honest.step() - began} at its end")
    problem = settles(a, before + 4)
    if problem:
        raise Failed(problem)


FUZZ = {
    "unix": ("ab", lambda st, rng, s: fuzz_trainer(st, rng, s, False)),
    "tcp": ("ab", lambda st, rng, s: fuzz_trainer(st, rng, s, True)),
    "member": ("ab", fuzz_member), "coordinator": ("ab", fuzz_coordinator), "flood": ("ab", fuzz_flood),
}


def run_one(name, names, work, args, run):
    """Returns True if it passed, and None if it was skipped."""
    st, began, wrong = Stage(run, name, args.san, args.plain, names), time.monotonic(), []
    try:
        work(st)
        wrong = st.finish()
    except attacks.Skip as e:
        st.kill()
        print(f"skip {name}: {e}", flush=True)
        return None
    except (Failed, AssertionError, Closed, Refused, Hang, OSError) as e:
        wrong = [f"{type(e).__name__}: {e}"]
        if not isinstance(e, Failed):
            traceback.print_exc(limit=-4)
        wrong += [w for w in (n.stop() for n in st.nodes.values() if n.process is not None) if w]
    finally:
        st.kill()
    for w in wrong:
        print(f"FAIL {name}: {w}", flush=True)
    if not wrong:
        print(f"ok   {name}  {time.monotonic() - began:.1f} s", flush=True)
    return not wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--san", required=True, help="folder of a sanitizer build")
    p.add_argument("--plain", required=True, help="folder of the plain build, for honest trainers")
    p.add_argument("--seconds", type=int, default=60, help="of lying, all roles together")
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--only", help="a comma-separated list of attacks and roles")
    args = p.parse_args()
    seed = args.seed if args.seed is not None else int.from_bytes(os.urandom(3), "big")
    only = set(args.only.split(",")) if args.only else None
    known = set(attacks.ATTACKS) | set(FUZZ)
    if only and only - known:
        p.error(f"no attack or role {', '.join(sorted(only - known))}: there are {', '.join(sorted(known))}")
    run = tempfile.mkdtemp(prefix="shardd-hostile-")
    print(f"hostile: seed {seed}, logs in {run}", flush=True)
    results = []
    for name, (names, attack) in attacks.ATTACKS.items():
        if not only or name in only:
            results.append(run_one(name, names, attack, args, run))
    chosen = [n for n in FUZZ if not only or n in only]
    for i, name in enumerate(chosen):
        names, fuzz = FUZZ[name]
        rng = random.Random(seed * 10 + i)
        results.append(run_one(name, names, lambda st: fuzz(st, rng, args.seconds / len(chosen)), args, run))
    failed = sum(r is False for r in results)
    if failed:
        print(f"hostile: again: make hostile SECONDS={args.seconds} SEED={seed}; logs are kept in {run}")
    else:
        shutil.rmtree(run)
    print(f"{sum(r is True for r in results)} passed, {failed} failed, {sum(r is None for r in results)} skipped")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
