# SPDX-License-Identifier: Apache-2.0
"""The faults of `make chaos`. Each is a generator that chaos.py runs beside others. It breaks
something, yields while time passes, and ends when it has put everything back as an operator or a
service manager would. From then on the cluster has to heal."""

import os
import random
import shutil
import signal
import time

import pace


class Dice:
    """Random numbers of one fault. Durations come from a sequence that is spread evenly, so that
    short runs have long durations, too."""

    def __init__(self, seed):
        self.random, self.spread = random.Random(seed), {}

    def seconds(self, kind, low, high):
        u = self.spread.setdefault(kind, self.random.random())
        self.spread[kind] = (u + 0.6180339887) % 1
        return low * (high / low) ** u


def wait(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


def _until(process):
    while process.poll() is None:
        yield


def kill(processes, seconds):
    for p in processes:
        p.kill()
    yield from wait(seconds)
    for p in processes:
        p.start()


def pause(processes, seconds):
    for p in processes:
        p.pause()
    try:
        yield from wait(seconds)
    finally:
        for p in processes:
            p.resume()


def kill_daemon(c, dice, most):
    yield from kill([dice.random.choice(c.daemons)], dice.seconds("kill_daemon", 0.01, 3))


def kill_all_daemons(c, dice, most):
    yield from kill(c.daemons, dice.seconds("kill_all_daemons", 0.01, 2))


def pause_daemon(c, dice, most):
    yield from pause(
        [dice.random.choice(c.daemons)], min(most, dice.seconds("pause_daemon", 0.1, 35))
    )


def pause_all_daemons(c, dice, most):
    yield from pause(list(c.daemons), min(most, dice.seconds("pause_all_daemons", 0.1, 35)))


def trainers(c):
    return [t for t in c.trainers if not t.model.last]


def kill_trainer(c, dice, most):
    yield from kill([dice.random.choice(trainers(c))], dice.seconds("kill_trainer", 0.01, 1))


def kill_all_trainers(c, dice, most):
    yield from kill(trainers(c), dice.seconds("kill_all_trainers", 0.01, 1))


def pause_trainer(c, dice, most):
    yield from pause(
        [dice.random.choice(trainers(c))], min(most, dice.seconds("pause_trainer", 0.1, 35))
    )


def pause_all_trainers(c, dice, most):
    yield from pause(trainers(c), min(most, dice.seconds("pause_all_trainers", 0.1, 35)))


def cut_links(c, dice, most):
    """Cuts some of the connections, a few times in a row. Sometimes new ones are refused for a
    while."""
    for _ in range(dice.random.randint(1, 4)):
        c.proxy.tell("cut", dice.random.choice([0.3, 1.0]), dice.random.random())
        if dice.random.random() < 0.3:
            c.proxy.tell("refuse", 1.0, 0, dice.seconds("refuse", 0.05, 3))
        yield from wait(dice.seconds("cut", 0.02, 1))


def hold_links(c, dice, most):
    """Holds connections, which then stand and say nothing, like behind a switch that drops packets.
    """
    seconds = min(most, dice.seconds("hold", 0.1, 15))
    c.proxy.tell("hold", dice.random.choice([0.3, 1.0]), dice.random.random(), seconds)
    yield from wait(seconds)


def stop_daemon(c, dice, most):
    """Sends SIGTERM. The daemon must end by itself with status 0. A process that has just begun has
    no handler yet."""
    d = dice.random.choice(c.daemons)
    child = d.child
    if child is None or d.stopped:
        return
    young = time.monotonic() - d.started < pace.seconds(5)
    d.wanted = False
    d.signal(signal.SIGTERM)
    yield from _until(child)
    if d.child is child:
        if child.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM if young else 0):
            raise RuntimeError(f"{d.name} ended with {child.returncode} at SIGTERM")
        d.child = None
    yield from wait(dice.seconds("stop_daemon", 0.01, 2))
    d.start()


NOT_BEGUN = ["SHARD_NOT_FOUND", "no shardd at", " is down: "]


def _command(c, dice, words, event, seconds=60, **more):
    """Gives an operator's command again until it succeeds. Each try may have had its effect, unless
    its answer says that it was not begun, because an answer can be lost with a link."""
    limit = pace.Bound(seconds)
    while True:
        child = c.ctl(words, dice.random.choice(c.daemons).node, 20)
        yield from _until(child)
        said = c.last_line(child.out)
        if not any(words in said for words in NOT_BEGUN):
            c.event(event, **more)
        if child.returncode != 0:
            c.event("failed", **more)  # A model whose restore failed may come back by itself.
        if child.returncode == 0:
            return
        if limit.passed():
            took = time.monotonic() - limit.began
            raise RuntimeError(f"shardctl {words[0]} has not succeeded within {took:.0f} s: {said}")
        yield from wait(0.2)


def _together(c, *running):
    while running:
        running = [g for g in running if next(g, c) is not c]
        yield


def restore(c, dice, most):
    models = [m.name for m in c.models if m.checkpointed and c.newest(m.name)]
    if not models:
        return
    name = dice.random.choice(models)
    archive = c.newest(name)
    tag, folder = c.tag_of(archive), f"{c.checkpoints}/.restore-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shutil.copytree(archive, f"{folder}/{tag}")
    except OSError:
        return  # The disk is full.
    words = ["restore", folder, "--tag", tag, "--name", name, "--force"]
    yield from _command(c, dice, words, "restored", model=name, archive=archive)


def restore_and_cut(c, dice, most):
    """Cuts links while a restore is under way, in which one node is the last to load."""
    held = dice.seconds("restore_and_cut", 0.05, 3)
    yield from _together(
        c,
        pause([dice.random.choice(c.daemons)], held),
        restore(c, dice, most),
        cut_links(c, dice, most),
    )


def drop(c, dice, most):
    name = dice.random.choice([m.name for m in c.models if not m.last])
    yield from _command(c, dice, ["model", "drop", name, "--force"], "dropped", model=name)


def drop_and_cut(c, dice, most):
    """Cuts links while a drop is under way. It may be done although its answer is lost."""
    yield from _together(c, drop(c, dice, most), cut_links(c, dice, most))


def full_disk(c, dice, most):
    """Fills the disk of state and checkpoints. A daemon that cannot start then is started again
    until it can."""
    for d in c.daemons:
        d.disk_full = True
    ballast = f"{c.disk}/ballast{dice.random.random()}"
    try:
        with open(ballast, "wb", buffering=0) as f:
            while f.write(b"\0" * 65536) == 65536:
                pass
    except OSError:
        pass
    try:
        yield from wait(dice.seconds("full_disk", 0.3, 6))
    finally:
        os.unlink(ballast)
    yield from wait(pace.seconds(0.3))  # For a daemon that is ending because of it.
    for d in c.daemons:
        d.disk_full = False


def lose_memory(c, dice, most):
    """Takes the memory of one node, like a power failure. Models with a checkpoint come back from
    the newest one. The others are lost, and the operator drops them, so trainers write them again.
    """
    d = dice.random.choice(c.daemons)
    c.memory_taken = True
    c.event("memory_taken", node=d.node)
    d.kill()
    shutil.rmtree(d.warm)
    os.mkdir(d.warm)
    yield from wait(dice.seconds("lose_memory", 0.01, 2))
    d.start()
    quiet = pace.Bound(3)  # For so long no more models were lost.
    while not quiet.passed():
        for name in sorted(c.lost):
            c.lost.discard(name)
            yield from _command(c, dice, ["model", "drop", name, "--force"], "dropped", model=name)
            for t in c.trainers:
                if t.model.name == name:
                    t.start()  # Also trainers that had left.
            quiet = pace.Bound(3)
        yield


FAULTS = [
    kill_daemon,
    pause_daemon,
    kill_trainer,
    cut_links,
    restore,
    stop_daemon,
    kill_all_daemons,
    pause_trainer,
    drop,
    full_disk,
    hold_links,
    kill_all_trainers,
    pause_all_daemons,
    pause_all_trainers,
    restore_and_cut,
    drop_and_cut,
    lose_memory,
]
