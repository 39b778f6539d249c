# SPDX-License-Identifier: Apache-2.0
"""The processes of `make chaos`: daemons whose memory outlives them, the trainers of all models,
their logs as they grow, and the checkpoints, of which a copy is kept before a later save replaces
them. Here the daemons are three static ones on loopback; elastic.py has five in network namespaces.
faults.py breaks all this, and chaos.py watches it."""

import ctypes
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

import ports
from models import MODELS
from proxy import HOST, Proxy

LIBC = ctypes.CDLL(None, use_errno=True)


# An operator's restore gives up what there is, also when the coordinator dies meanwhile. A node
# that was away then, or is told of it late, says the same in other words.
OF_AN_OPERATOR = re.compile(
    r'why="(restored from|the model was LOST:|it was lost and sealed again|'
    r".*while it restored the model)"
)


class Failed(Exception):
    pass


def child(netns=None):
    """What a child does before it becomes a program. netns: a descriptor of the network namespace
    that it enters."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setpgid(0, 0)
    if netns is not None and LIBC.setns(netns, 0x40000000) != 0:  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "setns")


class Process:
    """A daemon or a trainer that is started again and again. wanted: it should be running. netns: a
    descriptor of the network namespace in which it runs."""

    def __init__(self, name, command, out, netns=None):
        self.name, self.command, self.out, self.netns = name, command, out, netns
        self.child, self.wanted, self.starts, self.stopped = None, False, 0, 0

    def start(self):
        self.wanted = True
        if self.child is None:
            with open(self.out, "a") as f:
                self.child = subprocess.Popen(
                    self.command,
                    stdout=f,
                    stderr=f,
                    stdin=subprocess.DEVNULL,
                    preexec_fn=lambda: child(self.netns),
                )
            self.starts, self.stopped = self.starts + 1, 0
            self.started = time.monotonic()

    def signal(self, number):
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)

    def kill(self):
        self.wanted = False
        if self.child is not None:
            self.signal(signal.SIGKILL)
            self.child.wait()
            self.child = None

    def pause(self):
        self.stopped += 1
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.stopped = max(0, self.stopped - 1)
        if self.stopped == 0:
            self.signal(signal.SIGCONT)

    def ended(self):
        """Returns the exit status if it ended by itself. None: it runs, or is not meant to run."""
        rc = self.child.poll() if self.child is not None else None
        if rc is not None:
            self.child = None
        return rc


class Trainer(Process):
    def __init__(self, cluster, model, slot):
        where = model.trainers[slot]
        node = where.split(":")[-1]
        address = (
            f"unix:{cluster.dir}/{node}.sock"
            if where == node
            else f"tcp://{cluster.address[node]}"
        )
        self.log = f"{cluster.dir}/logs/{model.name}-{slot}.log"
        self.model, self.read_to, self.begun = model, 0, {}
        self.committed = (
            0,
            0,
            0,
        )  # (When it was begun, world, step) of the newest step that this trainer was told of.
        words = {
            "name": model.name,
            "slot": slot,
            "address": address,
            "log": self.log,
            "settings": model.settings(),
            "image": model.image,
            "grad": model.grad,
            "pause-ms": model.pause_ms,
            "last": model.last,
            "tensors": " ".join(f"{k}={v}" for k, v in model.tensors.items()),
            "does": model.does,
            "secret": cluster.secret,
        }
        if model.save_every and slot == 0:
            words |= {
                "save-every": model.save_every,
                "save-dir": f"{cluster.checkpoints}/{model.name}",
            }
        super().__init__(
            f"{model.name}-{slot}",
            [cluster.trainer, "train"] + [f"{k}={v}" for k, v in words.items()],
            f"{self.log}.err",
        )

    def look(self):
        """Reads what its log has since the last call."""
        if not os.path.exists(self.log):
            return
        with open(self.log, "rb") as f:
            f.seek(self.read_to)
            data = f.read()
        end = data.rfind(b"\n") + 1
        self.read_to += end
        for line in data[:end].decode(errors="replace").splitlines():
            kind, ns, *w = line.split()
            if kind == "B":
                self.begun[int(w[1])] = int(ns)
                self.begun = {k: v for k, v in self.begun.items() if k > int(w[1]) - 3}
            elif kind == "R" and int(w[0]) in self.begun:
                self.committed = (self.begun[int(w[0])], int(w[3]), int(w[0]))
            elif kind == "F":
                raise Failed(f"trainer {self.name}: {' '.join(w)}")


class Daemon(Process):
    def __init__(self, cluster, node):
        conf = f"{cluster.dir}/{node}.conf"
        super().__init__(
            f"daemon {node}",
            [cluster.shardd, "--config", conf],
            f"{cluster.dir}/logs/daemon-{node}.log",
            cluster.netns.get(node),
        )
        self.node, self.read_to, self.disk_full = node, 0, False
        self.cluster, self.warm = cluster, f"{cluster.warm}/{node}"
        self.taken = False  # So was its memory, while others have copies of all that it had.

    def look(self):
        """Checks the log. No daemon may say that weights are lost, or begin without its memory
        after its first start, unless a fault took that memory or an operator restored the model."""
        if not os.path.exists(self.out):
            return
        with open(self.out, "rb") as f:
            f.seek(self.read_to)
            data = f.read()
        end = data.rfind(b"\n") + 1
        self.read_to += end
        for line in data[:end].decode(errors="replace").splitlines():
            lost = "event=lost" in line and not OF_AN_OPERATOR.search(line)
            cold = "event=cold_start" in line and self.starts > 1
            cold = cold and not self.taken
            if (lost or cold) and not self.cluster.memory_taken:
                raise Failed(f"memory was lost though it was there: {line}")
            if lost and " restoring=0 " in line:
                self.cluster.lost.add(re.search(r" model=(\S+)", line).group(1))


class Cluster:
    nodes = "abc"
    settings = ""  # Of [cluster].

    def __init__(self, build, folder, kind):
        self.dir, self.build = folder, os.path.abspath(build)
        self.models = MODELS[kind]
        self.shardd, self.shardctl, self.trainer = (
            f"{self.build}/{x}" for x in ("shardd", "shardctl", "chaos-trainer")
        )
        for sub in ("logs", "archive", "final", "disk"):
            os.makedirs(f"{folder}/{sub}", exist_ok=True)
        self.disk, self.checkpoints = f"{folder}/disk", f"{folder}/disk/checkpoints"
        self.secret, self.node_secret = f"{folder}/secret", f"{folder}/node_secret"
        self.small_disk = self._mount()
        self.warm = f"/dev/shm/{os.path.basename(folder)}"
        os.makedirs(self.checkpoints)
        for node in self.nodes:
            os.makedirs(f"{self.warm}/{node}")
        for secret in (self.secret, self.node_secret):
            subprocess.run(
                [self.shardctl, "secret", "new", secret], check=True, stdout=subprocess.DEVNULL
            )
        self.netns = {}  # Node → its network namespace, if it has one.
        # Node → where it listens, and where others dial.
        self.listens, self.address = self._network()
        for node in self.nodes:
            self._configure(node)
        self.daemons = [Daemon(self, n) for n in self.nodes]
        self.trainers = [
            Trainer(self, m, slot) for m in self.models for slot in range(len(m.trainers))
        ]
        self.events = open(f"{folder}/events.log", "a")
        self.event("cluster", kind=kind)
        self.commands = 0
        # lost: models for which there is no checkpoint.
        self.memory_taken, self.lost = False, set()
        self.archived = {}  # Path → the manifest's inode of the last copy.

    def _mount(self):
        """Mounts a small disk for state and checkpoints, which can be filled. False: the test is
        not root."""
        options = b"size=48m,mode=0755"
        return LIBC.mount(b"none", self.disk.encode(), b"tmpfs", 0, options) == 0

    def unmount(self):
        if self.small_disk:
            LIBC.umount2(self.disk.encode(), 2)  # MNT_DETACH

    def _network(self):
        took = [ports.take() for _ in self.nodes]
        self.proxy = Proxy(took)
        self.proxy.start()
        return (
            {n: f"{host}:{port}" for n, port in zip(self.nodes, took)}
            for host in ("127.0.0.1", HOST)
        )

    def _configure(self, node):
        state = f"{self.disk}/state-{node}"
        with open(f"{self.dir}/{node}.conf", "w") as f:
            f.write(
                f"[daemon]\nnode = {node}\nlisten = {self.listens[node]}\n"
                f"socket = {self.dir}/{node}.sock\nstate = {state}\n"
                "history = 1MiB\nhttp = off\nmemory = 256MiB\nworkers = 1\n"
                f"warm_restart = tmpfs\nwarm_dir = {self.warm}/{node}\n"
                f"[cluster]\nrun_id = chaos\nsecret = {self.secret}\n"
                f"node_secret = {self.node_secret}\n"
                f"{'' if 'membership' in self.settings else 'membership = static' + chr(10)}"
                f"{self.settings}[nodes]\n"
            )
            for n in self.nodes:
                f.write(f"{n} = {self.address[n]}\n")
            f.write(f"[model]\ncheckpoint_dir = {self.checkpoints}\n")

    def event(self, what, **more):
        self.events.write(json.dumps({"ns": time.monotonic_ns(), "what": what, **more}) + "\n")
        self.events.flush()

    def ctl(self, words, node, timeout):
        """Starts a shardctl. child.out is the file with what it prints."""
        self.commands += 1
        out = f"{self.dir}/logs/shardctl-{self.commands:03}.out"
        command = [
            self.shardctl,
            *words,
            "--address",
            f"unix:{self.dir}/{node}.sock",
            "--timeout",
            str(timeout),
        ]
        with open(out, "w") as f:
            f.write(f"$ {' '.join(command[1:])}\n")
            f.flush()
            process = subprocess.Popen(
                command, stdout=f, stderr=f, stdin=subprocess.DEVNULL, preexec_fn=child
            )
        process.out = out
        return process

    def look(self):
        for d in self.daemons:
            rc = d.ended()
            if rc is not None and d.wanted:
                if not d.disk_full:
                    raise Failed(f"{d.name} ended by itself with {rc}: {self.last_line(d.out)}")
                d.start()
            d.look()
        for t in self.trainers:
            rc = t.ended()
            t.look()
            if rc is not None and t.wanted and not (rc == 0 and t.model.last):
                raise Failed(
                    f"trainer {t.name} ended by itself with {rc}: "
                    f"{self.last_line(t.out) or self.last_line(t.log)}"
                )
        self.archive()

    @staticmethod
    def last_line(path):
        lines = open(path, errors="replace").read().splitlines() if os.path.exists(path) else []
        return lines[-1] if lines else ""

    # --- checkpoints ---

    def archive(self):
        """Copies every complete checkpoint. A pruned or replaced one may go while it is copied, and
        then the copy does not count."""
        for manifest in glob.glob(f"{self.checkpoints}/*/*/manifest.json"):
            folder = os.path.dirname(manifest)
            model = os.path.basename(os.path.dirname(folder))
            try:
                inode = os.stat(manifest).st_ino
                if self.archived.get(folder) == inode or os.path.basename(folder).startswith("."):
                    continue
                to = (
                    f"{self.dir}/archive/{model}/{len(self.archived):03}-"
                    f"{os.path.basename(folder)}-{time.monotonic_ns()}"
                )
                links = f"{self.checkpoints}/.links"
                shutil.rmtree(links, ignore_errors=True)
                shutil.copytree(
                    folder, links, copy_function=os.link
                )  # All at once, so that no copy mixes two checkpoints.
                if os.stat(manifest).st_ino == inode == os.stat(f"{links}/manifest.json").st_ino:
                    shutil.copytree(links, to)
                    self.archived[folder] = inode
            except (OSError, shutil.Error):
                continue
        shutil.rmtree(f"{self.checkpoints}/.links", ignore_errors=True)

    def newest(self, model):
        """Returns the last copy of a checkpoint of this model."""
        copies = sorted(
            glob.glob(f"{self.dir}/archive/{model}/*"), key=lambda p: int(p.rsplit("-", 1)[1])
        )
        return copies[-1] if copies else None

    # --- progress ---

    def healed(self, since_ns):
        """Returns the names of models that have not committed a step, begun after that moment, in
        the world of all their trainers."""
        late = []
        for m in self.models:
            mine = [t for t in self.trainers if t.model is m]
            if not m.last and not any(
                t.committed[0] >= since_ns and t.committed[1] == len(mine) for t in mine
            ):
                late.append(m.name)
            elif m.last and not all(t.committed[2] >= m.last for t in mine):
                late.append(m.name)
        return late

    def tag_of(self, archive):
        return re.sub(r"^\d+-(.*)-\d+$", r"\1", os.path.basename(archive))

    def kill_all(self):
        for p in self.trainers + self.daemons:
            p.kill()
