# SPDX-License-Identifier: Apache-2.0
"""`make chaos CLUSTER=static SECONDS=n SEED=k`: runs real daemons and trainers, and everything that
can happen to them. `make chaos` runs it for quorum and for etcd (chaos.sh).

static: three daemons on loopback serve the models of models.py. Trainers that connect again train
them and save every few steps. Rounds of one to three faults (faults.py) are drawn from the seed.
After each round every model must commit a step with all its trainers within a bound, which is a
multiple of what this machine needs to start everything. No daemon may lose weights or begin without
its memory.

quorum, etcd: five daemons with two copies of each chunk (elastic.py). Losses of nodes follow each
other as soon as all copies are there again, and other faults come beside them (storm.py). Nothing
may be lost.

At the end masters and moments are read, and replay.py, which knows only the documents, computes all
of it again from the trainers' logs. Exits with 0 if nothing was wrong. Otherwise it says what was
wrong, where the logs are and how to repeat the run.

    chaos.py BUILD SECONDS SEED [static|quorum|etcd]

With SEED "" the clock chooses. KEEP=1 keeps the folder. FAULTS="a b" draws from these alone. With
FLIP=1 the replay is made twice, the second time with one bit of one gradient flipped, which it must
notice.
"""

import atexit
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))

import elastic
import faults
import pace
import storm
from cluster import Cluster, Failed

TICK_S = 0.02
HEAL_STARTS, HEAL_MIN_S = (
    15,
    20,
)  # The bound: so many times what the first start took, but not less than this.


class Run:
    cluster_class = Cluster

    def __init__(self, build, seconds, seed, kind):
        self.seconds, self.seed, self.kind = seconds, seed, kind
        self.dice, self.random = faults.Dice(seed), random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="shard-chaos-", dir="/tmp")
        self.cluster = self.cluster_class(build, self.folder, kind)
        self.count, self.heals = (
            {},
            {},
        )  # Fault → how often. How long healing took after rounds with it.
        self.rounds, self.now = 0, "the start"
        self.deck = []

    def tick(self):
        self.cluster.look()
        time.sleep(TICK_S)

    def heal(self, bound):
        """Waits until all models have healed. Returns how long it took and which model was the
        last."""
        limit, since, last = pace.Bound(bound), time.monotonic_ns(), []
        while late := self.cluster.healed(since):
            if limit.passed():
                took = time.monotonic() - limit.began
                raise Failed(f"not healed {took:.0f} s after {self.now}: {', '.join(late)}")
            last = late
            self.tick()
        return time.monotonic() - limit.began, last[-1] if last else "-"

    def start(self):
        began = time.monotonic()
        for p in self.cluster.daemons + self.cluster.trainers:
            p.start()
        self.heal(60)
        start = time.monotonic() - began
        self.bound = max(HEAL_MIN_S, HEAL_STARTS * start)
        print(
            f"chaos: everything trains after {start:.1f} s: a fault must heal within "
            f"{self.bound:.0f} s",
            flush=True,
        )

    # --- rounds ---

    def draw(self):
        """Draws one to three kinds of faults. Each comes once before any comes again."""
        names = os.environ.get("FAULTS", "").split()
        kinds = [f for f in faults.FAULTS if not names or f.__name__ in names]
        if not self.cluster.small_disk:
            kinds = [f for f in kinds if f is not faults.full_disk]
        chosen = []
        for _ in range(self.random.choices([1, 2, 3], [5, 3, 2])[0]):
            if not self.deck:
                self.deck = self.random.sample(kinds, len(kinds))
            chosen.append(self.deck.pop())
        return chosen

    def round(self, left):
        chosen = self.draw()
        running = []
        for k, fault in enumerate(chosen):
            running.append(self.later(self.random.uniform(0, 1) if k else 0.0, fault, left / 2))
        self.rounds += 1
        self.now = f"round {self.rounds} ({' + '.join(f.__name__ for f in chosen)})"
        self.cluster.event("round", nr=self.rounds, faults=[f.__name__ for f in chosen])
        began = time.monotonic()
        while running:
            running = [g for g in running if next(g, self) is not self]
            self.tick()
        took = time.monotonic() - began
        healed, last = self.heal(self.bound)
        self.cluster.memory_taken = False
        print(f"chaos: {self.now}: {took:.1f} s, healed in {healed:.1f} s, {last} last", flush=True)
        for f in chosen:
            self.count[f.__name__] = self.count.get(f.__name__, 0) + 1
            self.heals.setdefault(f.__name__, []).append(healed)

    def trouble(self):
        """All faults of this run."""
        if not self.cluster.small_disk:
            print("chaos: SKIPPED: full_disk: a disk that can be filled takes root (mount)")
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            self.round(until - time.monotonic())

    def later(self, seconds, fault, most):
        yield from faults.wait(seconds)
        yield from fault(self.cluster, self.dice, most)

    # --- the end ---

    def finish(self):
        c = self.cluster
        self.now = "the end"
        for t in c.trainers:  # The model that was at rest goes on where it was.
            if t.model.last:
                t.command = [
                    f"last={t.model.last + 3}" if w.startswith("last=") else w for w in t.command
                ]
                t.start()
        limit = pace.Bound(self.bound)
        while any(t.committed[2] < t.model.last + 3 for t in c.trainers if t.model.last):
            if limit.passed():
                raise Failed("the model that was at rest does not go on")
            self.tick()
        for t in c.trainers:
            t.wanted = False
            t.signal(signal.SIGTERM)
        self.all_end(c.trainers)
        for m in c.models:
            node = self.random.choice(c.daemons).node
            subprocess.run(
                [
                    c.trainer,
                    "read",
                    f"address=unix:{c.dir}/{node}.sock",
                    f"name={m.name}",
                    f"out={c.dir}/final/{m.name}",
                ],
                check=True,
                timeout=pace.seconds(self.bound),
            )
        for m in c.models:
            self.histories(m)
        c.look()
        for d in c.daemons:
            d.wanted = False
            d.signal(signal.SIGTERM)
        self.all_end(c.daemons)

    def histories(self, model):
        """Asks each node what it has written down. It does so only when it is there again."""
        c, node = self.cluster, self.random.choice(self.cluster.daemons).node
        with open(f"{c.dir}/final/{model.name}.history", "w") as f:
            asked = subprocess.run(
                [c.shardctl, "history", model.name, "--node", "all", "--json"]
                + ["--address", f"unix:{c.dir}/{node}.sock", "--timeout", "20"],
                stdout=f,
                stderr=subprocess.PIPE,
                text=True,
                timeout=pace.seconds(self.bound),
            )
        if asked.returncode != 0:
            raise Failed(f"the history of {model.name}: {asked.stderr.strip()}")

    def all_end(self, processes):
        limit = pace.Bound(self.bound)
        for p in processes:
            while p.child is not None and p.child.poll() is None:
                if limit.passed():
                    took = time.monotonic() - limit.began
                    raise Failed(f"{p.name} has not ended {took:.0f} s after SIGTERM")
                time.sleep(TICK_S)
            if p.child is not None and p.child.returncode != 0:
                raise Failed(
                    f"{p.name} ended with {p.child.returncode} after SIGTERM: "
                    f"{self.cluster.last_line(p.out)}"
                )
            p.child = None

    def check(self):
        replay = os.path.join(os.path.dirname(__file__), "replay.py")
        for flip in ["0", "1"] if os.environ.get("FLIP") == "1" else ["0"]:
            rc = subprocess.run(
                [sys.executable, "-B", replay, self.folder, self.cluster.shardctl],
                env={**os.environ, "FLIP": flip}
            ).returncode
            if rc != int(flip):
                raise Failed(
                    "the replay differs"
                    if flip == "0"
                    else "the replay did not see the flipped bit"
                )

    def summary(self):
        for name in sorted(self.count):
            h = sorted(self.heals[name])
            print(
                f"chaos: {name:20} {self.count[name]:4} times, healed in {h[len(h) // 2]:.1f} s, "
                f"at most {h[-1]:.1f} s"
            )
        starts = sum(d.starts for d in self.cluster.daemons), sum(
            t.starts for t in self.cluster.trainers
        )
        print(
            f"chaos: {self.rounds} rounds, {starts[0]} starts of daemons, {starts[1]} of trainers",
            flush=True,
        )

    def tell(self, why):
        """Tells what failed, and everything that helps to find out why."""
        c = self.cluster
        print(f"chaos: FAILED in {self.now}: {why}")
        for t in c.trainers:
            print(f"chaos:   {t.name}: step {t.committed[2]}; {c.last_line(t.log)[:160]}")
        for d in c.daemons:
            child = c.ctl(["status"], d.node, 3)
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
            print(f"chaos:   {d.name}: {c.last_line(d.out)[:200]}")
        print(
            f"chaos: logs: {self.folder}/logs; the last three of shardctl-*.out: what each node "
            "says of the models"
        )
        only = f' FAULTS="{os.environ["FAULTS"]}"' if os.environ.get("FAULTS") else ""
        print(
            f"chaos: again: make chaos CLUSTER={self.kind} SECONDS={self.seconds} "
            f"SEED={self.seed}{only}",
            flush=True,
        )

    def clean(self, keep):
        c = self.cluster
        c.kill_all()
        shutil.rmtree(c.warm, ignore_errors=True)
        if keep and c.small_disk:
            shutil.copytree(c.disk, f"{self.folder}/disk.kept", dirs_exist_ok=True)
        c.unmount()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


class Storm(Run):
    """Faults of an elastic cluster, in two streams."""

    cluster_class = elastic.Elastic

    def start(self):
        self.cluster.start_etcd()
        self.until = time.monotonic() + 3600  # There is no end before everything trains.
        super().start()
        self.until = time.monotonic() + self.seconds
        self.alone = []  # How long the next steps took after a node was isolated, and nothing else.

    def enough(self):
        """In 180 s each kind comes at least twice."""
        return time.monotonic() >= self.until and all(
            len(self.heals.get(name, [])) >= self.seconds // 90 for name in self.kinds
        )

    def began(self, stream):
        stream.beside = []  # What else happened meanwhile.
        for s in self.streams:
            if s is not stream and s.now:
                stream.beside.append(s.now)
                s.beside.append(stream.now)
        stream.began = time.monotonic()
        stream.begin_ns = time.monotonic_ns()
        stream.next = {}
        self.cluster.event("fault", kind=stream.now)

    def look(self):
        """Notes when each model committed a step that was begun after a fault."""
        for s in self.streams:
            for t in self.cluster.trainers:
                if s.now and t.committed[0] >= s.begin_ns and t.model.name not in s.next:
                    s.next[t.model.name] = time.monotonic() - s.began

    def ended(self, stream):
        """A generator: after a loss it waits for all copies, and for all trainers."""
        c, limit, since = self.cluster, pace.Bound(self.bound), time.monotonic_ns()
        why = None
        while stream.faults is self.losses:
            yield from c.status()
            why = c.lacks()
            late = c.healed(since)
            if why is None and not late:
                break
            if limit.passed():
                took = time.monotonic() - limit.began
                raise Failed(f"{took:.0f} s after {stream.now}: {why or 'no step of ' + str(late)}")
            yield from faults.wait(0.05)
        for d in c.daemons:
            d.taken = d.taken and stream.faults is not self.losses
        took = time.monotonic() - stream.began
        step = max(stream.next.values(), default=took)
        if stream.now == "isolate" and not stream.beside:
            self.alone.append(step)
        self.heals.setdefault(stream.now, []).append((step, took))
        if stream.faults is self.losses:
            beside = "".join(f", beside {name}" for name in stream.beside)
            print(
                f"chaos: {stream.now}: next steps after {step:.1f} s, "
                f"whole after {took:.1f} s{beside}",
                flush=True,
            )

    def trouble(self):
        names = os.environ.get("FAULTS", "").split()
        chosen = [
            [f for f in those if not names or f.__name__ in names]
            for those in (storm.LOSSES, storm.OTHERS)
        ]
        if not self.cluster.etcd:
            chosen[1] = [f for f in chosen[1] if f is not storm.lose_etcd]
        self.losses = chosen[0]
        self.kinds = [f.__name__ for those in chosen for f in those]
        self.streams = [
            storm.Stream(self, name, those, mean)
            for name, those, mean in zip(("losses", "others"), chosen, (0.5, 4.0))
            if those
        ]
        running = [s.go() for s in self.streams]
        began = time.monotonic()
        while running:
            self.now = " beside ".join(s.now for s in self.streams if s.now) or "a quiet moment"
            running = [g for g in running if next(g, self) is not self]
            self.tick()
            self.look()
        self.took = time.monotonic() - began

    def finish(self):
        super().finish()
        for m in self.cluster.models:
            steps = max(t.committed[2] for t in self.cluster.trainers if t.model is m)
            if steps < self.seconds * 100 // 180:
                raise Failed(f"{m.name} committed {steps} steps only")

    def summary(self):
        for name in sorted(self.heals):
            step, whole = (sorted(x) for x in zip(*self.heals[name]))
            half = len(step) // 2
            print(
                f"chaos: {name:20} {len(step):4} times; "
                f"next steps after {step[half]:.1f} s, at most "
                f"{step[-1]:.1f} s; whole after {whole[half]:.1f} s, at most {whole[-1]:.1f} s"
            )
        nr = sum(len(h) for h in self.heals.values())
        print(f"chaos: {nr} faults, one each {self.took / max(1, nr):.1f} s", flush=True)
        if self.alone:
            ms = sorted(self.alone)[len(self.alone) // 2] * 1e3
            limit = elastic.HEARTBEAT_S * 1000 + 1000
            name = f"recovery_partition_{self.kind}"
            print(f"bench: {name} {ms:.0f} ms limit {limit} ratio {ms / limit:.3f}", flush=True)


def main():
    seconds, kind = int(sys.argv[2]), (sys.argv[4:] or ["static"])[0]
    if kind not in ("static", "quorum", "etcd"):
        sys.exit(f"chaos: CLUSTER={kind}: there are static, quorum and etcd")
    if kind != "static":
        elastic.enter()
    seed = int(sys.argv[3] or time.time_ns() // 1000 % 100000)
    print(f"chaos: CLUSTER={kind} SEED={seed} SECONDS={seconds}", flush=True)
    run = (Run if kind == "static" else Storm)(sys.argv[1], seconds, seed, kind)
    failed = True
    atexit.register(lambda: run.clean(failed or os.environ.get("KEEP") == "1"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run.start()
        run.trouble()
        run.finish()
        run.check()
        run.summary()
        failed = False
    except (Failed, RuntimeError, subprocess.SubprocessError) as e:
        run.tell(str(e))
    except Exception:
        run.tell(traceback.format_exc())
    print("chaos: FAILED" if failed else "chaos: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
