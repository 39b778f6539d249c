# SPDX-License-Identifier: Apache-2.0
"""Trainers that a test leads step by step, kills, and starts again.

Each one is a process that asks before each step and waits for the answer, so that what happens when
is in the hands of the test. They are forked from a server that has imported torch already, because
an import takes longer than a test.
"""

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback

PATIENCE_S = 120.0  # A bound on progress, for machines that are slow and busy.

_context = multiprocessing.get_context("forkserver")


def preload():
    _context.set_forkserver_preload(["torch", "torch._dynamo", "numpy",
                                      "shardd.optimizer", "shardd.loop", "replay"])


class Stopped(Exception):
    """The test told this trainer to leave."""


class Line:
    """A trainer's end of the pipe."""

    def __init__(self, pipe, number):
        self._pipe, self.number = pipe, number

    def say(self, what, **more):
        self._pipe.send({"what": what, **more})

    def ask(self, what, **more):
        """Says something and waits until the test lets this trainer go on."""
        self.say(what, **more)
        if self._pipe.recv() == "leave":
            raise Stopped


def _main(pipe, number, env, path, function, arguments):
    multiprocessing.set_start_method("fork", force=True)  # As in any other process.
    sys.path[:] = path
    os.environ.update(env)
    import torch
    torch.set_num_threads(1)
    if env.get("TRACE"):
        faulthandler.dump_traceback_later(float(env["TRACE"]), repeat=True)
    line = Line(pipe, number)
    try:
        function(line, **arguments)
        line.say("end")
    except BaseException as e:
        line.say("failed", error=f"{type(e).__name__}: {e}", trace=traceback.format_exc())
        raise


class Member:
    def __init__(self, crew, number, function, arguments, env):
        self.crew, self.number = crew, number
        self.pipe, other = _context.Pipe()
        self.process = _context.Process(
            target=_main, args=(other, number, {**crew.env, **env}, sys.path, function, arguments),
            daemon=False)
        self.process.start()
        other.close()
        self.alive, self.waiting, self.joined = True, False, False
        self.last = {}

    def go(self):
        self.waiting = False
        self.pipe.send("go")

    def leave(self):
        self.waiting = False
        self.pipe.send("leave")

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process.pid, number)


class Crew:
    """crew.start(function, **arguments) starts a trainer: function(line, **arguments).

    run(handle) calls handle(member, message) for whatever trainers say, until all have ended.
    A trainer that asked waits until the handler calls member.go() or member.leave(). Its return
    value is not looked at.
    """

    def __init__(self, **env):
        self.env = {k: os.environ[k] for k in ("SHARDD_LIB", "SHARD_DAEMON", "SHARD_LINGER",
                                               "OMP_NUM_THREADS")}
        self.env.update(env)
        self.members = []

    def start(self, function, env=None, **arguments):
        self.members.append(Member(self, len(self.members), function, arguments, env or {}))
        return self.members[-1]

    @property
    def living(self):
        return [m for m in self.members if m.alive]

    def run(self, handle, may_fail=False):
        while self.living:
            ready = multiprocessing.connection.wait([m.pipe for m in self.living], PATIENCE_S)
            if not ready:
                raise AssertionError("nothing happened for a long time; last words: " +
                                     str([(m.number, m.last) for m in self.living]))
            for m in [m for m in self.living if m.pipe in ready]:
                try:
                    message = m.pipe.recv()
                except (EOFError, ConnectionResetError):
                    m.process.join()
                    m.alive = False
                    message = {"what": "gone", "status": m.process.exitcode}
                m.last = message
                m.joined = m.joined or message["what"] == "at"
                if message["what"] == "failed" and not may_fail:
                    raise AssertionError(f"trainer {m.number}: {message['trace']}")
                handle(m, message)

    def close(self):
        for m in self.members:
            if m.process.is_alive():
                m.process.kill()
            m.process.join()
            m.pipe.close()
