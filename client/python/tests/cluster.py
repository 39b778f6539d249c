# SPDX-License-Identifier: Apache-2.0
"""Real daemons with a configuration, on this machine, which a test kills and starts again."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]


def free_ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Cluster:
    """nodes "a", "b", ... address(node) is the one of its trainers.

    warm: its memory outlives a daemon, so that one that was killed has its models again. elects:
    the nodes elect who coordinates, and a model has two copies.
    """

    def __init__(self, nodes=1, warm=False, more="", elects=False):
        # A socket's path is short, so this is not below pytest's folder.
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="shardd-py-", dir="/tmp"))
        self.warm = tempfile.mkdtemp(prefix="shardd-py-", dir="/dev/shm") if warm else None
        self.names = [chr(ord("a") + k) for k in range(nodes)]
        self.daemons = {}
        listed = "\n".join(f"{n} = 127.0.0.1:{p}" for n, p in zip(self.names, free_ports(nodes)))
        for n, line in zip(self.names, listed.splitlines()):
            (self.dir / f"state-{n}").mkdir()
            (self.dir / f"{n}.conf").write_text(f"""
[daemon]
node = {n}
listen = {line.split(" = ")[1]}
http = off
allow_unauthenticated = yes
socket = {self.dir / n}.sock
state = {self.dir / ("state-" + n)}
memory = 256MiB
huge_pages = no
workers = 1
warm_restart = {"tmpfs" if warm else "off"}
warm_dir = {self.warm or "/dev/shm"}
checkpoint_roots = {self.dir}
[model]
replicas = {2 if elects else 1}
[cluster]
run_id = py
membership = {"quorum" if elects else "static"}
heartbeat_timeout = 2s
lost_timeout = 2s
{more}
[nodes]
{listed}
""")
            self.start(n)
        for n in self.names:
            self.wait(n)

    def start(self, node):
        log = open(self.dir / f"{node}.log", "ab")
        self.daemons[node] = subprocess.Popen(
            [os.environ["SHARD_DAEMON"], "--config", str(self.dir / f"{node}.conf")], stdout=log,
            stderr=log, stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith("SHARD_")})
        log.close()

    def wait(self, node, timeout=60):
        """Until trainers can connect."""
        end = time.monotonic() + timeout
        while True:
            with socket.socket(socket.AF_UNIX) as s:
                try:
                    s.connect(str(self.dir / f"{node}.sock"))
                    return
                except OSError:
                    if time.monotonic() > end or self.daemons[node].poll() is not None:
                        raise AssertionError(self.log(node)) from None
            time.sleep(0.02)

    def kill(self, node):
        self.daemons[node].kill()
        self.daemons[node].wait()

    def forget(self, node):
        """Takes away what a node kept on disk, while its daemon is dead."""
        shutil.rmtree(self.dir / f"state-{node}")
        (self.dir / f"state-{node}").mkdir()

    def log(self, node):
        return (self.dir / f"{node}.log").read_text()

    def address(self, node):
        return f"unix:{self.dir / node}.sock"

    def close(self):
        for d in self.daemons.values():
            if d.poll() is None:
                d.kill()
            d.wait()
        shutil.rmtree(self.dir)
        if self.warm:
            shutil.rmtree(self.warm)
