# SPDX-License-Identifier: Apache-2.0
"""Elastic loops: which samples are whose, in a world that changes between two steps.

Everything here follows from one idea: what a step is computed on is a function of its number. The
global batch of a step is the same in every world, and ranks cut it by shard_samples(). So a step
that begins again, in whatever world, is made of the same samples, and a rollback is a seek.

Plan says it without any state, Sampler gives it to a DataLoader, and steps() is the loop: it joins,
yields the batches of this rank, and gives the same ones again until the step is committed. What
cannot be computed from the number of a step (random numbers, the user's own state, where the data
began) is in the blob of each rank, which is committed with the step. A blob is bytes from outside:
_Kept.read() checks it.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import functools
import io
import json
import logging
import random
import struct
import sys
import time
import warnings
from typing import Any, Callable, Iterator, NamedTuple, Sized

import torch
import torch.utils.data

from . import lib as _c
from .optimizer import Optimizer
from .session import share

log = logging.getLogger("shardd")

BLOB_BYTES = 65536
MAGIC = b"shardd-loop-1\n"


# --- which samples ---


class Plan(NamedTuple):
    """The samples of every step, as a function of its number.

    length   samples of the data set; None: without end
    batch    samples of a step, of all ranks together
    shuffle  a new order in each epoch, by seed and epoch alone
    tail     what becomes of the last samples of an epoch, if they fill no batch: "wrap": the next
             epoch completes it. "short": they are a smaller batch. "drop"
    step, epoch, offset   where the data begins: step `step` begins at sample `offset` of `epoch`
    """

    length: int | None
    batch: int
    shuffle: bool
    seed: int
    tail: str
    step: int = 1
    epoch: int = 0
    offset: int = 0

    def cursor(self, step: int) -> tuple[int, int]:
        """The epoch and the sample in it that a step begins with."""
        n = step - self.step
        if n < 0:
            raise ValueError(f"shardd: step {step} is before step {self.step}, with which the data "
                             "begins")
        if self.length is None:
            return 0, self.offset + n * self.batch
        if self.tail == "wrap":
            ahead, offset = divmod(self.offset + n * self.batch, self.length)
            return self.epoch + ahead, offset
        first = self._batches(self.length - self.offset)
        if n < first:
            return self.epoch, self.offset + n * self.batch
        ahead, k = divmod(n - first, self._batches(self.length))
        return self.epoch + 1 + ahead, k * self.batch

    def _batches(self, samples: int) -> int:
        return samples // self.batch if self.tail == "drop" else -(-samples // self.batch)

    def total(self, step: int) -> int:
        """How many samples the global batch of a step has."""
        if self.tail != "short" or self.length is None:
            return self.batch
        return min(self.batch, self.length - self.cursor(step)[1])

    def indices(self, step: int, rank: int, world_size: int) -> list[int]:
        """The samples of one rank in a step, as indices into the data set. It may be none."""
        part = share(self.total(step), rank, world_size)
        epoch, offset = self.cursor(step)
        if self.length is None:
            return [offset + k for k in part]
        found = []
        for k in part:
            ahead, at = divmod(offset + k, self.length)
            order = _order(self.length, self.seed, epoch + ahead) if self.shuffle else None
            found.append(at if order is None else int(order[at]))
        return found


@functools.lru_cache(maxsize=4)
def _order(length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch: (length,) int64. It is the same on all ranks and in every world."""
    g = torch.Generator().manual_seed(_mixed(seed, epoch))
    return torch.randperm(length, generator=g)


def _mixed(*numbers: int) -> int:
    """One seed out of several numbers, by splitmix64."""
    z = 0
    for n in numbers:
        z = (z + n + 0x9e3779b97f4a7c15) % 2**64
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 % 2**64
        z = (z ^ z >> 27) * 0x94d049bb133111eb % 2**64
        z ^= z >> 31
    return z >> 1  # manual_seed() takes 63 bits without a sign.


class _Draw(NamedTuple):
    """What a list of indices was drawn for: part `part` of a rank's share in a step."""

    step: int
    rank: int
    world_size: int
    part: int


class Sampler(torch.utils.data.Sampler):
    """The batch_sampler of a DataLoader: in each step this rank's indices, in the world as it is.

        sampler = shardd.Sampler(dataset, opt, global_batch=64)
        loader = DataLoader(dataset, batch_sampler=sampler)

    Over an epoch every sample is in exactly one committed step, whoever came or went meanwhile:
    which samples a step has depends on its number alone, and who has which of them on its world. A
    step that was skipped because the world changed gets the same samples again. With it the update
    is the mean over the global batch also where the ranks' shares differ by a sample (a rank's loss
    is the mean over its batch, as ever). With Optimizer(accumulate=n) a step is n batches, and the
    loop divides the loss by n.

    A DataLoader with num_workers > 0 draws indices before their step. When the world changes then,
    what is under way is another rank's by now. No sampler can call it back, so this one does not
    let it happen in a loop of your own: it is a RuntimeError. Give such a loader to shardd.steps(),
    which knows what each batch was drawn for and leaves out those of a world that is gone:

        for step, batches in shardd.steps(opt, loader, last=1000): ...

    data_source   the data set, or how many samples it has
    opt           the shardd.Optimizer whose world and step count
    global_batch  samples of a step, of all ranks together. At least as many as ranks will be
    shuffle       another order in each epoch, by seed and epoch alone
    drop_last     leave out the last samples of an epoch that fill no global batch. Else they are a
                  smaller one
    micro_batch   inside shardd.steps(): cut a rank's share into batches of at most so many

    One iteration is the rest of the epoch that the next step is in. Its first one joins the world.
    state_dict() and load_state_dict() are what StatefulDataLoader asks for. Because the state is
    that of committed steps, batches that were loaded ahead are not counted in it.
    """

    def __init__(self, data_source: Sized | int, opt: Optimizer, global_batch: int, *,
                 shuffle: bool = True, seed: int = 0, drop_last: bool = False,
                 micro_batch: int | None = None):
        length = data_source if isinstance(data_source, int) else len(data_source)
        self._init(opt, _plan(length, global_batch, shuffle, seed,
                              "drop" if drop_last else "short"), micro_batch)

    def _init(self, opt, plan: Plan, micro_batch: int | None) -> None:
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"shardd: micro_batch is {micro_batch}, and is at least 1")
        self._opt, self.plan, self._micro = opt, plan, micro_batch
        self._placed = False  # Whether somebody said where the data begins.
        self._loop: _Loop | None = None
        self._seek: int | None = None
        self._turn = 0  # Of iterations: an older one that ends late says nothing.
        self._draws: collections.deque[_Draw] = collections.deque()

    @property
    def epoch(self) -> int:
        """The epoch that the next step is in, from 0 on."""
        return self.plan.cursor(self._opt.global_step + 1)[0]

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the epoch follows from the step. DistributedSampler has this method, too."""

    def __len__(self) -> int:
        """How many batches this rank has in an epoch, in the world as it is."""
        plan, count = self.plan, 0
        for total, times in ((plan.batch, plan.length // plan.batch),
                             (plan.length % plan.batch, int(plan.tail == "short"))):
            part = share(total, self._opt.rank, self._opt.world_size)
            count += times * len(self._cut(len(part)))
        return count

    def _cut(self, samples: int) -> list[int]:
        """The sizes of the batches that so many samples make."""
        most = self._micro or max(samples, 1)
        return [min(most, samples - at) for at in range(0, samples, most)]

    def __iter__(self) -> Iterator[list[int]]:
        return self._ahead() if self._loop is not None else self._in_step()

    def _in_step(self) -> Iterator[list[int]]:
        """For a loop of the user's own: each list is drawn when its step begins."""
        opt, passes, calls = self._opt, self._opt.accumulate, None
        if self._micro is not None:
            raise RuntimeError("shardd: micro_batch is for shardd.steps(), because in how many "
                               "batches a share is cut depends on the world. Here it is cut into "
                               "as many as Optimizer(accumulate=) says")
        opt._ready()
        epoch = self.epoch
        self._turn = turn = self._turn + 1
        try:
            while True:
                step = opt.global_step + 1
                if self.plan.cursor(step)[0] != epoch:
                    return
                if opt._calls == calls:
                    raise RuntimeError(
                        f"shardd: indices are drawn before opt.step() was called for step {step}, "
                        "and would be wrong if the world changes. With num_workers > 0 give the "
                        "loader to shardd.steps(). For several batches in each step say "
                        "Optimizer(accumulate=)")
                calls, world = opt._calls, (opt.rank, opt.world_size)
                all_of_it, total = self.plan.indices(step, *world), self.plan.total(step)
                opt._share, opt.weight = (step, *world), 1.0
                for k in range(passes):
                    cut = share(len(all_of_it), k, passes)
                    if not cut:
                        raise RuntimeError(
                            f"shardd: rank {world[0]} of {world[1]} has {len(all_of_it)} of the "
                            f"{total} samples of step {step}, and needs one for each of {passes} "
                            "backward passes: use shardd.steps(), a larger global_batch, or "
                            "drop_last")
                    opt._gain = len(cut) * passes * world[1] / total
                    yield [all_of_it[i] for i in cut]
        finally:
            if self._turn == turn:
                opt._share, opt._gain = None, 1.0

    def _ahead(self) -> Iterator[list[int]]:
        """For steps(): lists are drawn as early as the loader likes, and it knows what for."""
        loop, step = self._loop, self._loop.step
        self._seek = None
        self._draws.clear()
        while step <= loop.last:
            rank, size = loop.world
            part, at = self.plan.indices(step, rank, size), 0
            for k, n in enumerate(self._cut(len(part))):
                self._draws.append(_Draw(step, rank, size, k))
                yield part[at:at + n]
                at += n
                if self._seek is not None:
                    break
            step, self._seek = step + 1 if self._seek is None else self._seek, None
            if not part:
                return  # This rank has none in a world that is so large.

    def state_dict(self) -> dict:
        """Where the data goes on after the last committed step: six numbers."""
        step = self._opt.global_step + 1
        epoch, offset = self.plan.cursor(step)
        return {"step": step, "epoch": epoch, "offset": offset, "seed": self.plan.seed,
                "global_batch": self.plan.batch, "length": self.plan.length}

    def load_state_dict(self, state: dict) -> None:
        """Goes on where a state_dict() was taken, also with another global batch."""
        self._place(state["step"], state["epoch"], state["offset"])
        if state["seed"] != self.plan.seed or state["length"] != self.plan.length:
            log.warning("shardd: the state of a Sampler with seed %s and %s samples is loaded into "
                        "one with seed %s and %s: some samples come twice in this epoch, and some "
                        "not at all", state["seed"], state["length"], self.plan.seed,
                        self.plan.length)

    def _place(self, step: int, epoch: int, offset: int) -> None:
        plan = self.plan
        if plan.length is not None and offset >= plan.length:
            epoch, offset = epoch + 1, 0
        self.plan = plan._replace(step=step, epoch=epoch, offset=offset)
        self._placed = True


def _plan(length: int | None, batch: int, shuffle: bool, seed: int, tail: str) -> Plan:
    if batch < 1:
        raise ValueError(f"shardd: global_batch is {batch}, and is at least 1")
    if length is not None and length < 1:
        raise ValueError("shardd: the data set is empty")
    if tail == "drop" and length < batch:
        raise ValueError(f"shardd: the data set has {length} samples and global_batch is {batch}: "
                         "with drop_last there is no batch at all")
    if shuffle and length is None:
        raise ValueError("shardd: a data set without a length cannot be shuffled")
    return Plan(length, batch, shuffle, seed, tail)


# --- what is kept with a step ---


class _Kept(NamedTuple):
    """What a rank keeps with a step: where the data goes on, random numbers, the user's state.

    As bytes: MAGIC, one line of JSON, and the parts that it names, one after the other."""

    step: int                    # The step that it was committed with.
    rank: int
    place: tuple[int, int, int]  # step, epoch, offset: as Plan has them.
    parts: dict[str, bytes]      # "torch", "random", "numpy", "cuda", "user"

    def write(self) -> bytes:
        head = {"step": self.step, "rank": self.rank, "place": self.place,
                "parts": [[k, len(v)] for k, v in self.parts.items()]}
        data = b"".join((MAGIC, json.dumps(head).encode(), b"\n", *self.parts.values()))
        if len(data) > BLOB_BYTES:
            raise ValueError(f"shardd: what a rank keeps with a step has {len(data)} bytes, and "
                             f"{BLOB_BYTES} fit: " + ", ".join(
                                 f"{k} {len(v)}" for k, v in self.parts.items()))
        return data

    @classmethod
    def read(cls, data: bytes) -> "_Kept | None":
        """None: these bytes are something else's."""
        try:
            if not data.startswith(MAGIC):
                return None
            line, rest = data[len(MAGIC):].split(b"\n", 1)
            head = json.loads(line)
            place = tuple(head["place"])
            parts, at = {}, 0
            for name, size in head["parts"]:
                if type(size) is not int or size < 0:
                    return None
                parts[str(name)] = rest[at:at + size]
                at += size
            numbers = (head["step"], head["rank"], *place)
            if at != len(rest) or len(place) != 3 or any(type(n) is not int or n < 0
                                                         for n in numbers):
                return None
            return cls(head["step"], head["rank"], place, parts)
        except (ValueError, KeyError, TypeError):
            return None


def _randoms() -> dict[str, bytes]:
    """The state of the random numbers of this process."""
    version, words, gauss = random.getstate()
    parts = {"torch": _bytes_of(torch.get_rng_state()),
             "random": json.dumps([version, gauss]).encode() + b"\n" +
             struct.pack(f"<{len(words)}I", *words)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, key, *rest = numpy.random.get_state()
        if kind == "MT19937":
            parts["numpy"] = json.dumps(rest).encode() + b"\n" + key.astype("<u4").tobytes()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        parts["cuda"] = _bytes_of(torch.cuda.get_rng_state())
    return parts


def _bytes_of(t: torch.Tensor) -> bytes:
    return ctypes.string_at(t.data_ptr(), t.numel())


def _set_randoms(parts: dict[str, bytes]) -> None:
    def of(data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    torch.set_rng_state(of(parts["torch"]))
    head, words = parts["random"].split(b"\n", 1)
    version, gauss = json.loads(head)
    random.setstate((version, struct.unpack(f"<{len(words) // 4}I", words), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in parts:
        head, key = parts["numpy"].split(b"\n", 1)
        numpy.random.set_state(("MT19937", numpy.frombuffer(key, "<u4"), *json.loads(head)))
    if "cuda" in parts and torch.cuda.is_available():
        torch.cuda.set_rng_state(of(parts["cuda"]))


def _seed_randoms(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _saved(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


# --- the loop ---


def steps(opt: Optimizer, data, global_batch: int | None = None, last: int | None = None, *,
          collate: Callable | None = None, blob: Any = None, scheduler: Any = None,
          micro_batch: int | None = None, shuffle: bool = False, seed: int = 0,
          reduction: str = "mean", rng: bool = True, **loader):
    """The elastic loop: the same steps whatever happens to the trainers.

        for step, batches in shardd.steps(opt, dataset, global_batch=64, last=1000):
            for x, y in batches:
                loss(model(x), y).backward()
            opt.step()

    It yields the number of a step and this rank's batches of it, until step `last` is committed.
    Trainers may come, go and be killed, nodes may be lost, the daemon may start again: then the
    loop gives the same step again, with the same global batch, cut for the world as it is now. If
    the model went back to a checkpoint the loop goes back to the step after it, and so do the data.
    It joins before the first forward pass, so that nothing is computed on old weights. A trainer
    that starts later, or again, goes on where the others are.

    In the body: opt.step() once, for each step; nothing else that counts how often it runs, because
    a step may come again (opt.step_was_skipped says so after opt.step()). The loss is the mean over
    the batch that the loop gave, and is not divided by anything: a gradient is weighed by its
    samples, so that the update is that of the mean over the global batch in any world.

    opt           the shardd.Optimizer. on_change="skip" and "retry" are the same here; with "raise"
                  opt.step() raises, and a body that catches it gets the step again
    data          a data set with __getitem__ and __len__ (without a length: endless), of which the
                  loop makes a DataLoader; or a DataLoader whose batch_sampler is a shardd.Sampler
    global_batch  samples of a step, of all ranks together. A rank may have none: then `batches` is
                  empty, and opt.step() is still called
    last          the last step, counted from the beginning of the model
    collate       how samples become a batch; default: that of DataLoader
    micro_batch   a rank's share comes in batches of at most so many samples. Their gradients are
                  summed, and leave in the backward pass of the last one
    shuffle, seed a new order in each epoch, by seed and epoch. The next epoch completes a batch
    reduction     "mean" or "sum": what the loss is over its batch
    scheduler     a torch scheduler, new at step 1. The loop steps it, so that in step t it has been
                  stepped t - 1 times, whoever was there
    blob          an object with state_dict() and load_state_dict(). Its state is taken in
                  opt.step(), committed with the step, and loaded when a step comes again or this
                  trainer is a new one. Change it before opt.step(). It is of what
                  torch.load(weights_only=True) reads; 64 KiB for it and the random numbers together
    rng           keep the random numbers of torch, random and numpy in the same way: rank r goes on
                  in step t where rank r stood after step t - 1. A rank that was not there begins
                  with a seed made of `seed`, step and rank
    loader        further arguments of DataLoader, as num_workers and pin_memory. Random numbers of
                  its workers are not kept

    Raises what opt.step() raises, RuntimeError if the body did not call it, and ValueError.
    """
    if last is None:
        raise TypeError("shardd.steps: last= is needed: the number of the last step")
    if reduction not in ("mean", "sum"):
        raise ValueError(f'shardd.steps: reduction is {reduction!r}, and can be "mean" or "sum"')
    for word, value in (("state_dict", blob), ("load_state_dict", blob)):
        if value is not None and not hasattr(value, word):
            raise TypeError(f"shardd.steps: blob is a {type(blob).__name__}, which has no {word}()")
    if scheduler is not None and not (hasattr(scheduler, "last_epoch") and
                                      hasattr(scheduler, "base_lrs")):
        raise TypeError(f"shardd.steps: scheduler is a {type(scheduler).__name__}, and only one "
                        "whose learning rate follows from the number of steps can be stepped here")
    if isinstance(data, torch.utils.data.DataLoader):
        sampler = data.batch_sampler
        given = [k for k, v in (("global_batch", global_batch), ("collate", collate),
                                ("micro_batch", micro_batch)) if v is not None]
        if not isinstance(sampler, Sampler) or given or loader or shuffle:
            raise TypeError("shardd.steps: a DataLoader has to have batch_sampler=shardd.Sampler()"
                            ", and says itself what global_batch, micro_batch, shuffle and collate "
                            "are")
        if sampler._opt is not opt:
            raise ValueError("shardd.steps: the Sampler of this DataLoader has another Optimizer")
    else:
        if global_batch is None:
            raise TypeError("shardd.steps: global_batch= is needed: samples of all ranks together")
        if not hasattr(data, "__getitem__"):
            raise TypeError(f"shardd.steps: {type(data).__name__} has no __getitem__: samples are "
                            "asked for by their number, so that a step can come again")
        length = len(data) if hasattr(data, "__len__") else None
        sampler = Sampler.__new__(Sampler)
        sampler._init(opt, _plan(length, global_batch, shuffle, seed, "wrap"), micro_batch)
        data = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=collate,
                                           **loader)
    if opt._keep and sampler._micro is not None:
        raise ValueError('shardd.steps: with grads="keep" torch sums the gradients of a step, so '
                         "they cannot be weighed one by one: leave micro_batch out")
    return _Loop(opt, data, sampler, last, blob, scheduler, reduction == "mean", rng, seed).run()


class _Loop:
    """One steps(): what is the step in hand, for whom, and what was kept before it."""

    def __init__(self, opt, loader, sampler, last, blob, scheduler, mean, rng, seed):
        self.opt, self.loader, self.sampler, self.last = opt, loader, sampler, last
        self.user, self.scheduler, self.mean, self.rng, self.seed = blob, scheduler, mean, rng, seed
        self.step, self.world = 0, (0, 1)
        self._kept: dict[int, _Kept] = {}  # By step: the last committed one, and the one in hand.
        self._batches_of: Iterator | None = None
        self._stepped = False
        if scheduler is not None:
            self._first = (copy.deepcopy(scheduler.state_dict()),
                           [g["lr"] for g in opt.param_groups])
        self._user_first = b""
        if blob is not None:
            self._user_first = _saved(blob.state_dict())
            try:
                _loaded(self._user_first)
            except Exception as e:  # Now, and not when a trainer was killed.
                raise TypeError(f"shardd.steps: what {type(blob).__name__}.state_dict() gives is "
                                f"not what torch.load(weights_only=True) reads: {e}") from e

    def run(self):
        """The generator behind steps()."""
        opt, self.sampler._loop = self.opt, self
        opt.zero_grad()  # A loop that ended in the middle of a step may have left some of it.
        opt._loop, opt._dead = self, None
        try:
            if opt._session.world is None and opt.global_step >= self.last:
                return
            while True:
                step = opt._ready()
                if step > self.last:
                    return
                self._enter(step)
                yield step, self._batches()
                if not self._stepped:
                    raise RuntimeError(f"shardd.steps: the body did not call opt.step() in step "
                                       f"{step}")
        finally:
            self._batches_of = None  # Its workers end.
            self.sampler._loop = None
            if opt._loop is self:
                opt._loop = opt._share = None
                opt._passes, opt._gain = None, 1.0

    # --- what Optimizer.step() asks ---

    def stepped(self) -> None:
        if self._stepped:
            raise RuntimeError(f"shardd.steps: opt.step() was called twice in step {self.step}")
        self._stepped = True

    def blob(self) -> bytes:
        """What this rank keeps with the step that is being committed."""
        parts = _randoms() if self.rng else {}
        if self.user is not None:
            parts["user"] = _saved(self.user.state_dict())
        place = (self.step + 1, *self.sampler.plan.cursor(self.step + 1))
        kept = self._kept[self.step] = _Kept(self.step, self.world[0], place, parts)
        return kept.write()

    # --- a step begins, for the first time or again ---

    def _enter(self, step: int) -> None:
        w = self.opt._session.world
        world = w.rank, w.world_size
        usual = step == self.step + 1 and world == self.world
        if not usual:
            self.sampler._seek = step
        known = step > self.step and step - 1 in self._kept and \
            self._kept[step - 1].rank == w.rank
        self.step, self.world, self._stepped = step, world, False
        mine = self._before(step, w.rank)
        if self.rng and "torch" in mine.parts:
            _set_randoms(mine.parts)
        elif self.rng:
            _seed_randoms(_mixed(self.seed, step, w.rank))
            mine.parts.update(_randoms())  # For when the step comes again.
        if self.user is not None and not known:
            self.user.load_state_dict(_loaded(mine.parts["user"]))
        if self.scheduler is not None:
            self._schedule(step)
        self.opt._share = (step, *world)

    def _before(self, step: int, rank: int) -> _Kept:
        """What a rank kept with the step before, by itself or by whoever had that rank then."""
        mine = self._kept.get(step - 1)
        if mine is None or mine.rank != rank:
            own = self._found(step, rank)
            first = own or (self._found(step, 0) if rank else None) or mine
            parts = dict(own.parts) if own is not None else {}
            if self.user is not None:
                parts["user"] = first.parts.get("user", self._user_first) if first is not None \
                    else self._user_first
            self._find_place(step, first)
            mine = _Kept(step - 1, rank, (step, *self.sampler.plan.cursor(step)), parts)
        self._kept = {step - 1: mine}
        return mine

    def _find_place(self, step: int, kept: _Kept | None) -> None:
        """Where the data is in this step. A Sampler that was told keeps to it."""
        s = self.sampler
        if s._placed and step >= s.plan.step:
            return
        if kept is not None:
            s._place(*kept.place)
        elif step > 1:
            log.warning("shardd: no rank kept with step %d where the data was: going on as if all "
                        "steps had had a global batch of %d", step - 1, s.plan.batch)
            begun = s.plan._replace(step=1, epoch=0, offset=0)
            s._place(step, *begun.cursor(step))

    def _found(self, step: int, rank: int) -> _Kept | None:
        """The blob of a rank, if it was committed with the step before."""
        if step == 1:
            return None
        end = time.monotonic() + self.opt._session.timeout
        while True:
            try:
                got = self.opt._session.blob(rank)
                break
            except _c.Error as e:
                # All ranks have to find the same, so it is asked for again and not done without.
                if e.number not in (_c.UNREACHABLE, _c.BUSY, _c.STALE) or time.monotonic() > end:
                    raise
                time.sleep(0.05)
        kept = _Kept.read(got[0]) if got is not None else None
        if got is not None and got[1] == step - 1 and kept is None:
            log.warning("shardd: what rank %d kept with step %d is not of shardd.steps()", rank,
                        step - 1)
        return kept if kept is not None and got[1] == kept.step == step - 1 else None

    def _schedule(self, step: int) -> None:
        """Has the scheduler be where it is after step - 1 steps."""
        s = self.scheduler
        if s.last_epoch > step - 1:
            state, rates = self._first
            for g, lr in zip(self.opt.param_groups, rates):
                g["lr"] = lr
            s.load_state_dict(copy.deepcopy(state))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It is right that there was no opt.step() between.
            while s.last_epoch < step - 1:
                s.step()

    # --- its batches ---

    def _batches(self):
        opt, (rank, size), step = self.opt, self.world, self.step
        total = self.sampler.plan.total(step)
        counts = self.sampler._cut(len(share(total, rank, size)))
        opt._passes, opt.weight = opt.accumulate * max(1, len(counts)), 1.0
        for k, n in enumerate(counts):
            if opt._dead is not None:
                return  # The attempt is over, and so is what it would be computed for.
            batch = self._fetch(_Draw(step, rank, size, k))
            opt._gain = (n if self.mean else 1) * size / total
            yield batch

    def _fetch(self, wanted: _Draw):
        """The batch that was drawn for this. Batches that were drawn for a world or a step that is
        over come out of the loader before it, and are left out."""
        while True:
            fresh = self._batches_of is None
            if fresh:
                state = torch.get_rng_state()
                self._batches_of = iter(self.loader)
                torch.set_rng_state(state)  # An iterator takes a seed for its workers.
            for batch in self._batches_of:
                if self.sampler._draws.popleft() == wanted:
                    return batch
            self._batches_of = None
            if fresh:
                raise RuntimeError(f"shardd.steps: the loader ended before step {self.last}")
