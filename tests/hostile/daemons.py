# SPDX-License-Identifier: Apache-2.0
"""Daemons under test, and a trainer that trains beside an attack.

A Node is one shardd with a configuration of its own, from the given build (a sanitizer build). An
Honest is the example trainer of the plain build in a loop of its own. `status` reports its
progress. Both keep their logs in the folder of the run. stop() returns what went wrong: a crash, a
sanitizer's report, a leak, or descriptors that were not given back.
"""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import wire
from wire import pace

SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=99:allocator_may_return_null=1",
              "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=99"}
REPORT = re.compile(r"ERROR: \w*Sanitizer|runtime error:|check_failed|SUMMARY: \w*Sanitizer")


class Node:
    def __init__(self, run, name, build, ports, daemon="", net="", cluster="", model="", secrets=None):
        """ports: name -> port of every node, of which the first coordinates. secrets: option of
        [cluster] -> key in hex."""
        self.dir = os.path.join(run, name)
        self.name, self.build, self.port = name, build, ports[name]
        self.socket = os.path.join(self.dir, "sock")
        self.log = os.path.join(run, f"{name}.log")
        self.process = None
        os.makedirs(os.path.join(self.dir, "state"), exist_ok=True)
        os.makedirs(os.path.join(self.dir, "warm"), exist_ok=True)
        lines = ["[daemon]", f"node = {name}", f"listen = 127.0.0.1:{self.port}", "http = off",
                 f"socket = {self.socket}", f"state = {self.dir}/state", "memory = 256MiB", "workers = 1", "stop_timeout = 5s",
                 f"warm_dir = {self.dir}/warm", "huge_pages = no", daemon, "[net]", "transport = tcp", net,
                 "[cluster]", "heartbeat_timeout = 2s", "step_timeout = 20s", "" if "membership" in cluster else "membership = static", cluster]
        for option, key in (secrets or {}).items():
            path = os.path.join(self.dir, option)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
                f.write(key + "\n")
            lines.append(f"{option} = {path}")
        lines.append("[nodes]")
        lines += [f"{n} = 127.0.0.1:{p}" for n, p in ports.items()]
        lines += ["[model]", "replicas = 1" if len(ports) > 1 and "replicas" not in model else "", model]
        self.conf = os.path.join(self.dir, "shardd.conf")
        with open(self.conf, "w") as f:
            f.write("\n".join(lines) + "\n")

    def start(self, bound=30.0):
        log = open(self.log, "ab")
        # SHARD_* variables of the user who runs the test must not change the configuration.
        env = {k: v for k, v in os.environ.items() if not k.startswith("SHARD_")}
        self.process = subprocess.Popen([os.path.join(self.build, "shardd"), "--config", self.conf],
                                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env | SANITIZERS)
        limit = pace.Bound(bound)
        while not limit.passed():
            if self.process.poll() is not None:
                raise AssertionError(f"node {self.name} did not start: see {self.log}")
            try:
                self.status()
                return self
            except (OSError, wire.Closed):
                time.sleep(0.02)
        raise AssertionError(f"node {self.name} did not answer within {time.monotonic() - limit.began:.0f} s: see {self.log}")

    def status(self, bound=20.0):
        c = wire.Conn(self.socket, bound=bound)
        try:
            c.hello(role=wire.TOOL)
            return json.loads(c.request("STATUS").message()["text"])
        finally:
            c.close()

    def tcp(self):
        return ("127.0.0.1", self.port)

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss(self):
        """Returns how much memory the process has now, in bytes."""
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * 4096

    def alive(self):
        return self.process.poll() is None

    def logged(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def stop(self, bound=60.0):
        """Ends it in order. Returns what was wrong with how it ran, or None."""
        crashed = self.process.poll() is not None
        if not crashed:
            self.process.send_signal(signal.SIGTERM)
        rc, limit = None, pace.Bound(bound)
        while rc is None and not limit.passed():
            with contextlib.suppress(subprocess.TimeoutExpired):
                rc = self.process.wait(limit.left())
        if rc is None:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            return f"node {self.name} hangs at its end: {self.log}"
        found = REPORT.search(self.logged())
        if found or crashed or rc != 0:
            what = found.group(0) if found else f"ended by itself with {rc}" if crashed else f"exit status {rc}"
            return f"node {self.name}: {what}: {self.log}"
        return None


class Honest:
    """The example trainer, which trains a model of its own again and again."""

    def __init__(self, node, plain, name="honest", steps=100000000, settings=""):
        self.node, self.name = node, name
        self.log = os.path.join(os.path.dirname(node.log), f"{name}.log")
        data = os.path.join(wire.ROOT, "README.md")
        self.process = subprocess.Popen(
            [os.path.join(plain, "gpt"), "--address", f"unix:{node.socket}", "--name", name, "--data", data,
             "--steps", str(steps)] + (["--settings", settings] if settings else []),
            stdin=subprocess.DEVNULL, stdout=open(self.log, "ab"), stderr=subprocess.STDOUT)

    def step(self):
        for m in self.node.status()["models"]:
            if m["name"] == self.name:
                return m["step"]
        return 0

    def moves(self, steps=3, bound=60.0):
        """Returns None once it has committed so many more steps, else what is wrong."""
        began = self.step()
        limit = pace.Bound(bound)
        while not limit.passed():
            if self.process.poll() is not None:
                with open(self.log, errors="replace") as f:
                    return f"the honest trainer ended: {f.read()[-400:]}"
            if self.step() >= began + steps:
                return None
            time.sleep(0.05)
        return f"the honest trainer stands at step {began} for {time.monotonic() - limit.began:.0f} s"

    def stop(self):
        self.process.kill()
        self.process.wait()
