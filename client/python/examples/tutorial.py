# SPDX-License-Identifier: Apache-2.0
"""A tutorial to read and to run: define, train, kill a rank, look, save, resume elsewhere.

    $ python tutorial.py

It needs nothing but this machine. Read it from trainer() on: that is what you would write. main()
plays the one who starts trainers, kills them and looks, and prints what each section shows.
"""

import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import subprocess
import tempfile
import time

import torch
from torch import nn

import shardd


class Spirals(torch.utils.data.Dataset):
    """Points on two spirals, and on which they are. Sample i is a function of i."""

    def __len__(self):
        return 20000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        kind, r = i % 2, 0.2 + 3 * torch.rand((), generator=g)
        at = 2 * r + torch.pi * kind
        return torch.stack([r * at.cos(), r * at.sin()]) + 0.05 * torch.randn(2, generator=g), kind


# --- what you would write ---


def trainer(boss, address, folder):
    """One rank. boss is a pipe to main(), which says whether to go on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                          nn.Linear(64, 2))

    # Section 1. This line defines the model in the daemon. Whoever comes first writes its initial
    # weights, and the others attach to it. From here on fp32 weights and moments are in the daemon.
    # world=(1, 4): between one and four trainers may come and go. checkpoint_dir: if the daemon
    # does not know the model, it begins with the newest checkpoint there.
    opt = shardd.AdamW(model, lr=3e-3, clip=1.0, name="tutorial", address=address, world=(1, 4),
                       checkpoint_dir=folder)
    boss.send({"defined": opt.global_step, "sum": weights(opt, model)})

    # Section 2. steps() joins the world, and gives this rank its part of the 96 samples of a step.
    # A step that a trainer's death interrupts begins again, with the same samples for those left.
    for step, batches in shardd.steps(opt, Spirals(), 96, last=100000, shuffle=True,
                                      micro_batch=32):
        boss.send({"step": step, "rank": opt.rank, "size": opt.world_size})
        if boss.recv() == "stop":
            break
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        opt.step()
        boss.send({"loss": loss.item()})

    # Section 5. The daemons write the checkpoint, into folder "tutorial" of checkpoint_dir. That
    # is where a new model of this name looks.
    boss.send({"sum": weights(opt, model)})
    if boss.recv() == "save":
        opt.save()
    opt.close(drop=False)


def weights(opt, model):
    """The sum of all fp32 weights, as the daemon has them: equal sums are as good as equal bits."""
    return sum(opt.read(k).double().sum().item() for k, _ in model.named_parameters())


# --- who starts, kills and looks ---


class Crew:
    """Trainers as processes, and what they last said."""

    def __init__(self, address, folder):
        self.address, self.folder, self.pipes, self.processes = address, folder, [], []
        self.found = []   # What each saw when it came.
        self.size = None  # Of the world, as the last one said it.

    def start(self, n):
        """Starts n more."""
        for _ in range(n):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(
                target=trainer, args=(theirs, self.address, self.folder), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def kill(self, pipe):
        """kill -9."""
        i = self.pipes.index(pipe)
        os.kill(self.processes[i].pid, signal.SIGKILL)
        self.processes[i].join()
        del self.pipes[i], self.processes[i]
        pipe.close()

    def hear(self):
        """The next message, of whichever trainer: (its pipe, the message)."""
        ready = multiprocessing.connection.wait(self.pipes, timeout=300)
        if not ready:
            raise SystemExit("tutorial: no trainer has said anything for 300 s")
        try:
            return ready[0], ready[0].recv()
        except EOFError:
            raise SystemExit("tutorial: a trainer ended early; what it printed says why") from None

    def until(self, done):
        """Lets all train until done(message) of one that is about to compute a step. Returns its
        pipe and the message; it waits for "go"."""
        loss = None
        while True:
            pipe, m = self.hear()
            loss = m.get("loss", loss)
            after = "" if loss is None else f"; the last loss was {loss:.4f}"
            if "defined" in m:
                self.found.append(m)
                print(f"  a trainer is there: the model is at step {m['defined']}, and its weights "
                      f"sum to {m['sum']:.9f}", flush=True)
            if "step" not in m:
                continue
            if m["size"] != self.size:
                self.size = m["size"]
                print(f"  step {m['step']}: a world of {self.size}{after}", flush=True)
            if done(m):
                print(f"  step {m['step']} is next{after}", flush=True)
                return pipe, m
            pipe.send("go")

    def halt(self, first, step):
        """All of them stop before a step, which one waits at already. Returns their pipes.

        Nobody is further, because a step ends for all at the same time."""
        waiting = {first}
        while len(waiting) < len(self.pipes):
            pipe, m = self.hear()
            if m.get("step", 0) >= step:
                waiting.add(pipe)
            elif "step" in m:
                pipe.send("go")
        return waiting

    def end(self, waiting, save=False):
        """All of them end. One of them saves if asked to. Returns the sum of weights of each."""
        sums = []
        for pipe in waiting:
            pipe.send("stop")
        while len(sums) < len(waiting):
            _, m = self.hear()
            sums += [m["sum"]] if "sum" in m else []
        for i, pipe in enumerate(self.pipes):
            pipe.send("save" if save and i == 0 else "end")
        for process in self.processes:
            process.join()
            if process.exitcode:
                raise SystemExit(f"tutorial: a trainer ended with {process.exitcode}")
        self.pipes, self.processes = [], []
        return sums


def shardctl(*words):
    """Runs shardctl and prints what it prints."""
    beside = os.path.join(os.path.dirname(os.environ.get("SHARD_DAEMON", "")), "shardctl")
    program = shutil.which("shardctl") or (beside if os.access(beside, os.X_OK) else None)
    if program is None:
        print("  (shardctl is not in PATH: it is in the package shardd)", flush=True)
        return
    print(f"  $ shardctl {' '.join(words)}", flush=True)
    done = subprocess.run([program, *words], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    print("".join(f"  {line}\n" for line in done.stdout.splitlines()), end="", flush=True)


def section(n, title):
    """A heading."""
    print(f"\n{n}. {title}\n", flush=True)


def main():
    """The tutorial."""
    began = time.monotonic()
    os.environ["SHARD_LINGER"] = "30s"  # So long a private daemon waits for trainers to come back.
    torch.set_num_threads(1)
    torch.optim.SGD(nn.Linear(1, 1).parameters())  # Loads what forked trainers would load each.
    folder = tempfile.mkdtemp(prefix="shardd-tutorial-")
    address = f"spawn:tutorial-{os.getpid()}"
    crew = Crew(address, folder)

    section(1, f"Define: three trainers connect to {address}, which starts a daemon")
    crew.start(3)

    section(2, "Train: they join one after the other, until the world is three")
    pipe, m = crew.until(lambda m: m["size"] == 3)
    pipe.send("go")
    last = m["step"] + 100
    victim, m = crew.until(lambda m: m["step"] > last)

    section(3, f"kill -9 of rank {m['rank']}, before it has computed step {m['step']}")
    crew.kill(victim)
    pipe, m = crew.until(lambda m: m["size"] == 2)
    print("  The step began again for those who are left. It had not been committed, so nothing is "
          "lost.")
    pipe.send("go")
    last = m["step"] + 100
    pipe, m = crew.until(lambda m: m["step"] > last)

    section(4, "Look: trainers wait, and a shell asks the daemon")
    waiting = crew.halt(pipe, m["step"])
    shardctl("--address", address, "status")
    shardctl("--address", address, "model", "list")

    section(5, "Save: one trainer asks, the daemon writes. Then all end")
    sums = crew.end(waiting, save=True)
    print(f"  weights sum to {sums[0]:.9f}", flush=True)
    shardctl("checkpoints", os.path.join(folder, "tutorial"))

    section(6, "Resume: another daemon, four trainers, the same line in trainer()")
    crew = Crew(address + "-other", folder)
    crew.start(4)
    pipe, m = crew.until(lambda m: m["size"] == 4)
    same = crew.found[0]["sum"] == sums[0]
    print(f"  The first one found the weights that were saved: {'yes' if same else 'NO'}")
    pipe.send("go")
    last = m["step"] + 100
    pipe, m = crew.until(lambda m: m["step"] > last)
    ends = set(crew.end(crew.halt(pipe, m["step"])))
    print(f"  All four end with equal weights: {'yes' if len(ends) == 1 else 'NO'}")
    shutil.rmtree(folder)
    print(f"\nThe end, after {time.monotonic() - began:.0f} s. The private daemons end by "
          "themselves.", flush=True)


if __name__ == "__main__":
    main()
