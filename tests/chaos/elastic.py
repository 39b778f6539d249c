# SPDX-License-Identifier: Apache-2.0
"""The cluster of `make chaos CLUSTER=quorum` and `CLUSTER=etcd`: five daemons with two copies of
each chunk, whose coordinator is elected. Each has a network namespace of its own on one bridge, and
a small disk of its own for its state. With CLUSTER=etcd there are three members of etcd on the
bridge.

chaos.py runs in namespaces of its own for network and mounts, which it enters by enter(). The
namespace of a node is a descriptor of this process, so nothing is left behind, however this process
ends. Who asks for such a cluster on a machine without namespaces gets an error.

A link is cut by a false hardware address: the bridge carries the frames, and nobody takes them. So
both ends see silence, and one direction can be cut alone."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

import pace
from cluster import LIBC, Cluster, Daemon, Failed, Process, child

CLONE_NEWNET = 0x40000000
STATE_BYTES, HEARTBEAT_S = 4 << 20, 3
BRIDGE, NOWHERE = "02:00:00:00:00:64", "02:00:00:00:00:ff"
PORT = 29700


def enter():
    """Starts this program again in new namespaces for network and mounts. Without root that takes
    a namespace of users."""
    if os.environ.get("CHAOS_INSIDE") == "1":
        return
    words = ["unshare", "--net", "--mount"] + (["--map-root-user"] if os.geteuid() else [])
    if subprocess.run([*words, "true"]).returncode != 0:
        sys.exit(f"chaos: FAILED: {' '.join(words)}: five nodes take network namespaces: be root")
    os.environ["CHAOS_INSIDE"] = "1"
    os.execvp("unshare", [*words, sys.executable, "-B", *sys.argv])


def _run(words, netns=None):
    done = subprocess.run(
        words.split(), capture_output=True, text=True, preexec_fn=lambda: child(netns)
    )
    if done.returncode != 0:
        raise Failed(f"{words}: {done.stderr.strip()}")


class Etcd(Process):
    """One of three members. Its elections are fast, so that a lease may be as short as two
    seconds."""

    def __init__(self, cluster, nr):
        folder, self.host = f"{cluster.dir}/etcd", f"10.77.0.{101 + nr}"
        self.url = f"http://{self.host}:2379"
        peers = [f"http://10.77.0.{101 + k}:2380" for k in range(3)]
        options = {
            "name": f"m{nr}",
            "data-dir": f"{folder}/m{nr}",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peers[nr],
            "initial-advertise-peer-urls": peers[nr],
            "initial-cluster": ",".join(f"m{k}={p}" for k, p in enumerate(peers)),
            "heartbeat-interval": "50",
            "election-timeout": "500",
        }
        os.makedirs(folder, exist_ok=True)
        command = ["etcd", "--unsafe-no-fsync"]
        command += [word for k, v in options.items() for word in (f"--{k}", v)]
        super().__init__(f"etcd m{nr}", command, f"{cluster.dir}/logs/etcd-{nr}.log")

    def ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as f:
                return json.load(f)["health"] == "true"
        except (OSError, ValueError):
            return False


class Elastic(Cluster):
    nodes = "abcde"
    more = "fg"  # They are in no list of nodes, and may join.

    def __init__(self, build, folder, kind):
        self.settings = f"heartbeat_timeout = {HEARTBEAT_S}s\nlost_timeout = 60s\nstep_timeout = 60s\n"
        self.settings += f"membership = {kind}\n"
        self.etcd, self.answers = [], {}
        self.every = self.nodes + self.more  # The place in it names a node's address.
        if kind == "etcd":
            if shutil.which("etcd") is None:
                raise Failed("etcd is not installed: make deps")
            self.dir = folder
            os.makedirs(f"{folder}/logs")
            self.etcd = [Etcd(self, nr) for nr in range(3)]
            urls = ",".join(m.url for m in self.etcd)
            self.settings += f"election_timeout = 2s\netcd_endpoints = {urls}\n"
        else:
            self.settings += "election_timeout = 1s\n"
        super().__init__(build, folder, kind)

    def _mount(self):
        for node in self.nodes + self.more:
            at = f"{self.disk}/state-{node}"
            os.makedirs(at)
            options = f"size={STATE_BYTES},mode=0700".encode()
            if LIBC.mount(b"none", at.encode(), b"tmpfs", 0, options) != 0:
                raise Failed(f"no tmpfs could be mounted at {at}")
        return True

    def unmount(self):
        for node in self.every:
            LIBC.umount2(f"{self.disk}/state-{node}".encode(), 2)  # MNT_DETACH

    def _network(self):
        _run("ip link set lo up")
        _run(f"ip link add br0 address {BRIDGE} type bridge")
        _run("ip link set br0 up")
        for host in (100, 101, 102, 103):
            _run(f"ip address add 10.77.0.{host}/24 dev br0")
        here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        for nr, node in enumerate(self.every, 1):
            if LIBC.unshare(CLONE_NEWNET) != 0:
                raise Failed("there is no network namespace for a node")
            at = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.netns[node] = at
            LIBC.setns(here, CLONE_NEWNET)
            _run(f"ip link add to-{node} type veth peer name eth0 address {self._mac(node)}")
            _run(f"ip link set eth0 netns /proc/{os.getpid()}/fd/{at}")
            _run(f"ip link set to-{node} master br0 up")
            _run("ip link set lo up", at)
            _run(f"ip address add 10.77.0.{nr}/24 dev eth0", at)
            _run("ip link set eth0 up", at)
        for node in self.every:
            for other in self.every.replace(node, ""):
                self.cut(node, other, False)
        address = {n: f"{self._ip(n)}:{PORT}" for n in self.every}
        return address, address

    def _mac(self, node):
        return f"02:00:00:00:00:{self.every.index(node) + 1:02x}"

    def _ip(self, node):
        return f"10.77.0.{self.every.index(node) + 1}"

    def cut(self, node, other, cut=True):
        """Nothing that `node` sends reaches `other`, or all does again."""
        to = NOWHERE if cut else self._mac(other)
        entry = f"ip neighbour replace {self._ip(other)} lladdr {to} dev eth0 nud permanent"
        _run(entry, self.netns[node])

    def cut_etcd(self, node, cut=True):
        """Nothing that `node` sends reaches a member of etcd, or all does again."""
        for m in self.etcd:
            entry = f"{m.host} lladdr {NOWHERE if cut else BRIDGE} dev eth0 nud permanent"
            _run(f"ip neighbour replace {entry}", self.netns[node])

    def slow(self, node, slow=True):
        """Whatever `node` sends goes through a narrow pipe with a short queue, or no more."""
        pipe = " tbf rate 2mbit burst 8kb latency 50ms" if slow else ""
        _run(f"tc qdisc {'replace' if slow else 'delete'} dev eth0 root{pipe}", self.netns[node])

    def forget(self, daemon, state):
        """Takes the memory of a daemon that does not run. state: what is on its disk, too."""
        daemon.taken = True
        for folder in [daemon.warm] + [f"{self.disk}/state-{daemon.node}"] * state:
            for name in os.listdir(folder):
                at = f"{folder}/{name}"
                shutil.rmtree(at) if os.path.isdir(at) else os.unlink(at)

    def add(self, by):
        """Starts a node that joins by another one. False: there is no further node."""
        if not self.more:
            return False
        node, self.more = self.more[0], self.more[1:]
        os.makedirs(f"{self.warm}/{node}")
        conf = f"{self.dir}/{node}.conf"
        self._configure(node)
        with open(conf) as f:
            text = f.read()
        nodes = text[text.index("[nodes]\n") : text.index("[model]\n")]
        with open(conf, "w") as f:
            f.write(text.replace(nodes, f"join = {self.address[by]}\n"))
        self.daemons.append(Daemon(self, node))
        self.daemons[-1].start()
        self.nodes += node
        return True

    def start_etcd(self):
        for m in self.etcd:
            m.start()
        limit = pace.Bound(30)
        while not all(m.ready() for m in self.etcd):
            if limit.passed():
                raise Failed(f"etcd did not start: {self.last_line(self.etcd[0].out)}")
            time.sleep(0.1)

    def look(self):
        super().look()
        for m in self.etcd:
            if m.ended() is not None and m.wanted:
                raise Failed(f"{m.name} ended by itself: {self.last_line(m.out)}")

    def kill_all(self):
        super().kill_all()
        for m in self.etcd:
            m.kill()

    # --- what the nodes say ---

    def status(self):
        """A generator that asks all nodes for their status and ends when all have answered, or have
        not. The answers are in self.answers: node → what it said, or None."""
        asked = {}
        for node in self.nodes:
            words = ["status", "--json", "--address", f"unix:{self.dir}/{node}.sock"]
            asked[node] = subprocess.Popen(
                [self.shardctl, *words, "--timeout", "3"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                preexec_fn=child,
            )
        answers = {}
        for node, process in asked.items():
            while process.poll() is None:
                yield
            said = process.stdout.read()
            process.stdout.close()
            answers[node] = json.loads(said) if process.returncode == 0 else None
        self.answers = answers

    def coordinator(self):
        """Returns the daemon that most of the answers name, or None."""
        named = [
            n["name"] for a in self.answers.values() if a for n in a["nodes"] if n["coordinator"]
        ]
        if not named:
            return None
        most = max(sorted(set(named)), key=named.count)
        return self.daemons[self.nodes.index(most)]

    def lacks(self):
        """Returns what the answers say is not whole. Nothing: every node has its links, and all
        models have all copies on all nodes."""
        for node, a in self.answers.items():
            if a is None:
                return f"{node} does not answer"
            down = [n["name"] for n in a["nodes"] if n["state"] == "down"]
            if down:
                return f"{node} has no link to {', '.join(down)}"
            models = {m["name"]: m for m in a["models"]}
            for model in self.models:
                m = models.get(model.name)
                if m is None:
                    return f"{node} does not know {model.name}"
                if m["state"] not in ("training", "waiting"):
                    return f"{model.name} is {m['state']} at {node}"
                if len(m["members"]) < len(self.nodes) or m["catching_up"]:
                    lists = f"members {m['members']}, catching up {m['catching_up']}"
                    return f"{model.name} at {node}: {lists}"
                if m["chunks"]["least"] < model.replicas:
                    return f"{model.name} at {node}: a chunk has {m['chunks']['least']} copies"
        return None
