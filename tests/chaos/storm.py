# SPDX-License-Identifier: Apache-2.0
"""The faults of an elastic cluster. As in faults.py each is a generator that ends when it has put
everything back.

A fault of LOSSES may cost the cluster one node's copies, because the node dies or because the
others expel it. With two copies of each chunk that is all that may be lost at a time, so the next
one waits until every node says that all copies are there again. Faults of OTHERS cost no copy, and
come beside them at any time."""

import os

import pace
from cluster import Failed
from faults import Dice, kill, pause, trainers, wait


def _any(c, dice):
    return dice.random.choice(c.daemons)


def _leader(c):
    yield from c.status()
    leader = c.coordinator()
    if leader is None:
        raise Failed("nobody names a coordinator of a whole cluster")
    return leader


def _lose(c, dice, daemon, kind, how):
    """Kills a daemon and starts it again: with its memory, without it, or as a new machine."""
    daemon.kill()
    if how:
        c.forget(daemon, how == "new")
    yield from wait(dice.seconds(kind, 0.01, 4))
    daemon.start()


def kill_node(c, dice, most):
    yield from _lose(c, dice, _any(c, dice), "kill_node", None)


def kill_node_cold(c, dice, most):
    yield from _lose(c, dice, _any(c, dice), "kill_node_cold", "cold")


def kill_coordinator(c, dice, most):
    leader = yield from _leader(c)
    yield from _lose(c, dice, leader, "kill_coordinator", dice.random.choice([None, "cold"]))


def replace_node(c, dice, most):
    """Kills a daemon for good. Another machine takes its name and its address."""
    yield from _lose(c, dice, _any(c, dice), "replace_node", "new")


def pause_node(c, dice, most):
    yield from pause([_any(c, dice)], dice.seconds("pause_node", 0.1, 8))


def pause_coordinator(c, dice, most):
    leader = yield from _leader(c)
    yield from pause([leader], dice.seconds("pause_coordinator", 0.1, 8))


def _cut(c, pairs, seconds):
    for pair in pairs:
        c.cut(*pair)
    yield from wait(seconds)
    for pair in pairs:
        c.cut(*pair, False)


def _others(c, dice, node):
    """All other nodes, or one."""
    others = c.nodes.replace(node, "")
    return others if dice.random.random() < 0.7 else dice.random.choice(others)


def cut_one_way(c, dice, most):
    """What one node sends is lost, or what is sent to it."""
    node = dice.random.choice(c.nodes)
    pairs = [(node, other) for other in _others(c, dice, node)]
    if dice.random.random() < 0.5:
        pairs = [(b, a) for a, b in pairs]
    yield from _cut(c, pairs, dice.seconds("cut_one_way", 0.1, 8))


def cut_two_ways(c, dice, most):
    """One node and all others, or one other, do not hear each other."""
    node = dice.random.choice(c.nodes)
    pairs = [(node, other) for other in _others(c, dice, node)]
    pairs += [(b, a) for a, b in pairs]
    yield from _cut(c, pairs, dice.seconds("cut_two_ways", 0.1, 8))


def isolate(c, dice, most):
    """One node hears nobody, etcd neither, for so long that the others go on without it."""
    node = dice.random.choice(c.nodes)
    pairs = [(node, other) for other in c.nodes.replace(node, "")]
    c.cut_etcd(node)
    yield from _cut(c, pairs + [(b, a) for a, b in pairs], dice.seconds("isolate", 6, 9))
    c.cut_etcd(node, False)


def slow_link(c, dice, most):
    node = dice.random.choice(c.nodes)
    c.slow(node)
    yield from wait(dice.seconds("slow_link", 0.5, 8))
    c.slow(node, False)


def kill_trainer(c, dice, most):
    yield from kill([dice.random.choice(trainers(c))], dice.seconds("kill_trainer", 0.01, 1))


def pause_trainer(c, dice, most):
    yield from pause([dice.random.choice(trainers(c))], dice.seconds("pause_trainer", 0.1, 8))


def lose_etcd(c, dice, most):
    """Kills a member of etcd. Two of three are left."""
    yield from kill([dice.random.choice(c.etcd)], dice.seconds("lose_etcd", 0.1, 6))


def full_disk(c, dice, most):
    """Fills the disk on which one node keeps its state. A daemon that cannot start because of it is
    started again until it can."""
    d = _any(c, dice)
    d.disk_full = True
    ballast = f"{c.disk}/state-{d.node}/ballast"
    try:
        with open(ballast, "wb", buffering=0) as f:
            while f.write(b"\0" * 4096) == 4096:
                pass
    except OSError:
        pass
    yield from wait(dice.seconds("full_disk", 0.3, 6))
    if os.path.exists(ballast):  # Otherwise the node was replaced meanwhile.
        os.unlink(ballast)
    yield from wait(0.3)  # For a daemon that is ending because of it.
    d.disk_full = False


def _order(c, dice, words):
    """Gives an operator's command until it is taken. To give it twice does nothing more."""
    limit = pace.Bound(60)
    while True:
        child = c.ctl(words, dice.random.choice(c.nodes), 5)
        while child.poll() is None:
            yield
        if child.returncode == 0:
            return
        if limit.passed():
            raise Failed(f"shardctl {' '.join(words)} is not taken: {c.last_line(child.out)}")
        yield from wait(0.2)


def drain_node(c, dice, most):
    """Drains one node, and gives it chunks again, perhaps before it has none."""
    node = dice.random.choice(c.nodes)
    yield from _order(c, dice, ["drain", node, "--no-wait"])
    yield from wait(dice.seconds("drain_node", 0.2, 6))
    yield from _order(c, dice, ["drain", node, "--undo", "--no-wait"])


def add_node(c, dice, most):
    """A new node joins, and waits until it has its chunks, as long as there are new ones."""
    node = dice.random.choice(c.nodes)
    limit = pace.Bound(60)
    added = c.add(node)
    while added:
        child = c.ctl(["members", "--json"], c.nodes[-1], 5)
        while child.poll() is None:
            yield
        if child.returncode == 0:
            return
        if limit.passed():
            raise Failed(f"{c.daemons[-1].name} does not join: {c.last_line(c.daemons[-1].out)}")
        yield from wait(0.2)


LOSSES = [
    kill_node,
    cut_one_way,
    kill_coordinator,
    pause_node,
    replace_node,
    cut_two_ways,
    isolate,
    kill_node_cold,
    slow_link,
    pause_coordinator,
]
OTHERS = [kill_trainer, full_disk, drain_node, add_node, lose_etcd, pause_trainer]


class Stream:
    """One fault after another. Which ones, and how long they take, depends on the seed alone."""

    def __init__(self, run, name, faults, mean_s):
        self.run, self.faults, self.mean_s = run, faults, mean_s
        self.dice = Dice(f"{run.seed} {name}")
        self.name, self.deck, self.now, self.beside = name, [], None, []

    def draw(self):
        """Each fault comes once before any comes again."""
        if not self.deck:
            self.deck = self.dice.random.sample(self.faults, len(self.faults))
        return self.deck.pop()

    def go(self):
        """A generator: all faults of this stream, until the run says that it is enough."""
        while not self.run.enough():
            yield from wait(self.dice.random.expovariate(1 / self.mean_s))
            fault = self.draw()
            self.now = fault.__name__
            self.run.began(self)
            yield from fault(self.run.cluster, self.dice, 0)
            yield from self.run.ended(self)
            self.now = None
