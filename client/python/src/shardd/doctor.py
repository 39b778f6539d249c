# SPDX-License-Identifier: Apache-2.0
"""python -m shardd.doctor: can this machine train with shardd, and what is missing?

Every check is a function that yields findings: ok, warn or fail, a sentence, and what to do. They
look at what is there and change nothing. The last ones start a private daemon, as `spawn:` does,
and train a tiny model with it in a process of its own, so that a crash of torch is a finding, too.
Nothing here imports torch but that process. The exit status is 0 if nothing fails, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes as C
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import re
import resource
import subprocess
import sys
import textwrap
import time
from typing import Any, Callable, Iterator, NamedTuple

from . import __version__
from . import lib as _c
from .session import SOCKET, Session

OK, WARN, FAIL = "ok", "warn", "fail"
PYTHON, TORCH = (3, 10), (2, 4)  # The oldest ones.
ABI = 0                          # Of the libshard that lib.py declares.
MEMORY_BYTES = 1 << 30           # Less of it is said.
SHM_BYTES = 256 << 20            # The same, for /dev/shm.
FILES_FAIL, FILES_WARN = 64, 1024
CONNECT_S, STEP_S = 5.0, 180.0
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Finding(NamedTuple):
    """One line. level: "ok", "warn" or "fail". remedy: what to do, or ""."""

    check: str
    level: str
    text: str
    remedy: str = ""


class Machine:
    """What checks have found out for those after them."""

    def __init__(self, address: str | None, secret: str | None):
        given = address or os.environ.get("SHARD_ADDRESS")
        self.address = given or (f"unix:{SOCKET}" if os.path.exists(SOCKET) else None)
        self.secret = secret
        self.private = f"spawn:doctor-{os.getpid()}"
        self.library = False   # It is loaded.
        self.service = False   # A daemon at self.address answered.
        self.session: Session | None = None  # With the private daemon.


Check = Callable[[Machine], Iterator[Finding]]


def _mib(n: float) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


# --- what is installed ---


def python(m: Machine) -> Iterator[Finding]:
    """Python's version."""
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON:
        yield Finding("python", FAIL, text, "use Python 3.10 or newer")
    else:
        yield Finding("python", OK, text)


def torch(m: Machine) -> Iterator[Finding]:
    """torch's version, as pip knows it. Whether it can be imported is known from the step."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("torch", FAIL, "torch is not installed for this Python",
                      "pip install 'torch>=2.4'")
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) < TORCH:
        yield Finding("torch", FAIL, f"{version} is too old", "pip install 'torch>=2.4'")
    else:
        yield Finding("torch", OK, version)


def library(m: Machine) -> Iterator[Finding]:
    """libshard: where it is, and of which release."""
    try:
        lib = _c.libshard()
    except ImportError as e:
        yield Finding("libshard", FAIL, str(e).removeprefix("shardd: "),
                      "pip install the wheel, or set SHARDD_LIB to the path of libshard.so.0")
        return
    m.library = True
    version = lib.shard_version().decode()
    text, words = f"{version} at {lib._name}", version.split()
    if words[-1] != str(ABI):
        yield Finding("libshard", FAIL, text, f"this package is made for abi {ABI}: install "
                      "library and package of one release")
    elif words[0] != __version__:
        yield Finding("libshard", WARN, f"{text}; this package is {__version__}",
                      "install both of one release")
    else:
        yield Finding("libshard", OK, text)


def deepspeed(m: Machine) -> Iterator[Finding]:
    """Which deepspeed a script gets."""
    ours = "`python -m shardd.deepspeed SCRIPT` gives shardd's stand-in"
    spec = importlib.util.find_spec("deepspeed")
    try:
        version = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        version = None
    if spec is None:
        yield Finding("deepspeed", OK, f"`import deepspeed` gives nothing: it is not installed; "
                      f"{ours}")
    elif version is None:
        yield Finding("deepspeed", WARN, f"`import deepspeed` gives {spec.origin}, and pip knows "
                      "no deepspeed", f"rename what is no DeepSpeed; {ours}")
    else:
        yield Finding("deepspeed", OK, f"`import deepspeed` gives the real one, {version} at "
                      f"{spec.origin}; {ours}")


# --- what the machine has ---


def memory(m: Machine) -> Iterator[Finding]:
    """Gradients and parameters are in memfds, and DataLoader's workers use /dev/shm."""
    yield from _memfd()
    free = _free_memory()
    yield Finding("memory", WARN if free < MEMORY_BYTES else OK, f"{_mib(free)} are available",
                  "on each node shardd needs 12 bytes per parameter and copy, and 4 to 8 bytes "
                  "per parameter and rank" if free < MEMORY_BYTES else "")
    try:
        s = os.statvfs("/dev/shm")
    except OSError as e:
        yield Finding("/dev/shm", WARN, f"/dev/shm: {e.strerror}", "mount a tmpfs there: workers "
                      "of torch's DataLoader use it")
        return
    free = s.f_bavail * s.f_frsize
    yield Finding("/dev/shm", WARN if free < SHM_BYTES else OK, f"{_mib(free)} are free",
                  "docker run --shm-size=2g (or --ipc=host): workers of torch's DataLoader and "
                  "warm_restart=tmpfs use it; shardd's own memory does not"
                  if free < SHM_BYTES else "")


def _memfd() -> Iterator[Finding]:
    fd, size = -1, 16 << 20
    try:
        fd = os.memfd_create("shardd-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(fd, 0, size)
        with mmap.mmap(fd, size) as view:
            view[-1] = 1
    except OSError as e:
        yield Finding("memfd", FAIL, f"16 MiB of shared memory (memfd) cannot be had: {e}",
                      "allow memfd_create in the sandbox, and raise `ulimit -f`, `ulimit -v` and "
                      "the container's memory")
    else:
        yield Finding("memfd", OK, "shared memory can be made")
    finally:
        if fd >= 0:
            os.close(fd)


def _free_memory() -> int:
    """What the machine has available, or the cgroup if that is less. In bytes."""
    with open("/proc/meminfo") as f:
        rows = dict(line.split(":", 1) for line in f)
    free = int(rows.get("MemAvailable", "0 kB").split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/memory.max") as a, open("/sys/fs/cgroup/memory.current") as b:
            free = min(free, int(a.read()) - int(b.read()))  # "max" is no number.
    return max(0, free)


def limits(m: Machine) -> Iterator[Finding]:
    """How much may be locked, and how many files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "no limit" if soft == resource.RLIM_INFINITY else f"{_mib(soft)} may be locked"
    rdma = os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband")
    if rdma and soft != resource.RLIM_INFINITY:
        yield Finding("memlock", WARN, f"{text}, and RDMA device {rdma[0]} needs gradients and "
                      "parameters locked", "ulimit -l unlimited, or LimitMEMLOCK=infinity")
    else:
        yield Finding("memlock", OK, text if soft == resource.RLIM_INFINITY else
                      f"{text}; without RDMA nothing needs it")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level = FAIL if 0 <= soft < FILES_FAIL else WARN if 0 <= soft < FILES_WARN else OK
    yield Finding("nofile", level, "no limit" if soft < 0 else f"{soft} files may be open",
                  f"ulimit -n {FILES_WARN if hard < 0 else min(hard, 65536)}" +
                  ("" if hard < 0 or hard >= FILES_WARN else ", and raise the hard limit")
                  if level != OK else "")


def threads(m: Machine) -> Iterator[Finding]:
    """Cores, and how many threads the ranks of this node would start on them."""
    cores = len(os.sched_getaffinity(0))
    said, ranks = os.environ.get("OMP_NUM_THREADS"), _number("LOCAL_WORLD_SIZE") or 1
    text = f"{cores} cores for {ranks} rank{'s' * (ranks > 1)}"
    fair = f"OMP_NUM_THREADS={max(1, cores // ranks)}"
    if said is None:
        yield Finding("threads", WARN if ranks > 1 else OK,
                      f"{text}; OMP_NUM_THREADS is not set, so torch starts {cores} threads in "
                      "each rank, and under torchrun 1", f"set {fair}" if ranks > 1 else "")
    elif not said.isdecimal() or int(said) < 1:
        yield Finding("threads", WARN, f"OMP_NUM_THREADS={said} is no number", f"set {fair}")
    elif int(said) * ranks > cores:
        yield Finding("threads", WARN, f"{text}, and OMP_NUM_THREADS={said} gives them "
                      f"{int(said) * ranks} threads", f"set {fair}")
    else:
        yield Finding("threads", OK, f"{text}, OMP_NUM_THREADS={said}")


def _number(word: str) -> int | None:
    text = os.environ.get(word, "")
    return int(text) if text.isdecimal() else None


def ranks(m: Machine) -> Iterator[Finding]:
    """The variables that torchrun sets."""
    there = {w: os.environ[w] for w in RANKS if w in os.environ}
    text = ", ".join(f"{k}={v}" for k, v in there.items())
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    bad = [k for k in there if _number(k) is None]
    if not there:
        yield Finding("ranks", OK, "RANK and WORLD_SIZE are not set: a script is a world of one; "
                      "`torchrun --nproc-per-node N` sets them")
    elif bad:
        yield Finding("ranks", FAIL, f"{text}: {bad[0]} is no number", f"unset {' '.join(there)}")
    elif rank is None or size is None:
        yield Finding("ranks", WARN, f"{text}: one of RANK and WORLD_SIZE alone"
                      f"{f', so a script waits for {size} ranks' if size and size > 1 else ''}",
                      f"unset {' '.join(there)}, or start by torchrun")
    elif rank >= size:
        yield Finding("ranks", FAIL, f"{text}: there is no such rank", "start by torchrun")
    else:
        yield Finding("ranks", OK, f"{text}: a script waits for {size} ranks")


def cuda(m: Machine) -> Iterator[Finding]:
    """The driver, which is what shardd itself needs."""
    try:
        driver = C.CDLL("libcuda.so.1")
    except OSError:
        yield Finding("cuda", OK, "no driver (libcuda.so.1) is here: training is on the CPU, and "
                      "nothing for GPUs was tried by this program")
        return
    number, count = C.c_int(), C.c_int()
    status = driver.cuInit(0) or driver.cuDriverGetVersion(C.byref(number)) or \
        driver.cuDeviceGetCount(C.byref(count))
    if status:
        yield Finding("cuda", WARN, f"{driver._name} is here, and answers with error {status}",
                      "run nvidia-smi; in a container, give it the GPU (docker run --gpus all)")
        return
    yield Finding("cuda", OK if count.value else WARN,
                  f"the driver is for CUDA {number.value // 1000}.{number.value % 1000 // 10}, and "
                  f"has {count.value} GPUs; the step below is on the CPU, so nothing was tried on "
                  "a GPU", "" if count.value else "look at CUDA_VISIBLE_DEVICES")


# --- daemons ---


def address(m: Machine) -> Iterator[Finding]:
    """The daemon that training would use, if it is not a private one."""
    if m.address is None:
        yield Finding("address", OK, f"no SHARD_ADDRESS, and no daemon at {SOCKET}: training "
                      "starts a private one (spawn:)")
    elif m.address.startswith("spawn:"):
        yield Finding("address", OK, f"{m.address}: training starts a private daemon")
    elif not m.library:
        yield Finding("address", WARN, f"{m.address} was not tried, because libshard is missing")
    else:
        try:
            s = Session(m.address, secret=m.secret, connect_timeout=CONNECT_S)
        except _c.Error as e:
            yield Finding("address", FAIL, f"{m.address}: {e}",
                          "start shardd there, or unset SHARD_ADDRESS for a private daemon")
            return
        try:
            yield _service(m, _stats(s))
        except _c.Error as e:
            yield Finding("address", FAIL, f"{m.address}: {e}", "look at the log of that shardd")
        finally:
            s.disconnect()


def _service(m: Machine, stats: dict[str, Any]) -> Finding:
    nodes, budget = stats["nodes"], stats["budget"]
    away = [n["name"] for n in nodes if n["state"] not in ("self", "up")]
    m.service = True
    text = (f"{m.address}: shardd {stats['release']}, node {stats['node']} of {len(nodes)} in "
            f"cluster {stats['run_id']}, {len(stats['models'])} models, "
            f"{_mib(budget['total'] - budget['used'])} free")
    if away:
        return Finding("address", WARN, f"{text}; not connected: {', '.join(away)}",
                       "shardctl members")
    if stats["release"] != __version__:
        return Finding("address", WARN, f"{text}; this package is {__version__}",
                       "install both of one release")
    return Finding("address", OK, text)


def _stats(s: Session) -> dict[str, Any]:
    """What the daemon counts, as `shardctl status --json` shows it."""
    size = C.c_size_t(0)
    _c.check(s.lib.shard_stats(s._client, None, C.byref(size)), _c.RANGE)
    while True:
        size = C.c_size_t(size.value + 4096)
        text = C.create_string_buffer(size.value)
        if _c.check(s.lib.shard_stats(s._client, text, C.byref(size)), _c.RANGE) == _c.OK:
            return json.loads(text.value)


def daemon(m: Machine) -> Iterator[Finding]:
    """Starts the private daemon that spawn: starts, and asks it who it is."""
    if not m.library:
        return
    linger, began = os.environ.get("SHARD_LINGER"), time.monotonic()
    os.environ["SHARD_LINGER"] = "1s"  # It ends with this program.
    try:
        m.session = Session(m.private, connect_timeout=30.0)
        stats = _stats(m.session)
    except _c.Error as e:
        yield Finding("daemon", WARN if m.service else FAIL, str(e),
                      "install shardd, or set SHARD_DAEMON to its path" +
                      ("; the daemon at the address does without" if m.service else ""))
        return
    finally:
        if linger is None:
            del os.environ["SHARD_LINGER"]
        else:
            os.environ["SHARD_LINGER"] = linger
    took = 1000 * (time.monotonic() - began)
    try:
        path = os.readlink(f"/proc/{stats['pid']}/exe")
    except OSError:
        path = "a place that /proc does not show"
    text = f"shardd {stats['release']} at {path}; a private one (spawn:) answers in {took:.0f} ms"
    if stats["release"] != __version__:
        yield Finding("daemon", WARN, f"{text}; this package is {__version__}",
                      "install both of one release")
    else:
        yield Finding("daemon", OK, text)


# --- the step ---


def step(m: Machine) -> Iterator[Finding]:
    """A real step with the private daemon, compared with torch's own."""
    if m.session is None:
        yield Finding("step", WARN, "no step was tried, because library or daemon is missing")
        return
    env = {k: v for k, v in os.environ.items()
           if k not in (*RANKS, "SHARDD_MODEL", "SHARDD_PARAMS", "SHARD_ADDRESS")}
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, env.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from shardd.doctor import _trains; _trains()", m.private],
            env=env, text=True, capture_output=True, timeout=STEP_S)
    except subprocess.TimeoutExpired:
        yield Finding("step", FAIL, f"a tiny training step did not end in {STEP_S:g} s",
                      "look for an overloaded machine, and run it again")
        return
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        yield Finding("step", FAIL, f"a tiny training step failed: {why}",
                      "see the other lines; `python -c 'import torch'` has to work")
        return
    said = json.loads(last)
    text = (f"trained on the CPU; the first step ended {said['first_s']:.1f} s after the start "
            f"(import torch {said['torch_s']:.1f}, make the Optimizer {said['make_s']:.1f}, step "
            f"{said['step_s']:.3f}), later ones take {said['later_ms']:.1f} ms; largest difference "
            f"from torch.optim.AdamW {said['error']:.1e}")
    good = said["error"] < 1e-5
    yield Finding("step", OK if good else FAIL, text, "" if good else
                  "the daemon computes something else than torch: report this with all lines")


def _trains() -> None:
    """What the process of step() runs: three steps beside torch's own. Prints one line of JSON."""
    at = [time.monotonic()]
    import torch
    at.append(time.monotonic())
    from . import optimizer as _o
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, plain = (torch.nn.Linear(8, 4) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    opt = _o.Optimizer(model, lr=1e-2, name="doctor", address=sys.argv[-1], world=1,
                       params="image", timeout=30.0)
    want = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    at.append(time.monotonic())
    x = torch.randn(16, 8)
    for _ in range(3):
        model(x).square().mean().backward()
        opt.step()
        at.append(time.monotonic())
    for _ in range(3):
        want.zero_grad()
        plain(x).square().mean().backward()
        want.step()
    error = max((a - b).abs().max().item()
                for a, b in zip(model.parameters(), plain.parameters()))
    opt.close(drop=True)
    print(json.dumps({"torch_s": at[1] - at[0], "make_s": at[2] - at[1], "step_s": at[3] - at[2],
                      "first_s": at[3] - at[0], "later_ms": 500 * (at[5] - at[3]),
                      "error": error}))


# --- all of them ---

CHECKS: tuple[Check, ...] = (python, torch, library, deepspeed, memory, limits, threads, ranks,
                             cuda, address, daemon, step)


def examine(address: str | None = None, secret: str | None = None) -> Iterator[Finding]:
    """All findings, one after the other as they are made."""
    m = Machine(address, secret)
    try:
        for check in CHECKS:
            yield from check(m)
    finally:
        if m.session is not None:
            m.session.disconnect()


def main() -> int:
    """Prints the findings. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m shardd.doctor",
        description="Says whether this machine can train with shardd, and what is missing. Exit "
        "status: 0 if nothing fails, else 1.")
    parser.add_argument("--address", help="the daemon: unix:/path, tcp://host:port or spawn:NAME; "
                        f"default: $SHARD_ADDRESS, then {SOCKET} if it is there")
    parser.add_argument("--secret", help="the file with the cluster's secret, for TCP")
    parser.add_argument("--json", action="store_true", help="print JSON")
    o = parser.parse_args()
    found = []
    for f in examine(o.address, o.secret):
        found.append(f)
        if not o.json:
            text = textwrap.wrap(f.text, 81, break_long_words=False, break_on_hyphens=False)
            print(f"{f.level:<5} {f.check:<12} " + f"\n{'':<19}".join(text), flush=True)
            if f.remedy:
                print(f"{'':<15} -> {f.remedy}", flush=True)
    count = {level: sum(f.level == level for f in found) for level in (OK, WARN, FAIL)}
    if o.json:
        print(json.dumps({"ok": not count[FAIL], "findings": [f._asdict() for f in found]},
                         indent=1))
    else:
        print(", ".join(f"{n} {level}" for level, n in count.items()))
    return int(bool(count[FAIL]))


if __name__ == "__main__":
    sys.exit(main())
