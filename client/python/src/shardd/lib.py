# SPDX-License-Identifier: Apache-2.0
"""libshard in Python: its structs, its functions, and its statuses as exceptions.

This module is the only one that knows the C library. It finds the library, declares each function
of shard.h once, and turns each status that is not normal life into an exception with the sentence
of shard_error(). It needs no torch. Nothing is compiled at the user's: ctypes calls the shared
library, and every struct carries its size, so that library and package may be of two releases.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import math
import os
import pathlib
import signal
import threading
import time

__all__ = ["Error", "WorldChanged", "RolledBack", "Timeout", "Mismatch", "Lost", "Closed",
           "DuplicatePush", "Unsupported", "Diverged", "libshard", "check", "patiently"]

u32, u64, i32, i64 = C.c_uint32, C.c_uint64, C.c_int32, C.c_int64
size_t, double, text, void = C.c_size_t, C.c_double, C.c_char_p, C.c_void_p
status = C.c_int

# enum shard_dtype
F32, BF16, F16 = 1, 2, 3
# enum shard_kind
IMAGE, MASTER, EXP_AVG, EXP_AVG_SQ, MOMENTUM, GRAD = 1, 2, 3, 4, 5, 6
# flags of a tensor, of a push
FROZEN = 1
ADD, CAST, SHARE, DEVICE = 1, 2, 4, 8
# enum shard_outcome
APPLIED, SKIPPED_NONFINITE, SKIPPED_VOTE = 1, 2, 3
# enum shard_status
OK, AGAIN, TIMEOUT, INTERRUPTED, WORLD_CHANGED, ROLLED_BACK = 0, 1, 2, 3, 10, 11
(BAD_ARG, BAD_STATE, RANGE, DUPLICATE, DTYPE, MISSING, STALE, MISMATCH, BUDGET, DENIED, NOT_FOUND,
 EXISTS, BUSY, UNSUPPORTED, SYSTEM, DIVERGED) = range(20, 36)
UNREACHABLE, CLOSED, VERSION, PROTOCOL, LOST, FORKED = range(60, 66)

NO_SAMPLES = -1e300  # The weight of a trainer that has no sample in a step.
VALUES = 16  # The most numbers that a trainer gives with a step.


class Sized(C.Structure):
    """A struct whose first field is its size, as SHARD_INIT() makes it."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.size = C.sizeof(self)


class ConnectOpts(Sized):
    _fields_ = [("size", size_t), ("address", text), ("secret", text), ("timeout_ms", i64),
                ("log", void), ("log_arg", void), ("look_ms", i64), ("tls", text)]


class Tensor(C.Structure):
    _fields_ = [("name", text), ("ndim", u32), ("group", u32), ("flags", u32), ("shape", u64 * 8),
                ("reserved", u64 * 3), ("image", u32), ("reserved_32", u32)]


class Group(C.Structure):
    _fields_ = [("name", text), ("settings", text)]


class Spec(Sized):
    _fields_ = [("size", size_t), ("name", text), ("tensors", C.POINTER(Tensor)),
                ("tensors_nr", u32), ("groups", C.POINTER(Group)), ("groups_nr", u32),
                ("image", C.c_int), ("grad", C.c_int), ("settings", text), ("wait_ms", i64)]


class Info(Sized):
    _fields_ = [("size", size_t), ("name", text), ("offset", u64), ("numel", u64), ("group", u32),
                ("flags", u32), ("ndim", u32), ("shape", u64 * 8), ("image", u32),
                ("grad", u32), ("image_offset", u64), ("mapped", u64)]


class World(Sized):
    _fields_ = [("size", size_t), ("rank", u32), ("world_size", u32), ("local_rank", u32),
                ("local_size", u32), ("term", u64), ("seq", u64), ("step", u64), ("why", text)]


class BeginOpts(Sized):
    _fields_ = [("size", size_t), ("weight", double), ("micro_steps", u32),
                ("lr", C.POINTER(double))]


class CommitOpts(Sized):
    _fields_ = [("size", size_t), ("lr", C.POINTER(double)), ("values", C.POINTER(double)),
                ("values_nr", u32), ("clip", C.POINTER(double))]


class SaveOpts(Sized):
    _fields_ = [("size", size_t), ("dir", text), ("tag", text), ("client", text)]


class Kept(Sized):
    _fields_ = [("size", size_t), ("base", void), ("bytes", size_t), ("step", u64), ("mixed", u32)]


class FaultRange(C.Structure):
    _fields_ = [("base", void), ("bytes", size_t), ("text", text)]


class Faults(Sized):
    _fields_ = [("size", size_t), ("ranges", C.POINTER(FaultRange)), ("ranges_nr", size_t)]


class Step(Sized):
    _fields_ = [("size", size_t), ("step", u64), ("attempt", u64), ("rank", u32),
                ("world_size", u32), ("loss_scale", double)]


class StepResult(Sized):
    _fields_ = [("size", size_t), ("outcome", C.c_int), ("step", u64), ("applied", u64),
                ("attempts", u64), ("skipped_in_row", u64), ("grad_norm", double),
                ("clip_factor", double), ("weight_sum", double), ("loss_scale", double),
                ("next_loss_scale", double), ("lr", double), ("bad_tensor", i64),
                ("bad_rank", i32), ("wait_ns", u64), ("reduce_ns", u64), ("apply_ns", u64),
                ("pushed_bytes", u64), ("pulled_bytes", u64), ("world_size", u32),
                ("slowest_rank", u32), ("values", double * VALUES)]


STRUCTS = {  # The name of each in shard.h.
    "shard_connect_opts": ConnectOpts, "shard_tensor": Tensor, "shard_group": Group,
    "shard_spec": Spec, "shard_info": Info, "shard_world": World, "shard_begin_opts": BeginOpts,
    "shard_commit_opts": CommitOpts, "shard_step": Step, "shard_save_opts": SaveOpts,
    "shard_kept": Kept, "shard_result": StepResult, "shard_fault_range": FaultRange,
    "shard_faults": Faults,
}

client = model = void  # Handles.
ticket = u64
_p = C.POINTER

FUNCTIONS = {  # The result and the arguments of each.
    "shard_version": (text, []),
    "shard_name": (text, [status]),
    "shard_error": (text, []),
    "shard_connect": (status, [_p(client), _p(ConnectOpts)]),
    "shard_disconnect": (None, [_p(client)]),
    "shard_fd": (C.c_int, [client]),
    "shard_progress": (status, [client]),
    "shard_interrupt": (None, [client]),
    "shard_define": (status, [client, _p(Spec), _p(model), _p(C.c_int)]),
    "shard_attach": (status, [client, text, _p(model)]),
    "shard_detach": (None, [_p(model)]),
    "shard_drop": (status, [client, text, C.c_int]),
    "shard_set": (status, [model, text, text]),
    "shard_tensors": (u32, [model]),
    "shard_tensor_info": (status, [model, u32, _p(Info)]),
    "shard_find": (status, [model, text, _p(u32)]),
    "shard_write": (status, [model, C.c_int, u32, u64, u64, C.c_int, void]),
    "shard_seal": (status, [model, u64]),
    "shard_read": (status, [model, C.c_int, u32, u64, u64, C.c_int, void, _p(u64)]),
    "shard_save": (status, [model, text, text, _p(ticket)]),
    "shard_save_as": (status, [model, _p(SaveOpts), _p(ticket)]),
    "shard_restore": (status, [client, text, text, text, _p(model)]),
    "shard_join": (status, [model, C.c_int, i64, _p(World)]),
    "shard_world_get": (status, [model, _p(World)]),
    "shard_leave": (status, [model, i64]),
    "shard_samples": (status, [_p(World), u64, _p(u64), _p(u64)]),
    "shard_begin": (status, [model, _p(BeginOpts), _p(Step)]),
    "shard_grad": (void, [model, u32]),
    "shard_push": (status, [model, u32, u64, u64, void, C.c_int, u32, _p(ticket)]),
    "shard_push_many": (status, [model, _p(u32), u32]),
    "shard_push_none": (status, [model, u32]),
    "shard_push_none_range": (status, [model, u32, u64, u64]),
    "shard_commit": (status, [model, _p(ticket)]),
    "shard_commit_opts": (status, [model, _p(CommitOpts), _p(ticket)]),
    "shard_vote_skip": (status, [model, text]),
    "shard_abandon": (status, [model, text]),
    "shard_result": (status, [model, ticket, i64, _p(StepResult)]),
    "shard_image": (void, [model, u32]),
    "shard_pull": (status, [model, u32, u64, u64, u64, void, C.c_int, _p(ticket)]),
    "shard_pull_all": (status, [model, u64, _p(ticket)]),
    "shard_wait": (status, [model, ticket, i64]),
    "shard_test": (status, [model, ticket]),
    "shard_set_blob": (status, [model, void, size_t]),
    "shard_blob": (status, [model, u32, void, _p(size_t), _p(u64)]),
    "shard_keep": (status, [model, C.c_int, i64, _p(Kept)]),
    "shard_unmap": (None, [_p(Kept)]),
    "shard_explain_faults": (status, [_p(Faults)]),
    "shard_region": (status, [model, C.c_int, _p(void), _p(size_t)]),
    "shard_device_region": (status, [model, C.c_int, C.c_char_p, _p(C.c_int), _p(size_t)]),
    "shard_stats": (status, [client, void, _p(size_t)]),
}


# --- statuses as exceptions ---


class Error(RuntimeError):
    """A call of libshard failed. Its text is the sentence of shard_error().

    status  the name in shard.h, as "SHARD_TIMEOUT"
    number  its number
    dead    the connection or the model is over: make a new Optimizer
    """

    def __init__(self, number: int, sentence: str, name: str = ""):
        super().__init__(f"{name or number}: {sentence}")
        self.status, self.number, self.sentence = name, number, sentence
        self.dead = number >= UNREACHABLE

    def __reduce__(self):
        # A worker's exception reaches its parent by pickle, and the parent would wait for ever.
        return type(self), (self.number, self.sentence, self.status)


class WorldChanged(Error):
    """Trainers came or went: the attempt at the step is over, and the step begins again."""


class RolledBack(Error):
    """The model went back to a checkpoint. The step to begin next is an older one."""


class Timeout(Error):
    """It has not happened in time. The text says who is waited for."""


class Mismatch(Error):
    """Two that have to be equal are not: settings, shapes, learning rates of ranks."""


class Lost(Error):
    """The weights of the model are gone, and no checkpoint brought them back."""


class Closed(Error):
    """The connection is over, because the daemon stopped, died or ended it."""


class DuplicatePush(Error):
    """A gradient was pushed twice in one step."""


class Unsupported(Error):
    """The daemon is too old for it."""


class Diverged(Error):
    """The loss scale is at its floor, or too many steps in a row were skipped."""


_CLASSES = {WORLD_CHANGED: WorldChanged, ROLLED_BACK: RolledBack, TIMEOUT: Timeout,
            MISMATCH: Mismatch, LOST: Lost, CLOSED: Closed, DUPLICATE: DuplicatePush,
            UNSUPPORTED: Unsupported, DIVERGED: Diverged}


def class_of(number: int) -> type[Error]:
    """The class of the exception for a status."""
    return _CLASSES.get(number, Error)


def error_of(number: int) -> Error:
    """The exception for a status that a call of this thread just returned."""
    lib = libshard()
    return class_of(number)(number, lib.shard_error().decode(errors="replace"),
                                       lib.shard_name(number).decode())


def check(number: int, *allowed: int) -> int:
    """Returns `number` if it is SHARD_OK or one of `allowed`, and else raises its exception."""
    if number != OK and number not in allowed:
        raise error_of(number)
    return number


# --- the library ---


def _candidates() -> list[str]:
    """Where the library may be, the first choice first."""
    here = pathlib.Path(__file__).resolve().parent
    if os.environ.get("SHARDD_LIB"):
        return [os.environ["SHARDD_LIB"]]
    return [str(here / "_native" / "lib" / "libshard.so.0"), "libshard.so.0"]


@functools.lru_cache(maxsize=1)
def libshard() -> C.CDLL:
    """The library, loaded once, with all functions declared.

    It is $SHARDD_LIB, or the one in this package, or the one that the system has. Raises
    ImportError if there is none, and names the places.
    """
    tried = []
    for path in _candidates():
        try:
            lib = C.CDLL(path, use_errno=True)
        except OSError as e:
            tried.append(f"{path} ({e})")
            continue
        missing = []
        for name, (result, arguments) in FUNCTIONS.items():
            try:
                function = getattr(lib, name)
            except AttributeError:
                missing.append(name)
                continue
            function.restype, function.argtypes = result, arguments
        if missing:
            raise ImportError(f"shardd: {path} lacks {', '.join(missing)}: it is of an older "
                              "release than this package. Install both of one release.")
        _find_daemon(path)
        return lib
    raise ImportError("shardd: libshard.so.0 is not to be found. Tried " + "; ".join(tried) +
                      ". Install the wheel or the Debian package libshard0, or set SHARDD_LIB.")


def _find_daemon(library: str) -> None:
    """Lets spawn: find the daemon of this package, unless the user named another one."""
    daemon = pathlib.Path(library).parent.parent / "bin" / "shardd"
    if library.startswith("/") and daemon.exists():
        os.environ.setdefault("SHARD_DAEMON", str(daemon))


# --- calls that wait ---


class _Watcher:
    """Ends the call that the main thread waits in when a signal comes, so that its handler can run.

    Python's own C handler of signals writes a byte to the wakeup file descriptor. A thread reads it
    and calls shard_interrupt(). There is one of these in a process.
    """

    def __init__(self):
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._client = None  # Of the call that the main thread is in.
        self._call = 0       # Which call that is.
        self._theirs = -1    # The descriptor that somebody else, as asyncio, had set.
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        threading.Thread(target=self._run, name="shardd-signals", daemon=True).start()

    @classmethod
    def get(cls) -> "_Watcher":
        """The one of this process. A forked child has no thread of its parent's."""
        global _watcher
        if _watcher is None or _watcher._pid != os.getpid():
            _watcher = cls()
        return _watcher

    def guard(self, client_handle, call):
        """Returns what call() does. The main thread's only."""
        self._call += 1
        self._client = client_handle
        self._theirs = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        try:
            return call()
        finally:
            self._client = None
            with self._lock:  # An interrupt that is under way is over before the handle may go.
                signal.set_wakeup_fd(self._theirs)

    def _run(self) -> None:
        while True:
            came, call = os.read(self._out, 4096), self._call
            if self._theirs >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._theirs, came)
            # The signal may be there just before the call waits, and does not end it then.
            while self._interrupt(call):
                time.sleep(0.01)

    def _interrupt(self, call: int) -> bool:
        with self._lock:
            client_handle = self._client
            if client_handle is None or call != self._call:
                return False
            libshard().shard_interrupt(client_handle)
            return True


_watcher: _Watcher | None = None


def heard(client_handle, call) -> int:
    """Makes a call that waits, and hears signals meanwhile: Ctrl-C ends it.

    call() returns a status, as this does. It is made again after a signal whose handler raised
    nothing, so it has to be one that may be. Any thread may call it; signals are the main thread's.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    while True:
        number = _Watcher.get().guard(client_handle, call)
        if number != INTERRUPTED:
            return number


def patiently(client_handle, timeout: float, call, *allowed: int) -> int:
    """heard(), with a time limit in seconds: call(timeout_ms). Raises what the status says, unless
    it is SHARD_OK or one of `allowed`."""
    end = time.monotonic() + timeout

    def once() -> int:
        return call(max(0, math.ceil(1000 * (end - time.monotonic()))))

    return check(heard(client_handle, once), *allowed)


def interruptibly(client_handle, call):
    """Makes a call that may not be made again after it was interrupted. Only an exception in a
    signal's handler ends it.

    It runs in a thread of its own, so that handlers run meanwhile. Returns what call() returns, and
    raises what it raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    done: list = []

    def run():
        try:
            done.append((call(), None))
        except BaseException as e:  # It is raised again below, in the caller's thread.
            done.append((None, e))

    thread = threading.Thread(target=run, name="shardd-call", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return call()  # Python 3.12.1 starts no thread at exit. Nothing can end the call then.
    try:
        while thread.is_alive():
            thread.join(0.2)
    except BaseException:
        libshard().shard_interrupt(client_handle)
        thread.join()
        raise
    value, error = done[0]
    if error is not None:
        raise error
    return value
