# SPDX-License-Identifier: Apache-2.0
"""Which samples a step has, over random histories of worlds. No daemon is needed."""

import collections
import random

import pytest
import torch

import shardd
from shardd.loop import Plan, Sampler, _Kept
from shardd.session import share


class World:
    """What a Sampler looks at of an Optimizer."""

    def __init__(self, accumulate=1):
        self.rank, self.world_size, self.global_step, self.accumulate = 0, 1, 0, accumulate
        self._calls, self._share, self._gain = 0, None, 1.0

    def _ready(self):
        pass


def a_plan(chance):
    length = chance.randint(1, 40)
    tail = chance.choice(["wrap", "short", "drop"])
    batch = chance.randint(1, length if tail == "drop" else 50)
    return Plan(length, batch, chance.random() < 0.8, chance.randint(0, 9), tail)


def counted(plan, steps, size_of, wrong=None):
    """How often each (epoch, sample) was in a step. A world cuts each global batch."""
    seen = collections.Counter()
    for step in range(1, steps + 1):
        size, found = size_of(step), []
        for rank in range(size):
            found += plan.indices(step, rank, size if wrong is None else wrong(step, size))
        assert wrong or len(found) == plan.total(step)
        epoch, offset = plan.cursor(step)
        for k, i in enumerate(found):
            seen[epoch + (offset + k) // plan.length, i] += 1
    return seen


def complete(plan, steps, seen):
    """Each sample of an epoch that is over was in exactly one step; no other was in two."""
    end, _ = plan.cursor(steps + 1)
    left_out = plan.length % plan.batch if plan.tail == "drop" else 0
    per_epoch = collections.Counter(epoch for epoch, _ in seen)
    return set(seen.values()) <= {1} and all(per_epoch[e] == plan.length - left_out
                                             for e in range(end))


def test_nothing_lost_or_twice():
    """2000 histories: every epoch is whole, whatever worlds its steps were in."""
    chance = random.Random(1)
    for _ in range(2000):
        plan, steps = a_plan(chance), chance.randint(1, 25)
        worlds = [chance.randint(1, 6) for _ in range(steps)]
        seen = counted(plan, steps, lambda step: worlds[step - 1])
        assert complete(plan, steps, seen), (plan, worlds)


def test_a_sampler_of_two_worlds_is_found():
    """The checker can fail: ranks that cut one batch for two different worlds."""
    chance, found = random.Random(2), 0
    for _ in range(300):
        plan, steps = a_plan(chance)._replace(batch=6, length=30, tail="short"), 10
        at = chance.randint(1, steps)
        seen = counted(plan, steps, lambda step: 3,
                       lambda step, size: 4 if step == at else size)
        found += not complete(plan, steps, seen)
    assert found == 300


def test_order_is_of_seed_and_epoch():
    """Another order in each epoch; the same one in every world; none without shuffle."""
    plan = Plan(20, 4, True, 7, "short")
    epochs = [sum((plan.indices(s, 0, 1) for s in range(1 + 5 * e, 6 + 5 * e)), [])
              for e in range(3)]
    assert all(sorted(e) == list(range(20)) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 3
    assert Plan(20, 4, True, 8, "short").indices(1, 0, 1) != plan.indices(1, 0, 1)
    assert plan._replace(shuffle=False).indices(6, 0, 1) == [0, 1, 2, 3]
    assert Plan(None, 4, False, 0, "wrap").indices(3, 1, 2) == [10, 11]


def test_cursor_goes_on_from_anywhere():
    """A plan that begins at the cursor of some step has the same samples from there on."""
    chance = random.Random(3)
    for _ in range(500):
        plan, step = a_plan(chance), chance.randint(1, 30)
        epoch, offset = plan.cursor(step)
        if offset == plan.length:
            epoch, offset = epoch + 1, 0
        later = plan._replace(step=step, epoch=epoch, offset=offset)
        for s in range(step, step + 10):
            assert later.indices(s, 0, 1) == plan.indices(s, 0, 1), (plan, step)


def test_sampler_in_a_loop_that_changes():
    """1000 plain loops: worlds change and steps are skipped between two draws."""
    chance = random.Random(4)
    for _ in range(1000):
        length, batch = chance.randint(12, 30), chance.randint(8, 12)
        accumulate = chance.choice([1, 2]) if length % batch != 1 else 1
        ranks = [World(accumulate) for _ in range(4)]
        samplers = [Sampler(length, w, batch, seed=chance.randint(0, 5),
                            drop_last=length >= batch and chance.random() < 0.3) for w in ranks[:1]]
        samplers += [Sampler(length, w, batch, seed=samplers[0].plan.seed,
                             drop_last=samplers[0].plan.tail == "drop") for w in ranks[1:]]
        epochs = [iter(()) for _ in ranks]
        seen, size = collections.Counter(), 2
        steps = chance.randint(3, 12)
        while ranks[0].global_step < steps:
            step = ranks[0].global_step + 1
            epoch, weight, drawn = samplers[0].epoch, 0.0, []
            total = samplers[0].plan.total(step)
            most = max(1, total // accumulate)
            if chance.random() < 0.3:
                size = chance.randint(1, min(4, most))
            size = min(size, most)
            for rank, (w, s) in enumerate(zip(ranks[:size], samplers)):
                w.rank, w.world_size = rank, size
                for _ in range(accumulate):
                    part = next(epochs[rank], None)
                    if part is None:  # The next epoch, or one that was left in another world.
                        epochs[rank] = iter(s)
                        part = next(epochs[rank])
                    weight += w._gain / accumulate / size
                    drawn += part
                    assert w._share == (step, rank, size)
            committed = chance.random() < 0.8
            for w in ranks:
                w._calls += 1
                w.global_step += committed
            assert abs(weight - 1) < 1e-9
            if committed:
                seen.update((epoch, i) for i in drawn)
        assert complete(samplers[0].plan, steps, seen)


def test_state():
    """A state goes on where it was taken, also with another global batch."""
    w = World()
    s = Sampler(30, w, 8, seed=1)
    w.global_step = 5                      # Four batches are an epoch.
    state = s.state_dict()
    assert (state["epoch"], state["offset"]) == (1, 8)
    other = Sampler(30, w, 11, seed=1)
    other.load_state_dict(state)
    rest = other.plan.indices(6, 0, 1) + other.plan.indices(7, 0, 1)
    assert sorted(rest + s.plan.indices(5, 0, 1)) == list(range(30))
    assert other.plan.cursor(8) == (2, 0)


def test_indices_that_are_drawn_ahead_are_refused():
    """A DataLoader with workers draws before the step, in a loop that is not shardd.steps()."""
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, i):
            return i

    w = World()
    loader = torch.utils.data.DataLoader(Data(), batch_sampler=Sampler(32, w, 8), num_workers=1)
    with pytest.raises(RuntimeError, match="give the loader to shardd.steps"):
        next(iter(loader))
    at_once = torch.utils.data.DataLoader(Data(), batch_sampler=Sampler(32, w, 8))
    seen = []
    for batch in at_once:
        seen += batch.tolist()
        w._calls, w.global_step = w._calls + 1, w.global_step + 1
    assert sorted(seen) == list(range(32)) and len(at_once) == 4


def test_sampler_refuses():
    w = World()
    for arguments, words in (({"global_batch": 0}, "at least 1"),
                             ({"global_batch": 9, "drop_last": True}, "no batch at all"),
                             ({"global_batch": 2, "micro_batch": 0}, "at least 1")):
        with pytest.raises(ValueError, match=words):
            Sampler(4, w, **arguments)
    w.world_size, w.rank = 5, 4
    with pytest.raises(RuntimeError, match="rank 4 of 5 has 0 of the 4 samples"):
        next(iter(Sampler(4, w, 4)))


def test_share_is_that_of_shard_h():
    for batch in range(1, 30):
        for size in range(1, 9):
            found = [share(batch, rank, size) for rank in range(size)]
            q, r = divmod(batch, size)
            assert found == [range(k * q + min(k, r), (k + 1) * q + min(k + 1, r))
                             for k in range(size)]


def test_a_blob_is_checked():
    """What is read back is what was kept, and no other bytes are taken for it."""
    kept = _Kept(7, 1, (8, 2, 5), {"torch": b"\n\0x", "user": b""})
    data = kept.write()
    assert _Kept.read(data) == kept
    chance = random.Random(5)
    for _ in range(3000):
        wrong = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        again = _Kept.read(bytes(wrong[:chance.randint(0, len(wrong))]))
        assert again is None or all(type(v) is bytes for v in again.parts.values())
    assert _Kept.read(data + b"x") is None and _Kept.read(data[:-1]) is None
    assert _Kept.read(b"") is None and _Kept.read(b"of somebody else") is None
    with pytest.raises(ValueError, match="user 70000"):
        kept._replace(parts={"user": bytes(70000)}).write()


def test_steps_refuses():
    """Arguments that cannot be what they are, before anything is asked of a daemon."""
    w = World()
    w._keep = False
    for error, words, call in (
            (TypeError, "last= is needed", lambda: shardd.steps(w, [1], 1)),
            (TypeError, "global_batch= is needed", lambda: shardd.steps(w, [1], last=3)),
            (TypeError, "no __getitem__", lambda: shardd.steps(w, iter([1]), 1, 3)),
            (ValueError, "data set is empty", lambda: shardd.steps(w, [], 1, 3)),
            (ValueError, "can be \"mean\"", lambda: shardd.steps(w, [1], 1, 3, reduction="max")),
            (TypeError, "no state_dict", lambda: shardd.steps(w, [1], 1, 3, blob=3)),
            (TypeError, "number of steps", lambda: shardd.steps(w, [1], 1, 3, scheduler=3)),
            (TypeError, "batch_sampler=shardd.Sampler", lambda: shardd.steps(
                w, torch.utils.data.DataLoader([1]), last=3))):
        with pytest.raises(error, match=words):
            call()
