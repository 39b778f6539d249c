# SPDX-License-Identifier: Apache-2.0
"""Elastic loops: trainers that come, go and are killed, against a replay of what was recorded."""

import random

import pytest
import torch

import crew as crews
from replay import Dropped, Points, Replay, shares

import shardd
from shardd.loop import Plan, _mixed, _order

LR, BATCH, LENGTH, SEED = 1e-2, 12, 50, 3


@pytest.fixture
def crew(address):
    crews.preload()
    it = crews.Crew(SHARD_ADDRESS=address)
    yield it
    it.close()


# --- the trainers ---


def trains(line, last, world, micro=None, workers=0, plain=False, **options):
    """Runs shardd.steps() to `last`, and says its weights then."""
    model = Dropped()
    opt = shardd.AdamW(model, lr=LR, name="elastic", world=world, timeout=60, **options)
    line.say("joining")
    try:
        for step, batches in shardd.steps(opt, Points(LENGTH), BATCH, last, micro_batch=micro,
                                          shuffle=True, seed=SEED, num_workers=workers):
            line.ask("at", step=step, rank=opt.rank, size=opt.world_size)
            for x, y in batches:
                model(x, y).backward()
            opt.step()
            line.say("did", step=step, skipped=opt.step_was_skipped,
                     size=opt.result.world_size if opt.result else None)
        line.say("weights", weights={k: opt.read(k).numpy().tobytes()
                                     for k, _ in model.named_parameters()})
        line.ask("done")
    except crews.Stopped:
        pass
    opt.close(drop=False)


class Record:
    """What happened: the world of each committed step, and the weights at the end."""

    def __init__(self):
        self.sizes, self.weights, self.again = {}, [], 0

    def note(self, message):
        if message["what"] == "weights":
            self.weights.append(message["weights"])
        if message["what"] != "did":
            return
        if message["skipped"]:
            self.again += 1
        elif message["size"] is not None:
            step, size = message["step"], message["size"]
            assert self.sizes.setdefault(step, size) == size, f"step {step} was committed twice"

    def replayed(self, last, micro=None, order=None):
        plan = Plan(LENGTH, BATCH, True, SEED, "wrap")
        replay = Replay(Points(LENGTH), order or (lambda step: plan.indices(step, 0, 1)),
                        lambda step, rank: _mixed(SEED, step, rank), LR, micro)
        for step in range(1, last + 1):
            replay.step(step, self.sizes[step])
        return replay.weights()


# --- kill -9 ---


@pytest.mark.parametrize("seed,micro,workers", [(1, None, 0), (2, 2, 0), (3, 3, 2)])
def test_killed_every_few_steps(crew, seed, micro, workers):
    """kill -9 of any rank every 5 steps of 60, in whatever moment: weights equal the replay."""
    last, record, chance = 60, Record(), random.Random(seed)
    arguments = {"last": last, "world": (1, 4), "micro": micro, "workers": workers}
    kills, held = dict.fromkeys(range(5, last, 5)), []

    def go(member):
        try:
            member.go()
        except BrokenPipeError:
            pass  # It was killed.

    def kill_one():
        victims = [m for m in crew.living if m.process.is_alive() and m.joined]
        if len(victims) < 2:  # A private daemon ends with its last trainer.
            return False
        chance.choice(victims).kill()
        crew.start(trains, **arguments)
        return True

    def handle(member, message):
        record.note(message)
        if message["what"] == "at":
            step = message["step"]
            # Some have begun the step by now, and others have not.
            if step in kills and not kills[step] and chance.random() < 0.5:
                kills[step] = kill_one()
            held.append(member)
        if message["what"] == "done":
            member.go()
        # After a kill nobody begins a step before the next trainer is about to join.
        if all(m.joined or m.last.get("what") == "joining" for m in crew.living):
            while held:
                go(held.pop(0))

    for _ in range(3):
        crew.start(trains, **arguments)
    crew.run(handle)
    assert sum(bool(k) for k in kills.values()) >= 6
    assert len(set(record.sizes.values())) > 1 and sorted(record.sizes) == list(range(1, last + 1))
    assert record.weights and all(w == record.replayed(last, micro) for w in record.weights)


def test_grows_and_shrinks(crew):
    """1 -> 4 -> 2 trainers inside steps(). The weights equal the replay, and the checker can fail."""
    last, record = 150, Record()
    arguments = {"last": last, "world": (1, 4)}
    since, told = {}, []

    def handle(member, message):
        record.note(message)
        if message["what"] == "joining" and len(crew.members) > 1 and member.number == 3:
            for m in crew.living:
                if m.waiting:
                    m.go()
        if message["what"] == "done":
            member.go()
        if message["what"] != "at":
            return
        size = message["size"]
        first = since.setdefault(size, message["step"])
        if len(crew.members) == 1 and message["step"] == 10:
            for _ in range(3):
                crew.start(trains, **arguments)
            member.waiting = True  # Until the last of them is about to join.
        elif size == 4 and message["step"] > first + 10 and len(told) < 2 and message["rank"] in (1,
                                                                                              2):
            told.append(member)
            member.leave()
        else:
            member.go()

    crew.start(trains, **arguments)
    crew.run(handle)
    assert {1, 2, 4} <= set(record.sizes.values()), record.sizes
    assert len(record.weights) == 2
    assert all(w == record.replayed(last) for w in record.weights)

    # The same with one world that was another one, and with two samples of one step exchanged.
    changed = Record()
    changed.sizes = {**record.sizes, 20: record.sizes[20] % 4 + 1}
    assert changed.replayed(last) != record.weights[0]
    plan = Plan(LENGTH, BATCH, True, SEED, "wrap")

    def exchanged(step):
        found = plan.indices(step, 0, 1)
        return [found[-1], *found[1:-1], found[0]] if step == 77 else found

    assert record.sizes[77] == 1 or record.replayed(last, order=exchanged) != record.weights[0]
