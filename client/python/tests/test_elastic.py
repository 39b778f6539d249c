# SPDX-License-Identifier: Apache-2.0
"""Elastic loops: trainers that come, go and are killed, against a replay of what was recorded."""

import os
import random
import re
import signal
import time

import pytest
import torch

import crew as crews
from cluster import Cluster
from replay import Dropped, Points, Replay

import shardd
from shardd.loop import Plan, _mixed
from shardd.session import Session

LR, BATCH, LENGTH, SEED = 1e-2, 12, 50, 3


@pytest.fixture
def crew(address):
    crews.preload()
    it = crews.Crew(SHARD_ADDRESS=address)
    yield it
    it.close()


# --- the trainers ---


def trains(line, last, world, micro=None, workers=0, own_loader=False, **options):
    """Runs shardd.steps() to `last`, and says its weights then."""
    model = Dropped()
    opt = shardd.AdamW(model, lr=LR, name="elastic", world=world, timeout=60, **options)
    line.say("joining")
    if own_loader:
        sampler = shardd.Sampler(Points(LENGTH), opt, BATCH, seed=SEED, micro_batch=micro)
        loop = shardd.steps(opt, torch.utils.data.DataLoader(
            Points(LENGTH), batch_sampler=sampler, num_workers=workers), last=last, seed=SEED)
    else:
        loop = shardd.steps(opt, Points(LENGTH), BATCH, last, micro_batch=micro, shuffle=True,
                            seed=SEED, num_workers=workers)
    try:
        for step, batches in loop:
            line.ask("at", step=step, rank=opt.rank, size=opt.world_size)
            for x, y in batches:
                model(x, y).backward()
            opt.step()
            line.say("did", step=step, skipped=opt.step_was_skipped,
                     size=opt.result.world_size if opt.result.reason != "world" else None)
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

    def replayed(self, last, micro=None, order=None, tail="wrap"):
        plan = Plan(LENGTH, BATCH, True, SEED, tail)
        replay = Replay(Points(LENGTH), order or (lambda step: plan.indices(step, 0, 1)),
                        lambda step, rank: _mixed(SEED, step, rank), LR, micro)
        for step in range(1, last + 1):
            replay.step(step, self.sizes[step])
        return replay.weights()


# --- kill -9 ---


@pytest.mark.parametrize("seed,micro,workers,own_loader", [
    (1, None, 0, False), (2, 2, 0, False), (3, 3, 2, False), (4, None, 1, True)])
def test_killed_every_few_steps(crew, seed, micro, workers, own_loader):
    """kill -9 of any rank every 5 steps of 60, in whatever moment: weights equal the replay."""
    last, record, chance = 60, Record(), random.Random(seed)
    arguments = {"last": last, "world": (1, 4), "micro": micro, "workers": workers,
                 "own_loader": own_loader}
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
    expected = record.replayed(last, micro, tail="short" if own_loader else "wrap")
    assert record.weights and all(w == expected for w in record.weights)


def test_grows_and_shrinks(crew):
    """1 -> 4 -> 2 trainers inside steps(): the weights equal the replay. The checker can fail."""
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


class Stuck(Points):
    """A worker that loads sample 8 says who it is, and does nothing any more."""

    def __init__(self, fifo):
        super().__init__()
        self.fifo = fifo

    def __getitem__(self, i):
        if i >= 8 and torch.utils.data.get_worker_info() is not None:
            with open(self.fifo, "w") as f:
                f.write(str(os.getpid()))
            while True:
                signal.pause()
        return super().__getitem__(i)


def has_workers(line, last, fifo):
    model = Dropped(0.0)
    opt = shardd.AdamW(model, lr=LR, name="workers", world=(1, 2), timeout=60)
    data = Stuck(fifo) if line.number == 0 else Points()
    for step, batches in shardd.steps(opt, data, 8, last, num_workers=int(line.number == 0)):
        for x, y in batches:
            model(x, y).backward()
        line.ask("at", size=opt.world_size)
        opt.step()
    opt.close(drop=False)


def test_workers_do_not_keep_a_dead_trainer(crew, tmp_path):
    """A trainer is killed while a worker of its DataLoader lives: the others go on at once."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    sizes, worker = [], []

    def handle(member, message):
        if message["what"] == "end":
            os.kill(worker[0], 0)  # It is there yet.
            os.kill(worker[0], signal.SIGKILL)
        if message["what"] != "at":
            return
        if member.number == 1:
            sizes.append(message["size"])
            member.go()
        elif len(crew.members) == 1:
            with open(fifo) as f:  # In step 1 it loads step 2 ahead.
                worker.append(int(f.read()))
            crew.start(has_workers, last=5, fifo=fifo)
            member.kill()

    crew.start(has_workers, last=5, fifo=fifo)
    crew.run(handle)
    assert sizes[-5:] == [1] * 5


# --- plain loops ---


# Parameters that have memory only while they are used.
FETCHED = {"params": "copy", "stage3": {"prefetch": 100, "keep": 4, "reuse": 0}}


def goes_on(line, last, on_change="skip", world=(1, 4), own=None, more={}):
    """A loop that knows nothing of worlds: sample `count` of this rank in its count-th pass."""
    model = Dropped(0.0)
    if more:
        line.say("joining")  # At once. Otherwise with the first gradient.
    opt = shardd.AdamW(model, lr=LR, name="plain", world=world, timeout=60, on_change=on_change,
                       **more)
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 1.0)
    if not more:
        line.say("joining")
    raised = 0
    while opt.global_step < last:
        line.ask("at", step=opt.global_step + 1)
        sample = 1000 * line.number + opt.global_step
        x, y = Points()[sample]
        model(x[None], y[None]).backward()
        try:
            opt.step()
        except shardd.WorldChanged:
            raised += 1
            line.say("raised")
            continue
        if not opt.step_was_skipped:
            scheduler.step()
            line.say("did", step=opt.result.step, sample=sample, rank=opt.rank,
                     size=opt.result.world_size)
        opt.zero_grad()
    line.say("weights", weights={k: opt.read(k).numpy().tobytes()
                                 for k, _ in model.named_parameters()},
             scheduled=scheduler.last_epoch, raised=raised)
    opt.close(drop=False)


def plain_replay(did, last):
    """Every rank's gradient once in each step, in rank order."""
    replay = Replay(Points(), None, None, LR, dropout=0.0)
    for step in range(1, last + 1):
        of_step = {m["rank"]: m["sample"] for m in did if m["step"] == step}
        assert sorted(of_step) == list(range(len(of_step))), f"step {step} has {of_step}"
        assert len([m for m in did if m["step"] == step]) == len(of_step), f"{step} counts twice"
        sums = None
        for rank in sorted(of_step):
            g = replay._gradients([of_step[rank]], 1, 1)
            sums = g if sums is None else {k: sums[k] + g[k] for k in g}
        replay.optimizer.step(sums, len(of_step))
    return replay.weights()


@pytest.mark.parametrize("on_change, more", [("skip", {}), ("raise", {}), ("skip", FETCHED)],
                         ids=["skip", "raise", "fetched"])
def test_a_plain_loop_goes_on(crew, on_change, more):
    """Kills in a loop without a line about them: no hang, no double step, no step of the scheduler
    for one that was skipped. With "raise" the loop is told, and goes on if it catches."""
    last, did, ends = 40, [], {}
    kills, held, first = [(10, 1), (20, 0), (30, 2)], [], {}

    def handle(member, message):
        if message["what"] == "did":
            did.append(message)
            first.setdefault(member.number, message["step"])
        if message["what"] == "weights":
            ends[member.number] = message
        if message["what"] == "at":
            # One that waits here has not begun its next step, and its last one is told.
            if kills and kills[0][0] <= message["step"] and kills[0][1] == member.number:
                kills.pop(0)
                member.kill()
            else:
                held.append(member)
        if all(m.last for m in crew.members):  # All are about to join.
            while held:
                held.pop().go()

    for _ in range(4):
        crew.start(goes_on, last=last, on_change=on_change, more=more)
    crew.run(handle)
    assert list(ends) == [3]
    expected = plain_replay(did, last)
    end = ends[3]
    assert end["weights"] == expected
    assert end["scheduled"] == last - first[3] + 1
    assert (end["raised"] >= 3) == (on_change == "raise")
    # The checker can fail: one more sample in one step.
    with pytest.raises(AssertionError, match="counts twice"):
        plain_replay(did + [{**did[0], "sample": 5}], last)
    assert plain_replay([{**m, "sample": m["sample"] + (m is did[-1])} for m in did],
                        last) != expected


# --- what is kept ---


class Counter:
    """The user's own state: how many samples this rank has seen."""

    def __init__(self):
        self.n = 0

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


def counts(line, last):
    model, counter = Dropped(), Counter()
    opt = shardd.AdamW(model, lr=LR, name="counts", timeout=60)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 4, 0.5)
    line.say("joining")
    rates = []
    for step, batches in shardd.steps(opt, Points(LENGTH), BATCH, last, shuffle=True, seed=SEED,
                                      micro_batch=5, blob=counter, scheduler=scheduler):
        for x, y in batches:
            counter.n += len(y)
            model(x, y).backward()
        line.ask("at", step=step, n=counter.n, lr=opt.param_groups[0]["lr"])
        opt.step()
    line.say("weights", n=counter.n,
             weights={k: opt.read(k).numpy().tobytes() for k, _ in model.named_parameters()})
    opt.close()


def test_user_state_and_scheduler_count_once(crew):
    """kill -9 between backward and step, twice: the next process counts as if nothing had been."""
    last, ends, seen, kills = 12, [], {}, [4, 9]

    def handle(member, message):
        if message["what"] == "weights":
            ends.append(message)
        if message["what"] == "at":
            seen.setdefault(message["step"], []).append((message["n"], message["lr"]))
            if kills and message["step"] == kills[0]:
                kills.pop(0)
                member.kill()
            else:
                member.go()
        if message["what"] == "gone" and message["status"]:
            crew.start(counts, last=last)

    crew.start(counts, last=last)
    crew.run(handle)
    lr = {step: LR * 0.5 ** ((step - 1) // 4) for step in range(1, last + 1)}
    for step in range(1, last + 1):
        assert set(seen[step]) == {(step * BATCH, lr[step])}, seen[step]
    assert len(seen[4]) == len(seen[9]) == 2 and len(seen[5]) == 1
    plan = Plan(LENGTH, BATCH, True, SEED, "wrap")
    replay = Replay(Points(LENGTH), lambda s: plan.indices(s, 0, 1),
                    lambda s, r: _mixed(SEED, s, r), LR, 5, lr_of=lr.get)
    for step in range(1, last + 1):
        replay.step(step, 1)
    assert all(e["weights"] == replay.weights() and e["n"] == last * BATCH for e in ends) and ends


# --- nodes that are lost, and daemons that start again ---


@pytest.fixture
def cluster():
    made = []

    def make(*arguments, **more):
        made.append(Cluster(*arguments, **more))
        return made[-1]

    yield make
    for c in made:
        c.close()


def alone(opt, model, last, at):
    """Trains to `last` in this process. at(step) is called after the backward passes."""
    seen = []
    for step, batches in shardd.steps(opt, Points(LENGTH), BATCH, last, shuffle=True, seed=SEED):
        for x, y in batches:
            model(x, y).backward()
        at(step)
        opt.step()
        seen.append((step, opt.step_was_skipped))
    return seen


def weights_of(opt, model):
    return {k: opt.read(k).numpy().tobytes() for k, _ in model.named_parameters()}


def undisturbed(last):
    record = Record()
    record.sizes = dict.fromkeys(range(1, last + 1), 1)
    return record.replayed(last)


@pytest.mark.parametrize("lost", ["another node", "this node"])
def test_rolled_back_to_a_checkpoint(cluster, lost):
    """A node starts again without its memory: the loop seeks, and ends as if nothing had been."""
    c = cluster(2 if lost == "another node" else 1)
    model, last = Dropped(), 20
    opt = shardd.AdamW(model, lr=LR, name="back", address=c.address(c.names[-1]), timeout=60,
                       checkpoint_dir=str(c.dir / "saved"))
    done = set()

    def at(step):
        if step == 8 and "saved" not in done:
            done.add("saved")
            opt.save(tag="seven")
        if step == 13 and "lost" not in done:
            done.add("lost")
            c.kill("a")
            c.start("a")

    seen = alone(opt, model, last, at)
    committed = [step for step, skipped in seen if not skipped]
    assert [step for step, skipped in seen if skipped and step == 13]
    assert committed == [*range(1, 13), *range(8, last + 1)]
    assert opt.applied == last  # And not one for each step() that updated.
    assert weights_of(opt, model) == undisturbed(last)
    assert {k: p.detach().numpy().tobytes() for k, p in model.named_parameters()} == \
        undisturbed(last)
    opt.close()


def coordinator(c):
    """The last one that a node's log names."""
    said = [line for n in c.names for line in c.log(n).splitlines() if "event=coordinator" in line]
    return re.search(r"event=coordinator node=(\w+)", max(said)).group(1)


def test_the_coordinator_is_lost_while_weights_are_written(cluster, monkeypatch):
    """The model is defined again, and its weights are written again."""
    c = cluster(3, elects=True)
    model, last, seal, lost = Dropped(), 6, Session.seal, []

    def lose(s, step=0):
        if not lost:
            lost.append(coordinator(c))
            c.kill(lost[0])
        seal(s, step)

    monkeypatch.setattr(Session, "seal", lose)
    deadline = time.monotonic() + 60
    # All three vote, so that two of them elect.
    while sum(c.log(n).count("event=voters") for n in c.names) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    at = next(n for n in c.names if n != coordinator(c))
    opt = shardd.AdamW(model, lr=LR, name="again", address=c.address(at), timeout=60)
    assert [step for step, skipped in alone(opt, model, last, lambda step: None) if not skipped] \
        == [*range(1, last + 1)]
    assert weights_of(opt, model) == undisturbed(last) and len(lost) == 1
    opt.close()


@pytest.mark.parametrize("more", [{}, FETCHED], ids=["image", "fetched"])
def test_the_daemon_starts_again_with_its_memory(cluster, more):
    """kill -9 of the daemon every four steps: no step is lost, and none counts twice. Tensors that
    share the memory of an earlier daemon's weights may be read."""
    c = cluster(1, warm=True)
    model, last, shared = Dropped(), 20, []
    opt = shardd.AdamW(model, lr=LR, name="warm", address=c.address("a"), timeout=60, **more)
    due = [4, 8, 12, 16]

    def at(step):
        if due and step == due[0]:
            due.pop(0)
            shared.extend(p.detach() for p in model.parameters() if not more)
            c.kill("a")
            c.start("a")

    seen = alone(opt, model, last, at)
    assert [step for step, skipped in seen if not skipped] == list(range(1, last + 1))
    assert [step for step, skipped in seen if skipped] == [4, 8, 12, 16]
    assert weights_of(opt, model) == undisturbed(last)
    assert not opt._lost_sessions and all(x.isfinite().all() for x in shared)
    opt.close()
    assert all(x.isfinite().all() for x in shared)


def test_a_plain_loop_connects_again(cluster):
    c = cluster(1, warm=True)
    model = Dropped(0.0)
    opt = shardd.AdamW(model, lr=LR, name="plain", address=c.address("a"), timeout=60)
    skipped = 0
    while opt.global_step < 9:
        x, y = Points()[opt.global_step]
        model(x[None], y[None]).backward()
        if opt.global_step == 5 and not skipped:
            c.kill("a")
            c.start("a")
        opt.step()
        skipped += opt.step_was_skipped
        opt.zero_grad()
    assert skipped == 1
    opt.on_change = "raise"
    model(x[None], y[None]).backward()
    c.kill("a")
    c.start("a")
    with pytest.raises(shardd.WorldChanged, match="connected again, step 10 is next"):
        opt.step()
    model(x[None], y[None]).backward()
    opt.step()
    assert opt.global_step == 10
    opt.close()


def test_the_daemon_does_not_come_back(cluster):
    """Within the timeout there is an error, and the parameters can still be read."""
    c = cluster(1)
    model = Dropped(0.0)
    opt = shardd.AdamW(model, lr=LR, name="gone", address=c.address("a"), timeout=3)
    x, y = Points()[0]
    for k in range(3):
        model(x[None], y[None]).backward()
        if k == 2:
            before = [p.clone() for p in model.parameters()]
            c.kill("a")
            began = time.monotonic()
            with pytest.raises(shardd.Closed, match="in 3 s the model was not to be had again"):
                opt.step()
            assert time.monotonic() - began < 60
        else:
            opt.step()
    assert all(bool((a == p).all()) for a, p in zip(before, model.parameters()))
    opt.close()
    assert all(bool((a == p).all()) for a, p in zip(before, model.parameters()))


def test_a_daemon_without_the_model_is_no_fresh_start(cluster):
    """A daemon that lost everything: an error without a checkpoint, and never first weights."""
    c = cluster(1)
    model = Dropped(0.0)
    opt = shardd.AdamW(model, lr=LR, name="gone", address=c.address("a"), timeout=60)
    x, y = Points()[0]
    for k in range(2):
        model(x[None], y[None]).backward()
        if k == 0:
            opt.step()
    before = [p.clone() for p in model.parameters()]
    c.kill("a")
    c.forget("a")
    c.start("a")
    with pytest.raises(shardd.Lost, match="came back without it. Restore a checkpoint"):
        opt.step()
    assert all(bool((a == p).all()) for a, p in zip(before, model.parameters()))
    opt.close()


def test_a_private_daemon_comes_back_from_a_checkpoint(address, tmp_path):
    """spawn: is started again by the trainer itself, and the newest checkpoint is restored."""
    model, last = Dropped(), 12
    opt = shardd.AdamW(model, lr=LR, name="own", address=address, timeout=60,
                       checkpoint_dir=str(tmp_path))
    done = []

    def at(step):
        if step == 5 and not done:
            opt.save()
        if step == 8 and not done:
            done.append(step)
            os.kill(daemon_of(address), 9)

    seen = alone(opt, model, last, at)
    assert [step for step, skipped in seen if not skipped] == [*range(1, 8), *range(5, last + 1)]
    assert weights_of(opt, model) == undisturbed(last)
    opt.close()


def daemon_of(address):
    """The process id of a private daemon."""
    name = address.removeprefix("spawn:")
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if any(w.endswith(f"/{name}/shardd.sock".encode()) for w in words):
                return int(entry)
    raise AssertionError(f"no daemon of {address}")


# --- the loop and its user ---


def test_mistakes_in_a_body(address):
    """What a body does wrong ends in a sentence."""
    model = Dropped(0.0)
    opt = shardd.AdamW(model, lr=LR, address=address, name="body", on_change="retry")
    data = Points(LENGTH)
    with pytest.raises(RuntimeError, match="only shardd.steps"):
        opt.step()
    with pytest.raises(RuntimeError, match="did not call opt.step.. in step 1"):
        for step, batches in shardd.steps(opt, data, BATCH, 3):
            for x, y in batches:
                model(x, y).backward()
    # A loop that ended in the middle of a step does not spoil the next one.
    for step, batches in shardd.steps(opt, data, BATCH, 3):
        for x, y in batches:
            model(x, y).backward()
        opt.step()
        if step == 2:
            with pytest.raises(RuntimeError, match="called twice in step 2"):
                opt.step()
    assert opt.global_step == 3
    for step, batches in shardd.steps(opt, data, BATCH, 3):
        raise AssertionError("all steps are done")
    opt.close()


def few(line, last):
    model = Dropped(0.0)
    opt = shardd.AdamW(model, lr=LR, name="few", world=3, timeout=60)
    shares = set()
    for step, batches in shardd.steps(opt, Points(LENGTH), 2, last):
        n = 0
        for x, y in batches:
            n += len(y)
            model(x, y).backward()
        shares.add((opt.rank, n))
        opt.step()
        assert opt.result.applied
    line.say("weights", weights={k: opt.read(k).numpy().tobytes()
                                 for k, _ in model.named_parameters()}, shares=sorted(shares))
    opt.close()


def test_a_world_larger_than_the_batch(crew):
    """A rank without samples commits, and counts nothing."""
    ends = []
    for _ in range(3):
        crew.start(few, last=4)
    crew.run(lambda member, message: ends.append(message) if message["what"] == "weights" else None)
    replay = Replay(Points(LENGTH), lambda s: [2 * s - 2, 2 * s - 1], None, LR, dropout=0.0)
    replay.seed_of = lambda step, rank: 0
    for step in range(1, 5):
        replay.step(step, 3)
    assert len(ends) == 3 and all(e["weights"] == replay.weights() for e in ends)
    assert sorted(s for e in ends for s in e["shares"]) == [(0, 1), (1, 1), (2, 0)]
