# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a private daemon per test, and ranks as processes."""

import itertools
import json
import os
import pathlib
import sys
import textwrap

import pytest

import forks

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("SHARDD_LIB", str(ROOT / "build" / "libshard.so.0"))
os.environ.setdefault("SHARD_DAEMON", str(ROOT / "build" / "shardd"))
os.environ.setdefault("SHARD_LINGER", "5s")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(HERE.parent / "src"))
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = f"{HERE.parent / 'src'}:{HERE}"
for word in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SHARD_ADDRESS", "SHARDD_MODEL"):
    os.environ.pop(word, None)

_numbers = itertools.count()


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long; leave these out by -m 'not slow'")


@pytest.fixture
def address():
    """The address of a private daemon that no other test uses."""
    return f"spawn:py{os.getpid()}-{next(_numbers)}"


class Rank(forks.Process):
    """A process that runs a piece of Python, which calls say() for what the test is to hear."""

    def __init__(self, code: str, env: dict, address: str):
        head = ("import json, sys, os\n"
                "def say(**k): print('SAY ' + json.dumps(k), flush=True)\n")
        super().__init__(head + textwrap.dedent(code),
                         {**os.environ, "SHARD_ADDRESS": address, **env})

    def hear(self, timeout: float = 300) -> dict:
        """The next thing that it says, while it goes on. {}: it has ended."""
        while line := self.line(timeout):
            if line.startswith("SAY "):
                return json.loads(line[4:])
        return {}

    def go(self):
        """Lets it go on where it reads a line."""
        self.stdin.write("go\n")
        self.stdin.flush()

    def wait(self, timeout: float = 300) -> tuple[int, list[dict], str]:
        """The exit status, what it said, and what it wrote to stderr."""
        out = self.finish(timeout)
        said = [json.loads(line[4:]) for line in out.splitlines() if line.startswith("SAY ")]
        return self.returncode, said, self.stderr()


@pytest.fixture
def start(address):
    """start(code, rank, world, **env): starts a rank. All are ended with the test."""
    started = []

    def one(code: str, rank: int | None = 0, world: int = 1, **env) -> Rank:
        words = {} if rank is None else {"RANK": str(rank), "LOCAL_RANK": str(rank),
                                         "WORLD_SIZE": str(world)}
        started.append(Rank(code, {**words, **{k: str(v) for k, v in env.items()}}, address))
        return started[-1]

    yield one
    for r in started:
        r.kill()


@pytest.fixture
def ranks(start):
    """ranks(code, n, **env): runs n ranks to their end. Returns what each of them said, by rank."""

    def run(code: str, n: int = 1, **env) -> list[list[dict]]:
        all_of_them = [start(code, r, n, **env) for r in range(n)]
        done = [r.wait() for r in all_of_them]
        for status, said, err in done:
            assert status == 0, err
        return [said for status, said, err in done]

    return run
