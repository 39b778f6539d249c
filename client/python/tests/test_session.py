# SPDX-License-Identifier: Apache-2.0
"""A Session without torch: training against numpy, statuses as exceptions, and Ctrl-C."""

import ast
import concurrent.futures
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import shardd
from shardd import lib
from shardd.session import Session, TensorSpec

N = 5000


def define(s, name="m", settings="", tensors=(("w", (N,)), ("b", (7,))), seal=True):
    created = s.define(name, [TensorSpec(n, shape) for n, shape in tensors], [], lib.F32, lib.F32,
                       f"optimizer=adamw lr=0.01 weight_decay=0.1 {settings}")
    if created and seal:
        for i, (_, shape) in enumerate(tensors):
            w = np.arange(math.prod(shape), dtype=np.float32) / 1000
            s.write(lib.MASTER, i, w.ctypes.data, w.size, lib.F32)
        s.seal()
    return created


def at(address, n):
    return np.ctypeslib.as_array((lib.C.c_float * n).from_address(address))


def gradient(step, n):
    return np.sin(np.arange(n) * 0.1 + step).astype(np.float32)


def adamw(w, steps, n):
    """Loshchilov and Hutter 2019, algorithm 2, in fp64."""
    w, m, v = w.astype(np.float64), 0.0, 0.0
    for t in range(1, steps + 1):
        g = gradient(t, n).astype(np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w * (1 - 0.01 * 0.1)
        w = w - 0.01 * (m / (1 - 0.9 ** t)) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
    return w


def test_one_without_weights_waits_for_the_definer(address):
    def attach(wait):
        return Session(address).define(
            "m", [TensorSpec("w", (N,)), TensorSpec("b", (7,)), TensorSpec("none", (0, 3))], [],
            lib.F32, lib.F32, "optimizer=adamw lr=0.01 weight_decay=0.1 ", wait)

    with pytest.raises(lib.Timeout, match="the caller that holds its weights"):
        attach(0.1)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waits = pool.submit(attach, 60)
        s = Session(address)
        assert define(s, tensors=(("w", (N,)), ("b", (7,)), ("none", (0, 3))))
        assert waits.result() is False
    assert s.layout()[2].shape == (0, 3)


def test_it_trains_as_adamw_says(address):
    s = Session(address, timeout=60)
    assert define(s)
    world = s.join()
    assert (world.rank, world.world_size, world.step) == (0, 1, 1)
    for t in range(1, 6):
        assert s.begin(1.0) == t
        for i, n in enumerate((N, 7)):
            at(s.arena(i), n)[:] = gradient(t, n)
            s.push(i, n, lib.F32)
        r = s.commit(values=[t, 0.5, math.nan], clip=0)
        assert r.clip_factor == 1
        assert r.applied and r.step == t and r.world_size == 1
        assert r.values[:2] == (t, 0.5) and math.isnan(r.values[2])
        assert r.values[3:] == (0.0,) * 13
        norm = math.sqrt(sum(float((gradient(t, n).astype(np.float64) ** 2).sum()) for n in (N, 7)))
        assert r.grad_norm == pytest.approx(norm, rel=1e-6)
        s.wait(s.pull(0, N, t, None, lib.F32))
    want = adamw(np.arange(N, dtype=np.float32) / 1000, 5, N)
    assert np.allclose(at(s.image(0), N), want, rtol=1e-6, atol=1e-7)
    master = np.empty(N, dtype=np.float32)
    assert s.read(lib.MASTER, 0, master.ctypes.data, N, lib.F32) == 5
    assert np.array_equal(master, at(s.image(0), N))
    s.leave(10)
    s.disconnect()


def test_statuses_are_exceptions(address):
    s = Session(address, timeout=60)
    define(s)
    with pytest.raises(lib.Mismatch, match="lr"):
        Session(address).define("m", [TensorSpec("w", (N,)), TensorSpec("b", (7,))], [], lib.F32,
                                lib.F32, "optimizer=adamw lr=0.02 weight_decay=0.1")
    with pytest.raises(shardd.Error, match="no model") as e:
        Session(address).attach("other")
    assert e.value.status == "SHARD_NOT_FOUND" and not e.value.dead
    s.join()
    s.begin(1.0)
    s.push_none(0)
    with pytest.raises(shardd.DuplicatePush):
        s.push(0, N, lib.F32)
    with pytest.raises(shardd.Error, match="b"):
        s.commit()  # The other tensor is missing.
    with pytest.raises(shardd.Error, match="17 values: at most 16"):
        s.commit(values=[0.0] * 17)
    with pytest.raises(shardd.Error, match="clip is -1"):
        s.commit(clip=-1)
    s.abandon("a test")
    with pytest.raises(shardd.Error) as e:
        s.push_none(0)
    assert e.value.status == "SHARD_BAD_STATE"
    s.disconnect()
    with pytest.raises(shardd.Error) as e:
        Session("unix:/nowhere/socket")
    assert e.value.status == "SHARD_UNREACHABLE" and e.value.dead


def test_a_wait_ends_with_its_time(address):
    s = Session(address, timeout=0.5)
    define(s, settings="min_world=2 max_world=2")
    began = time.monotonic()
    with pytest.raises(shardd.Timeout, match="waited 0.5 s.*(min_world|trainer)"):
        s.join()
    assert 0.4 < time.monotonic() - began
    s.disconnect()


WAITS = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background ignores it.
sys.path.insert(0, {here!r})
import test_session as t
s = t.Session({address!r}, timeout=3600)
t.define(s, settings="min_world=2 max_world=2")
try:
    print("waits", flush=True)
    s.join()
except KeyboardInterrupt:
    print("interrupted", flush=True)
s.disconnect()
"""


def until_it_waits(p):
    """Until the main thread of a process is in poll()."""
    end = time.monotonic() + 60
    while "poll" not in pathlib.Path(f"/proc/{p.pid}/wchan").read_text():
        assert time.monotonic() < end and p.poll() is None
        time.sleep(0.01)


def test_ctrl_c_is_heard(address):
    """A trainer that waits for others ends with the first Ctrl-C."""
    here = os.path.dirname(os.path.abspath(__file__))
    p = subprocess.Popen([sys.executable, "-c", WAITS.format(here=here, address=address)],
                         text=True, stdout=subprocess.PIPE)
    assert p.stdout.readline() == "waits\n"
    until_it_waits(p)
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=60)[0] == "interrupted\n"
    assert p.returncode == 0


ON_SIGNAL = """
import os
import signal
import sys
sys.path.insert(0, {here!r})
import test_session as t
signal.alarm(60)
signal.signal(signal.SIGUSR1, lambda *what: print("heard", flush=True))
theirs = os.pipe()
os.set_blocking(theirs[1], False)
signal.set_wakeup_fd(theirs[1])  # As the loop of asyncio does.
s = t.Session({address!r}, timeout=3600)
s.attach("m")
print("waits", flush=True)
s.join()
print(s.begin(1.0), os.read(theirs[0], 9)[0] == signal.SIGUSR1, flush=True)
assert signal.set_wakeup_fd(-1) == theirs[1]
sys.stdin.readline()  # The other one would wait for ever for a world that it has not seen.
s.disconnect()
"""


def test_a_wait_goes_on_after_a_signal(address):
    """A handler that raises nothing runs while the call waits, and the call goes on."""
    here = os.path.dirname(os.path.abspath(__file__))
    a = Session(address, timeout=60)
    define(a, settings="min_world=2 max_world=2")
    p = subprocess.Popen([sys.executable, "-c", ON_SIGNAL.format(here=here, address=address)],
                         text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert p.stdout.readline() == "waits\n"
    for _ in range(3):
        until_it_waits(p)
        p.send_signal(signal.SIGUSR1)
        assert p.stdout.readline() == "heard\n"
    a.join()
    assert p.communicate("go\n", timeout=60)[0] == "1 True\n"
    assert p.returncode == 0
    a.disconnect()


def test_world_changes_are_told(address):
    """A second trainer comes between two steps, and goes; blobs are found by rank."""
    a, b = Session(address, timeout=60), Session(address, timeout=60)
    define(a, settings="min_world=1 max_world=2")
    define(b, settings="min_world=1 max_world=2")
    a.join()
    a.begin(1.0)
    a.set_blob(b"place 1")
    a.push_none(0)
    a.push_none(1)
    a.commit()
    assert a.blob(0) == (b"place 1", 1) and a.blob(1) is None
    import threading
    joined = threading.Thread(target=b.join)
    joined.start()
    with pytest.raises(shardd.WorldChanged):
        while True:  # It is told at the boundary between two steps.
            a.begin(1.0)
            a.push_none(0)
            a.push_none(1)
            a.commit()
    assert a.acknowledge().world_size == 2
    joined.join(60)
    assert b.world.world_size == 2 and {a.world.rank, b.world.rank} == {0, 1}
    assert sorted([*a.samples(5), *b.samples(5)]) == [0, 1, 2, 3, 4]
    b.disconnect()
    size = 2
    while size == 2:  # An attempt ends before the world without b is there.
        with pytest.raises(shardd.WorldChanged):
            a.begin(1.0)
            a.push_none(0)
            a.push_none(1)
            a.commit()
        size = a.acknowledge().world_size
    assert size == 1 and a.world.why
    a.disconnect()


def full(s):
    return np.concatenate([at(s.image(i), n).copy() for i, n in ((0, N), (1, 7))])


def test_parts_of_tensors_and_batches(address):
    """A tensor in parts, some of them without a gradient, equals one with zeros there."""
    ends = []
    for name in ("parts", "whole"):
        s = Session(address, timeout=60)
        define(s, name, settings="chunk_elems=1024")
        s.join()
        for t in range(1, 4):
            s.begin(1.0)
            g = gradient(t, N)
            g[500:3500] = 0
            g[3600:3700] = 0
            at(s.arena(0), N)[:] = g if name == "whole" else np.where(g == 0, 77, g)
            at(s.arena(1), 7)[:] = gradient(t, 7)
            if name == "whole":
                s.push_many()
            else:
                with pytest.raises(shardd.Error, match="RANGE"):
                    s.push_none(0, N - 5, 6)
                s.push(0, 500, lib.F32)
                s.push_none(0, 500, 3000)
                with pytest.raises(shardd.DuplicatePush, match="500 to 509"):
                    s.push(0, 10, lib.F32, 500)
                s.push_none(0, 3600, 100)
                s.push(0, 100, lib.F32, 3500)
                s.push(0, N - 3700, lib.F32, 3700)
                s.push_many([1])
                with pytest.raises(shardd.DuplicatePush):
                    s.push_many([1])
            r = s.commit([0.01])
            s.wait(s.pull_all(t))
            assert r.lr == 0.01
        ends.append((full(s), r.grad_norm))
        s.leave(10)
        s.disconnect()
    assert np.array_equal(ends[0][0], ends[1][0]) and ends[0][1] == ends[1][1]


def test_lr_at_commit(address):
    """It takes the place of the model's, and two ranks that differ are told."""
    s = Session(address, timeout=60)
    define(s)
    s.join()
    before = full(s)
    s.begin(1.0)
    at(s.arena(0), N)[:] = gradient(1, N)
    at(s.arena(1), 7)[:] = gradient(1, 7)
    s.push_many()
    with pytest.raises(shardd.Error, match="lr.0. is -1"):
        s.commit([-1.0])
    assert s.commit([0.0]).lr == 0.0
    s.wait(s.pull_all(1))
    assert np.array_equal(full(s), before)
    s.disconnect()


def test_ranks_that_differ_in_lr(address):
    import threading
    a, b = Session(address, timeout=60), Session(address, timeout=60)
    for s in (a, b):
        define(s, settings="min_world=2 max_world=2")
    other = threading.Thread(target=lambda: b.join(1))
    other.start()
    a.join(0)
    other.join(60)
    found = []

    def step(s, lr):
        s.begin(1.0)
        s.push_none(0)
        s.push_none(1)
        try:
            s.commit([lr])
        except shardd.Error as e:
            found.append(e)
    threads = [threading.Thread(target=step, args=x) for x in ((a, 0.01), (b, 0.02))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(found) == 2 and any("0.02" in str(e) for e in found)
    assert any(isinstance(e, shardd.Mismatch) for e in found)
    a.disconnect()
    b.disconnect()


def test_what_a_type_checker_sees_is_what_there_is():
    """The names that are imported when they are asked for, and py.typed, which the wheel has."""
    where = pathlib.Path(shardd.__file__)
    shown = {a.asname or a.name: i.module for i in ast.walk(ast.parse(where.read_text()))
             if isinstance(i, ast.ImportFrom) and i.level == 1 for a in i.names}
    assert {n: shown.get(n) for n in shardd._LAZY} == shardd._LAZY
    assert (where.parent / "py.typed").exists()
