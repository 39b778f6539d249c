# SPDX-License-Identifier: Apache-2.0
"""Processes of forks.py are as those of `python -c`, and what happens to them is not hidden."""

import json
import os
import signal
import subprocess
import sys

import pytest

import forks

LOOK = """
import atexit, json, os, signal, sys, threading
atexit.register(print, "the end")
json.dump(dict(env=dict(os.environ), folder=os.getcwd(), argv=sys.argv, path=sys.path[0],
               name=__name__, fds=sorted(os.listdir("/proc/self/fd"))[:-1],
               threads=threading.active_count(), stdin=sys.stdin.readline(), tty=sys.stdout.isatty(),
               buffers=[sys.stdout.line_buffering, sys.stderr.line_buffering],
               group=os.getpgrp(), session=os.getsid(0), shardd="shardd" in sys.modules,
               interrupt=signal.getsignal(signal.SIGINT) is signal.default_int_handler,
               signals=[str(signal.getsignal(k)) for k in (signal.SIGPIPE, signal.SIGTERM)]),
          sys.stdout)
print()
print("a word", file=sys.stderr)
class Last:
    def __del__(self):
        print("gone", flush=True)
last = Last()
sys.exit(3)
"""


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_it_is_as_a_new_process(tmp_path, monkeypatch, request, interrupt):
    monkeypatch.chdir(tmp_path)
    kept = signal.signal(signal.SIGINT, interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, kept))
    # PYTHON...: this test's server is started now.
    env = {**os.environ, "WORD": "1", "PYTHON_OF": str(interrupt)}
    p = forks.Process(LOOK, env)
    p.stdin.write("hello\n")
    out = p.finish(60)
    new = subprocess.run([sys.executable, "-c", LOOK], text=True, capture_output=True, env=env,
                         input="hello\n", timeout=60)
    (its, *more), (wanted, *same) = out.splitlines(), new.stdout.splitlines()
    assert json.loads(its) == json.loads(wanted)
    assert more == same == ["the end", "gone"]
    assert (p.returncode, p.stderr()) == (new.returncode, new.stderr) == (3, "a word\n")


@pytest.fixture
def process():
    started = []
    yield lambda code, **env: started.append(forks.Process(code, {**os.environ, **env})) or \
        started[-1]
    for p in started:
        p.kill()


@pytest.mark.parametrize("code, status, words", [
    ("assert 1 == 2, 'this one'", 1, "AssertionError: this one"),
    ("import ctypes; print('x', flush=True); ctypes.memset(0, 0, 4)", -signal.SIGSEGV, ""),
    ("import os; os.abort()", -signal.SIGABRT, ""),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ("import atexit, os; atexit.register(os._exit, 7)", 7, ""),
    ("1 +", 1, "SyntaxError")])
def test_its_end_is_told(process, code, status, words):
    p = process(code)
    p.finish(60)
    assert p.returncode == status and words in p.stderr()


def test_one_that_hangs_is_told_and_ended(process):
    p = process("import sys, time\nprint('so far', file=sys.stderr, flush=True)\n"
                "print('hangs', flush=True)\nsys.stdin.readline()\nwhile True: time.sleep(9)")
    assert p.line(60) == "hangs\n"
    with pytest.raises(TimeoutError, match="so far"):
        p.finish(0.1)
    p.kill()
    assert p.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(p.pid, 0)


def test_a_rank_that_fails_fails_its_test(ranks):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        ranks("1 / (1 - int(os.environ['RANK']))", 2)


def test_ranks_are_not_alike(process):
    """Neither by random numbers, nor by the order of sets; and torch is there already."""
    code = ("import random, sys, numpy\nassert 'torch' in sys.modules\n"
            "print(random.random(), numpy.random.rand(), hash('word'))")
    said = [process(code, RANK=rank).finish(60).split() for rank in ("0", "1", "2")]
    assert len({x[0] for x in said}) == len({x[1] for x in said}) == 3
    assert len({x[2] for x in said}) == 2


def test_what_is_read_at_the_start_is_its_own(process):
    code, seed = "print(hash('word'))", {"PYTHONHASHSEED": "5"}
    new = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                         env={**os.environ, **seed}, timeout=60)
    assert process(code, **seed).finish(60) == new.stdout != process(code).finish(60)
