# SPDX-License-Identifier: Apache-2.0
"""One trainer's part in one model, without torch: connection, definition, world, step.

A Session owns a connection and an attachment. Its calls are those of shard.h with Python's types:
they raise the exceptions of lib.py, hear Ctrl-C while they wait, and know no tensors but addresses.
Optimizer is the only caller that trains. The happy path is Session(), define(), write() and seal()
by the one that gets created, join(), and then begin(), push(), commit() for each step. When a step
is over before its time, a call raises WorldChanged or RolledBack; acknowledge() says which step
comes next.
"""

from __future__ import annotations

import ctypes as C
import json
import logging
import math
import os
import time
from typing import NamedTuple, Sequence

from . import lib as _c

log = logging.getLogger("shardd")

SOCKET = "/run/shardd/shardd.sock"
SAVE_S = 3600.0      # So long a save may take.
SAVE_LOOK_S = 0.02   # So often it is asked whether the save of somebody else has ended.


class TensorSpec(NamedTuple):
    """One tensor of a model that is defined.

    name: 1 to 255 bytes of UTF-8. shape: up to 8 dimensions. group: index into the groups.
    flags: 0 or lib.FROZEN. image: its dtype in the image; 0: the one of the model. grad: that of
    its gradients, which layout() tells.
    """

    name: str
    shape: tuple[int, ...]
    group: int = 0
    flags: int = 0
    image: int = 0
    grad: int = 0


class World(NamedTuple):
    """Who trains, as this trainer sees it."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    step: int  # The step to begin next: the last one that was committed, plus one.
    why: str   # Why the world changed, or "".


class Result(NamedTuple):
    """A step that was decided.

    applied        whether it changed the weights
    reason         "" or why it was skipped: "nonfinite" or "vote". "world": a trainer came or went,
                   or a node did, and nothing else here is known of the step
    step           which step
    grad_norm      the global norm before the clip, without loss scale; nan if it was skipped
    clip_factor    what the gradient was multiplied by
    weight_sum     the sum of the weights of all ranks
    loss_scale     the loss scale of this step, and next_loss_scale that of the next one
    lr             the learning rate of group 0
    world_size     all trainers of this step
    slowest_rank   the rank that took longest, or -1
    bad_tensor     index of the first tensor with a gradient that is Inf or NaN, or -1
    bad_rank       the first rank that pushed it, or -1
    wait_ms        how long this trainer's calls waited, in milliseconds
    applied_steps  how many steps have changed the weights so far: the t of Adam's bias correction
    values         16 numbers: what the ranks gave to commit(), each summed in rank order
    """

    applied: bool
    reason: str
    step: int
    grad_norm: float
    clip_factor: float
    weight_sum: float
    loss_scale: float
    next_loss_scale: float
    lr: float
    world_size: int
    slowest_rank: int
    bad_tensor: int
    bad_rank: int
    wait_ms: float
    applied_steps: int
    values: tuple[float, ...] = (0.0,) * _c.VALUES


def share(global_batch: int, rank: int, world_size: int) -> range:
    """Which samples of a global batch are a rank's: shard_samples(). It may be none."""
    w = _c.World(rank=rank, world_size=world_size)
    first, count = _c.u64(), _c.u64()
    _c.check(_c.libshard().shard_samples(C.byref(w), global_batch, C.byref(first),
                                         C.byref(count)))
    return range(first.value, first.value + count.value)


def default_address(name: str) -> str:
    """Where a trainer connects to if nobody says: $SHARD_ADDRESS, the daemon of this node, or a
    private daemon of this user that is started now and shared by all processes that name it."""
    given = os.environ.get("SHARD_ADDRESS")
    if given:
        return given
    return f"unix:{SOCKET}" if os.path.exists(SOCKET) else f"spawn:{name}"


class Saving:
    """A checkpoint that the daemons write while training goes on."""

    def __init__(self, session: Session, ticket: int):
        self._session, self._ticket = session, ticket

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        try:
            self._session.wait(self._ticket, 0)
        except _c.Timeout:
            return False
        except _c.Error:
            pass
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the checkpoint is whole. timeout: in seconds; default: an hour.

        Error, with the reason: it will not be. With the status SHARD_BUSY another save was under
        way. Timeout: it is not whole yet, and goes on."""
        self._session.wait(self._ticket,
                           max(SAVE_S, self._session.timeout) if timeout is None else timeout)


class Session:
    """One connection to a daemon, and the model that it is attached to.

    address: unix:/path, tcp://host:port or spawn:NAME. secret: over TCP, the file of the key.
    tls: over TCP, off, psk, or a folder with tls.crt, tls.key and ca.crt; None takes $SHARD_TLS.
    timeout: seconds that any call waits; connect_timeout: that connecting may take.
    Any thread may use it, but one at a time, except for push(), which several may call.
    """

    def __init__(self, address: str, *, secret: str | None = None,
                 tls: str | None = None, timeout: float = 300.0,
                 connect_timeout: float = 20.0):
        self.lib = _c.libshard()
        self.address, self.timeout = address, timeout
        self.world: World | None = None
        self.loss_scale = 1.0
        self._client, self._model = _c.client(), _c.model()
        self._pid = os.getpid()
        opts = _c.ConnectOpts(address=address.encode(), secret=secret.encode() if secret else None,
                              tls=tls.encode() if tls else None,
                              timeout_ms=max(1, int(1000 * connect_timeout)),
                              look_ms=-1)  # Parameters are its image: find_again() looks.
        if address.startswith("spawn:"):
            # A trainer that crashed and starts again has to find its model.
            os.environ.setdefault("SHARD_LINGER", "300s")
        _c.check(self.lib.shard_connect(C.byref(self._client), C.byref(opts)))

    # --- the model ---

    def define(self, name: str, tensors: Sequence[TensorSpec], groups: Sequence[tuple[str, str]],
               image: int, grad: int, settings: str, wait: float = 0) -> bool:
        """Defines a model or attaches to the equal one. True: write the weights, then seal().

        wait: not 0 for a process that does not hold the weights. It waits so many seconds until
        another one has defined the model, and is never the one that writes."""
        rows = (_c.Tensor * len(tensors))()
        for row, t in zip(rows, tensors):
            row.name, row.group, row.flags = t.name.encode(), t.group, t.flags
            row.image = t.image
            row.ndim = len(t.shape)
            row.shape[:len(t.shape)] = list(t.shape)
        heads = (_c.Group * max(1, len(groups)))(
            *[_c.Group(g.encode(), s.encode()) for g, s in groups])
        spec = _c.Spec(name=name.encode(), tensors=rows, tensors_nr=len(tensors), groups=heads,
                       groups_nr=len(groups), image=image, grad=grad, settings=settings.encode(),
                       wait_ms=max(1, int(wait * 1000)) if wait else 0)
        created = C.c_int(0)
        _c.interruptibly(self._client, lambda: _c.check(self.lib.shard_define(
            self._client, C.byref(spec), C.byref(self._model), C.byref(created))))
        return bool(created.value)

    def attach(self, name: str) -> None:
        """Attaches to a model that there is."""
        _c.interruptibly(self._client, lambda: _c.check(self.lib.shard_attach(
            self._client, name.encode(), C.byref(self._model))))

    def restore(self, folder: str, tag: str | None, name: str) -> None:
        """Makes the model of that name as a checkpoint has it, and attaches to it."""
        _c.interruptibly(self._client, lambda: _c.check(self.lib.shard_restore(
            self._client, folder.encode(), tag.encode() if tag else None, name.encode(),
            C.byref(self._model))))

    def detach(self) -> None:
        """Ends the attachment. The model stays as it is."""
        self.world = None
        self.lib.shard_detach(C.byref(self._model))

    def drop(self, name: str, force: bool = False) -> None:
        """Frees a model on all nodes. Its checkpoints stay. A save that is under way, as the one of
        checkpoint_every at the last step, ends before it."""
        end, told = time.monotonic() + SAVE_S, False
        while True:
            try:
                return _c.interruptibly(self._client, lambda: _c.check(self.lib.shard_drop(
                    self._client, name.encode(), int(force))))
            except _c.Error as e:
                if "is being saved" not in e.sentence or time.monotonic() > end:
                    raise
                if not told:
                    log.info("shardd: model %r ends when its checkpoint is whole", name)
                told = True
            time.sleep(SAVE_LOOK_S)

    def layout(self) -> list[TensorSpec]:
        """The tensors of the model, in the order of their numbers."""
        rows = []
        for i in range(self.lib.shard_tensors(self._model)):
            info = _c.Info()
            _c.check(self.lib.shard_tensor_info(self._model, i, C.byref(info)))
            rows.append(TensorSpec(info.name.decode(), tuple(info.shape[:info.ndim]), info.group,
                                   info.flags, info.image, info.grad))
        return rows

    def write(self, kind: int, tensor: int, address: int, count: int, dtype: int) -> None:
        """Writes initial weights or moments of a whole tensor from memory at `address`."""
        if count:
            _c.check(self.lib.shard_write(self._model, kind, tensor, 0, count, dtype, address))

    def seal(self, step: int = 0) -> None:
        """Says that the weights are complete, and that they are of `step`."""
        _c.interruptibly(self._client, lambda: _c.check(self.lib.shard_seal(self._model, step)))

    def read(self, kind: int, tensor: int, address: int, count: int, dtype: int,
             step: int = 0) -> int:
        """Reads a whole tensor into memory at `address`. Returns the step that it is of; where it
        has no elements, `step`."""
        at = _c.u64(step)
        if count:
            _c.check(self.lib.shard_read(self._model, kind, tensor, 0, count, dtype, address,
                                         C.byref(at)))
        return at.value

    def wait_for_weights(self) -> None:
        """Waits until whoever defined the model has written its weights and sealed it."""
        end, probe = time.monotonic() + self.timeout, _c.u64()
        tensor = next((i for i, t in enumerate(self.layout()) if 0 not in t.shape), 0)
        buffer = C.create_string_buffer(4)
        while True:
            got = self.lib.shard_read(self._model, _c.MASTER, tensor, 0, 1, _c.F32, buffer,
                                      C.byref(probe))
            if got != _c.BAD_STATE or time.monotonic() > end:
                _c.check(got)
                return
            time.sleep(0.01)

    def set(self, key: str, value: str) -> None:
        """Changes a setting of the model from the next step on."""
        _c.check(self.lib.shard_set(self._model, key.encode(), value.encode()))

    # --- the world ---

    def join(self, rank_hint: int = -1) -> World:
        """Joins the world, and waits for the first attempt that this trainer is part of."""
        world = _c.World()
        _c.patiently(self._client, self.timeout, lambda ms: self.lib.shard_join(
            self._model, rank_hint, ms, C.byref(world)))
        return self._is(world)

    def acknowledge(self) -> World:
        """After WorldChanged or RolledBack: the world as it is now."""
        world = _c.World()
        _c.check(self.lib.shard_world_get(self._model, C.byref(world)))
        return self._is(world)

    def _is(self, w: _c.World) -> World:
        self.world = World(w.rank, w.world_size, w.local_rank, w.local_size, w.step,
                           (w.why or b"").decode(errors="replace"))
        return self.world

    def samples(self, global_batch: int) -> range:
        """Which samples of a global batch are this trainer's in the world as it is."""
        return share(global_batch, self.world.rank, self.world.world_size)

    def leave(self, timeout: float) -> None:
        """Leaves the world at a boundary between two steps."""
        _c.patiently(self._client, timeout, lambda ms: self.lib.shard_leave(self._model, ms))
        self.world = None

    # --- the step ---

    def begin(self, weight: float) -> int:
        """Begins a step, and returns its number. loss_scale is then the one of this step."""
        opts, step = _c.BeginOpts(weight=weight), _c.Step()
        end = time.monotonic() + self.timeout
        while True:
            got = _c.heard(self._client, lambda: self._shard_begin(opts, step))
            if got != _c.TIMEOUT or time.monotonic() > end:
                break
        _c.check(got)
        self.loss_scale = step.loss_scale
        return step.step

    def _shard_begin(self, opts: _c.BeginOpts, step: _c.Step) -> int:
        return self.lib.shard_begin(self._model, C.byref(opts), C.byref(step))

    def push(self, tensor: int, count: int, dtype: int, first: int = 0) -> None:
        """Gives the gradient of a tensor, or of a part of it, that lies in the arena already."""
        _c.check(self.lib.shard_push(self._model, tensor, first, count, None, dtype, 0, None))

    def push_many(self, tensors: Sequence[int] | None = None) -> None:
        """Gives the gradients of whole tensors that lie in the arena already. None: of all."""
        which = None if tensors is None else (_c.u32 * len(tensors))(*tensors)
        _c.check(self.lib.shard_push_many(self._model, which, len(tensors or ())))

    def push_none(self, tensor: int, first: int = 0, count: int | None = None) -> None:
        """Says that a tensor, or a range of its elements, has no gradient in this step."""
        if count is None:
            _c.check(self.lib.shard_push_none(self._model, tensor))
        else:
            _c.check(self.lib.shard_push_none_range(self._model, tensor, first, count))

    def commit(self, lr: Sequence[float] | None = None,
               values: Sequence[float] | None = None, clip: float | None = None) -> Result:
        """Says that the gradients of this trainer are complete, and waits for the decision.

        lr: one learning rate per group, equal on all ranks. None: the model's schedule.
        values: up to 16 numbers, as loss and tokens. Result.values has them summed over the ranks.
        clip: the largest norm, for this step alone, equal on all ranks. 0: none. None: the model's.
        """
        which, r, opts = _c.ticket(), _c.StepResult(), _c.CommitOpts()
        if lr is not None:
            opts.lr = (_c.double * len(lr))(*lr)
        if clip is not None:
            opts.clip = C.pointer(_c.double(clip))
        if values is not None:
            opts.values, opts.values_nr = (_c.double * len(values))(*values), len(values)
        _c.check(self.lib.shard_commit_opts(self._model, C.byref(opts), C.byref(which)))
        _c.patiently(self._client, self.timeout, lambda ms: self.lib.shard_result(
            self._model, which, ms, C.byref(r)))
        reason = {_c.APPLIED: "", _c.SKIPPED_NONFINITE: "nonfinite"}.get(r.outcome, "vote")
        self.world = self.world._replace(step=r.step + 1, why="")
        slowest = -1 if r.slowest_rank == 0xffffffff else r.slowest_rank
        return Result(r.outcome == _c.APPLIED, reason, r.step, r.grad_norm, r.clip_factor,
                      r.weight_sum, r.loss_scale, r.next_loss_scale, r.lr, r.world_size, slowest,
                      r.bad_tensor, r.bad_rank, r.wait_ns / 1e6, r.applied, tuple(r.values))

    def no_result(self, step: int, lr: float) -> Result:
        """Of a step that this trainer has no result of, because its attempt is over."""
        return Result(False, "world", step, math.nan, 1.0, 0.0, self.loss_scale, self.loss_scale,
                      float(lr), self.world.world_size, -1, -1, -1, 0.0, 0)

    def abandon(self, why: str) -> None:
        """Gives up the attempt: all ranks make the next one at the same step."""
        _c.check(self.lib.shard_abandon(self._model, why.encode()[:255]))

    def pull(self, tensor: int, count: int, step: int, address: int | None, dtype: int) -> int:
        """Asks for a whole tensor as `step` left it. Returns a ticket for wait()."""
        which = _c.ticket()
        _c.check(self.lib.shard_pull(self._model, tensor, 0, count, step, address, dtype,
                                     C.byref(which)))
        return which.value

    def pull_all(self, step: int) -> int:
        """Asks for the whole image as `step` left it. Returns a ticket for wait()."""
        which = _c.ticket()
        _c.check(self.lib.shard_pull_all(self._model, step, C.byref(which)))
        return which.value

    def wait(self, ticket: int, timeout: float | None = None) -> None:
        """Waits for a ticket and all before it."""
        _c.patiently(self._client, self.timeout if timeout is None else timeout,
                     lambda ms: self.lib.shard_wait(self._model, ticket, ms))

    def image(self, tensor: int) -> int:
        """The address of a tensor's parameters. The memory is read-only."""
        return self._address(self.lib.shard_image(self._model, tensor))

    def keep_image(self, timeout: float) -> _c.Kept:
        """A copy of the image at the addresses that image() gave. The connection goes on with
        others, and only shard_unmap() ends the copy."""
        kept = _c.Kept()
        _c.patiently(self._client, timeout, lambda ms: self.lib.shard_keep(
            self._model, _c.IMAGE, ms, C.byref(kept)))
        return kept

    def arena(self, tensor: int) -> int:
        """The address where a tensor's gradient is written."""
        return self._address(self.lib.shard_grad(self._model, tensor))

    def _address(self, address: int | None) -> int:
        if not address:
            raise _c.error_of(_c.BAD_STATE)
        return address

    # --- what else a trainer keeps ---

    def save(self, folder: str | None, tag: str | None, client: str | None = None) -> Saving:
        """Has the daemons write a checkpoint of the last step.

        client: a folder whose plain files become the checkpoint's folder client, with everything
        else or not at all. Until the save has ended nobody changes it. Not over TCP."""
        which, opts = _c.ticket(), _c.SaveOpts()
        for word, path in (("dir", folder), ("tag", tag), ("client", client)):
            setattr(opts, word, path.encode() if path else None)
        _c.check(self.lib.shard_save_as(self._model, C.byref(opts), C.byref(which)))
        return Saving(self, which.value)

    def save_after_others(self, folder: str | None, tag: str | None,
                          client: str | None = None) -> None:
        """save() and wait for it. If another save is under way, as one of checkpoint_every, that
        one ends first."""
        end = time.monotonic() + max(SAVE_S, self.timeout)
        while True:
            try:
                return self.save(folder, tag, client).wait(end - time.monotonic())
            except _c.Error as e:
                if e.number != _c.BUSY or time.monotonic() > end:
                    raise
            time.sleep(SAVE_LOOK_S)

    def set_blob(self, data: bytes) -> None:
        """Keeps bytes with the step in hand. They count when the step does."""
        _c.check(self.lib.shard_set_blob(self._model, data, len(data)))

    def blob(self, rank: int) -> tuple[bytes, int] | None:
        """The newest bytes that a rank kept, and the step that they were kept with."""
        room, step = _c.size_t(65536), _c.u64()
        buffer = C.create_string_buffer(room.value)
        got = _c.check(self.lib.shard_blob(self._model, rank, buffer, C.byref(room), C.byref(step)),
                       _c.NOT_FOUND)
        return None if got == _c.NOT_FOUND else (buffer.raw[:room.value], step.value)

    def status(self, name: str) -> dict | None:
        """What `shardctl status --json` shows of a model, or None if there is none of that name."""
        return next((m for m in self._stats()["models"] if m["name"] == name), None)

    def alone(self) -> bool:
        """Whether no other connection to this daemon is open, of whatever process."""
        return self._stats()["connections"] == 1

    def _stats(self) -> dict:
        room = _c.size_t(0)
        got = self.lib.shard_stats(self._client, None, C.byref(room))
        while got == _c.RANGE:
            room.value += 1024
            buffer = C.create_string_buffer(room.value)
            got = self.lib.shard_stats(self._client, buffer, C.byref(room))
        _c.check(got)
        return json.loads(buffer.value)

    def disconnect(self) -> None:
        """Ends the connection. Every address that it gave is invalid from then on."""
        self.world = None
        self.lib.shard_disconnect(C.byref(self._client))
        self._model = _c.model()
