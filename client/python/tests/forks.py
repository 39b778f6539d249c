# SPDX-License-Identifier: Apache-2.0
"""Processes that run a piece of Python as `python -c` does, and need not import torch for it.

Importing torch takes longer than most tests. So a server imports it once, and forks each process
from then on. The server has one thread and no connection, and has not imported shardd. A forked
process has its own environment, folder, stdin, stdout and stderr. It runs its code in __main__ and
ends as any other one, by the end of the code, an exception, sys.exit() or a signal.

What a process reads only while it starts is the server's (see AT_START), so that there is a server
for each set of such variables. Even and odd ranks have a server each: sets of strings have another
order in each, as in processes that were started one by one. Tests of a start do not use this.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types

PRELOAD = ("torch", "torch._dynamo")
AT_START = ("LD_", "PYTHON", "OMP_", "MKL_", "MALLOC_", "GLIBC_", "TORCH_")
REQUEST_BYTES_MAX = 1 << 17  # The socket keeps messages apart.
NUMBER_BYTES = 8

_servers = {}  # A socket to each, and the server, by what a process reads while it starts.


def _tell(fd: int, number: int):
    try:
        os.write(fd, number.to_bytes(NUMBER_BYTES, "little", signed=True))
    except BrokenPipeError:
        pass  # The test does not want to know it any more.


def main(requests_fd: int):
    """The server. In a process that it forked it runs the code."""
    # From the keyboard it is for the tests, and a command that a shell ran with & ignores it.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = _serve(requests_fd)
    signal.signal(signal.SIGINT, interrupt)
    exec(code, vars(sys.modules["__main__"]))


def _serve(requests_fd: int) -> str:
    """Forks a process for each request. Returns in those only: the code to run."""
    for name in PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # The end of a process need not look at what it has of the server.
    requests, running, poll = socket.socket(fileno=requests_fd), {}, select.poll()
    poll.register(requests_fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != requests_fd:
                pid, report = running.pop(fd)
                poll.unregister(fd)
                _tell(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(report)
                os.close(fd)
                continue
            request, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
            if not request:
                os._exit(0)  # The tests have ended.
            assert len(os.listdir("/proc/self/task")) == 1, "other threads would not be forked"
            pid = os.fork()
            if pid == 0:
                requests.detach()
                return _become(json.loads(request), fds)
            for k in fds[:3]:
                os.close(k)
            _tell(fds[3], pid)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, fds[3]
            poll.register(pidfd, select.POLLIN)


def _become(request: dict, fds: list[int]) -> str:
    """In the forked process: takes on what the test gave it, and drops what is the server's."""
    for k in range(3):
        os.dup2(fds[k], k)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.modules["__main__"] = types.ModuleType("__main__")  # What is frozen is never cleared.
    sys.modules["numpy"].random.seed()  # Python's own generator does that after each fork.
    return request["code"]


def _server(env: dict) -> socket.socket:
    odd = int(env.get("RANK", 0)) % 2
    key = odd, *sorted((k, v) for k, v in env.items() if k.startswith(AT_START))
    if key not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            _servers[key] = ours, subprocess.Popen(
                [sys.executable, "-c", f"import forks; forks.main({theirs.fileno()})"], env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    return _servers[key][0]


class Process:
    """A process that runs `code`. Its end is returncode, as with subprocess: -n after signal n."""

    def __init__(self, code: str, env: dict):
        self._err, self._said, self.returncode = tempfile.TemporaryFile(), b"", None
        (its_in, to), (out, its_out), (told, tells) = (os.pipe() for _ in range(3))
        self.stdin = open(to, "w", encoding="utf-8")
        self._out, self._told = open(out, "rb", buffering=0), open(told, "rb", buffering=0)
        request = json.dumps({"code": code, "env": env, "folder": os.getcwd()}).encode()
        assert len(request) <= REQUEST_BYTES_MAX
        try:
            socket.send_fds(_server(env), [request], [its_in, its_out, self._err.fileno(), tells])
        finally:
            for fd in (its_in, its_out, tells):
                os.close(fd)
        self.pid = self._number(time.monotonic() + 300)

    def _read(self, file, count: int, end: float) -> bytes:
        if not select.select([file], [], [], max(0, end - time.monotonic()))[0]:
            raise TimeoutError(f"a process did not go on in time\n{self._said.decode()}\n"
                               f"{self.stderr()}")
        return file.read(count)

    def _number(self, end: float) -> int:
        number = self._read(self._told, NUMBER_BYTES, end)
        assert number, "the server that forks has ended"
        return int.from_bytes(number, "little", signed=True)

    def stderr(self) -> str:
        """What it has written there until now."""
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size, 0).decode(errors="replace")

    def line(self, timeout: float) -> str:
        """The next line of stdout. Empty: it was closed."""
        end = time.monotonic() + timeout
        while b"\n" not in self._said and (more := self._read(self._out, 1 << 16, end)):
            self._said += more
        line, mark, self._said = self._said.partition(b"\n")
        return (line + mark).decode()

    def finish(self, timeout: float) -> str:
        """Closes stdin and waits for the end of stdout and of the process. The rest of stdout."""
        end = time.monotonic() + timeout
        self.stdin.close()
        while more := self._read(self._out, 1 << 16, end):
            self._said += more
        if self.returncode is None:
            self.returncode = self._number(end)
        return self._said.decode()

    def kill(self):
        """SIGKILL, if it has not ended. Waits until it has."""
        if self.returncode is None:
            if not select.select([self._told], [], [], 0)[0]:
                os.kill(self.pid, signal.SIGKILL)
            self.returncode = self._number(time.monotonic() + 60)
