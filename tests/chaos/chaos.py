# SPDX-License-Identifier: Apache-2.0
"""`make chaos SECONDS=n SEED=k`: runs real daemons and trainers, and everything that can happen to
them.

Three daemons on loopback serve the models of models.py. Trainers that connect again train them and
save every few steps. Rounds of one to three faults (faults.py) are drawn from the seed. After each
round every model must commit a step with all its trainers within a bound, which is a multiple of
what this machine needs to start everything. No daemon may lose weights or begin without its memory.
At the end masters and moments are read, and replay.py, which knows only the documents, computes all
of it again from the trainers' logs. Exits with 0 if nothing was wrong. Otherwise it says what was
wrong, where the logs are and how to repeat the run.

    chaos.py BUILD SECONDS SEED

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

import faults
import pace
from cluster import Cluster, Failed
from models import MODELS

TICK_S = 0.02
HEAL_STARTS, HEAL_MIN_S = (
    15,
    20,
)  # The bound: so many times what the first start took, but not less than this.


class Run:
    def __init__(self, build, seconds, seed):
        self.seconds, self.seed = seconds, seed
        self.dice, self.random = faults.Dice(seed), random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="shard-chaos-", dir="/tmp")
        self.cluster = Cluster(build, self.folder)
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
            f"chaos: everything trains after {start:.1f} s: a fault must heal within {self.bound:.0f} s",
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
        for m in MODELS:
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
        c.look()
        for d in c.daemons:
            d.wanted = False
            d.signal(signal.SIGTERM)
        self.all_end(c.daemons)

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
                    f"{p.name} ended with {p.child.returncode} after SIGTERM: {self.cluster.last_line(p.out)}"
                )
            p.child = None

    def check(self):
        replay = os.path.join(os.path.dirname(__file__), "replay.py")
        for flip in ["0", "1"] if os.environ.get("FLIP") == "1" else ["0"]:
            rc = subprocess.run(
                [sys.executable, "-B", replay, self.folder], env={**os.environ, "FLIP": flip}
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
                f"chaos: {name:20} {self.count[name]:4} times, healed in {h[len(h) // 2]:.1f} s, at most {h[-1]:.1f} s"
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
            f"chaos: logs: {self.folder}/logs; the last three of shardctl-*.out: what each node says of the models"
        )
        only = f' FAULTS="{os.environ["FAULTS"]}"' if os.environ.get("FAULTS") else ""
        print(f"chaos: again: make chaos SECONDS={self.seconds} SEED={self.seed}{only}", flush=True)

    def clean(self, keep):
        c = self.cluster
        c.kill_all()
        shutil.rmtree(c.warm, ignore_errors=True)
        if keep and c.small_disk:
            shutil.copytree(c.disk, f"{self.folder}/disk.kept", dirs_exist_ok=True)
        c.unmount()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    seconds = int(sys.argv[2])
    seed = int(sys.argv[3] or time.time_ns() // 1000 % 100000)
    print(f"chaos: SEED={seed} SECONDS={seconds}", flush=True)
    run = Run(sys.argv[1], seconds, seed)
    failed = True
    atexit.register(lambda: run.clean(failed or os.environ.get("KEEP") == "1"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not run.cluster.small_disk:
        print("chaos: SKIPPED: full_disk: a disk that can be filled takes root (mount)")
    try:
        run.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            run.round(until - time.monotonic())
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
