#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zero.py BUILD [--quick] [--plan | --json]: what ZeRO's stages need, said by `shardctl plan` and
measured. --plan: prints the tables of deploy/ZERO.md and measures nothing. Else two daemons with two trainers each train 100 million parameters (AdamW, bf16), once for each row, in
a network namespace of their own. The measures are the kernel's: memory of a trainer beside what it
had when it joined (the anonymous memory of smaps_rollup; on this machine it stands for a device's),
memory of a node (what its daemon has mapped, that of its trainers' arenas too), what lies and is
written on its disk, and what the namespace's loopback carried, frames and headers and all. Fails if
one is further than 2 % from what the plan says. --quick: a fifth of the parameters."""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

NODES, LOCAL, WARM, STEPS = 2, 2, 2, 3
BASE = "optimizer=adamw lr=1e-4 clip=1.0 min_world=4 max_world=4 local_world=2"
MIB = 1 << 20


@dataclasses.dataclass
class Row:
    name: str
    stage: int
    settings: str = "replicas=1"
    plan: str = "--replicas 1"
    disk: bool = False


NVME = "tier=nvme nvme_cache=8"
ROWS = [
    Row("ZeRO-1, Offload", 1),
    Row("ZeRO-2, Offload", 2),
    Row("ZeRO-3, Offload", 3),
    Row("ZeRO-3, Infinity", 3, f"replicas=1 {NVME}", "--replicas 1 --nvme-share 100 "
        "--nvme-cache 8", disk=True),
    Row("ZeRO++", 3, "replicas=1 grad_codec=int4 image_codec=int8",
        "--replicas 1 --grad-codec int4 --image-codec int8"),
    Row("ZeRO-3, two copies", 3, "replicas=2", "--replicas 2"),
]


def fail(text):
    sys.exit(f"zero: {text}")


def own_network():
    """Starts this program again in a network namespace with a loopback of its own."""
    if os.environ.get("ZERO_NETWORK") == "yes":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    how = ["unshare", "--net"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    if subprocess.run([*how, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        fail("no network namespace can be made here (unshare --net); run it as root")
    os.environ["ZERO_NETWORK"] = "yes"
    os.execvp(how[0], [*how, sys.executable, "-B", *sys.argv])


def octets():
    """Bytes of all packets that this namespace has sent."""
    with open("/proc/net/netstat") as f:
        rows = [line.split() for line in f if line.startswith("IpExt:")]
    return int(rows[1][rows[0].index("OutOctets")])


def anonymous(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(w.split()[1]) << 10 for w in f if w.startswith("Pss_Anon:"))


def mapped(pid):
    """Bytes of a daemon's memory that is there, without programs and libraries."""
    total, counts = 0, False
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            words = line.split()
            if not words[0].endswith(":"):
                path = words[5] if len(words) > 5 else ""
                counts = not path.startswith("/") or path.startswith(("/memfd:", "/dev/shm/"))
            elif counts and words[0] == "Rss:":
                total += int(words[1]) << 10
    return total


def written(pid):
    with open(f"/proc/{pid}/io") as f:
        return next(int(w.split()[1]) for w in f if w.startswith("write_bytes:"))


class Nodes:
    def __init__(self, build):
        # Below the build, because a tmpfs has no O_DIRECT everywhere.
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="zero-", dir=build))
        self.short = pathlib.Path(tempfile.mkdtemp(prefix="zero-", dir="/tmp"))
        self.daemons = []
        held = [socket.create_server(("127.0.0.1", 0)) for _ in range(NODES)]
        ports = [s.getsockname()[1] for s in held]
        for s in held:
            s.close()
        names = "ab"[:NODES]
        nodes = "\n".join(f"{n} = 127.0.0.1:{p}" for n, p in zip(names, ports))
        for n, port in zip(names, ports):
            for what in ("state", "nvme"):
                (self.dir / f"{what}-{n}").mkdir(mode=0o700)
            (self.dir / f"{n}.conf").write_text(
                f"[daemon]\nnode = {n}\nlisten = 127.0.0.1:{port}\nhttp = off\n"
                f"allow_unauthenticated = yes\nsocket = {self.short / n}.sock\n"
                f"state = {self.dir}/state-{n}\nnvme_dir = {self.dir}/nvme-{n}\n"
                f"memory = 8GiB\nhuge_pages = no\nworkers = 1\nwarm_restart = off\n"
                f"[cluster]\nrun_id = zero\nmembership = static\n[nodes]\n{nodes}\n")
            log = open(self.dir / f"{n}.log", "wb")
            self.daemons.append(subprocess.Popen(
                [f"{build}/shardd", "--config", str(self.dir / f"{n}.conf")], stdout=log,
                stderr=log, stdin=subprocess.DEVNULL))
        for n in range(NODES):
            self.wait(n)

    def address(self, n):
        return f"{self.short / 'ab'[n]}.sock"

    def wait(self, n):
        end = time.monotonic() + 60
        while True:
            with socket.socket(socket.AF_UNIX) as s:
                try:
                    return s.connect(self.address(n))
                except OSError:
                    if time.monotonic() > end or self.daemons[n].poll() is not None:
                        fail((self.dir / f"{'ab'[n]}.log").read_text())
            time.sleep(0.02)

    def disk(self, n):
        """Bytes of the files of one node's tier, also of those that have no name any more."""
        open_files = pathlib.Path(f"/proc/{self.daemons[n].pid}/fd").iterdir()
        return sum(os.stat(f).st_blocks * 512 for f in open_files
                   if f"/nvme-{'ab'[n]}/" in os.readlink(f))

    def close(self):
        for d in self.daemons:
            d.terminate()
        for d in self.daemons:
            d.wait()
        shutil.rmtree(self.dir)
        shutil.rmtree(self.short)


class Trainers:
    def __init__(self, build, nodes, row, layers, numel):
        self.all = [
            subprocess.Popen(
                [f"{build}/tests/bench/zero_trainer", f"unix:{nodes.address(r // LOCAL)}",
                 f"{BASE} {row.settings}", str(r), str(row.stage), str(layers), str(numel)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for r in range(NODES * LOCAL)]
        self.hear("joined")
        self.before = [anonymous(t.pid) for t in self.all]

    def hear(self, what):
        for t in self.all:
            line = t.stdout.readline()
            if not line.startswith(what):
                fail(f'a trainer said "{line.strip()}" and not "{what}"')

    def step(self):
        for t in self.all:
            t.stdin.write("go\n")
            t.stdin.flush()
        self.hear("step")

    def device(self):
        return max(anonymous(t.pid) - b for t, b in zip(self.all, self.before))

    def close(self):
        for t in self.all:
            t.stdin.close()
        if any(t.wait() for t in self.all):
            fail("a trainer failed")


def plan_of(build, words):
    done = subprocess.run([f"{build}/shardctl", "plan", "--json", *words.split()], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def planned(build, row, layers, numel):
    words = [f"--params={layers * numel}", f"--layer={numel}", f"--tensors={layers}",
             f"--ranks={NODES * LOCAL}", f"--nodes={NODES}", f"--local={LOCAL}",
             "--huge-pages=no", *row.plan.split()]
    said = plan_of(build, " ".join(words))["shardd"]
    return {"device": said["device_bytes"][row.stage - 1], "node": said["node_bytes"]["total"],
            "wire": said["node_traffic_bytes"], "disk": said["disk_bytes"],
            "written": said["disk_step_bytes"]}


def device_table(build, words, published, of_whom):
    """One row for each stage. published: gigabytes per device, data parallel first."""
    zero = plan_of(build, words)
    by = {z["name"]: z for z in zero["zero"]}
    here = zero["shardd"]["device_bytes"]
    print(f"| GB per device | {of_whom} | by the formula | here | a rank's step, ZeRO |\n"
          "|---|---|---|---|---|")
    for k, name in enumerate(("data_parallel", "zero1", "zero2", "zero3")):
        print(f"| {'data parallel' if k == 0 else f'stage {k}'} | {published[k]} | "
              f"{by[name]['device_bytes'] / 1e9:.4g} | "
              f"{'-' if k == 0 else f'{here[k - 1] / 1e9:.4g}'} | "
              f"{by[name]['rank_traffic_bytes'] / 1e9:.4g} |")


def place_table(build, words):
    """One row for each way to keep the state."""
    print("| GB | DeepSpeed's estimate: device, node | here: device, node | disk | wire, a node's "
          "step |\n|---|---|---|---|---|")
    for name, theirs, stage, more in (
            ("stage 2, Offload", "zero2_offload", 2, ""),
            ("stage 3, Offload", "zero3_offload_init", 3, ""),
            ("stage 3, Infinity", "zero3_offload_params_init", 3, "--nvme-share 100"),
            ("ZeRO++", None, 3, "--grad-codec int4 --image-codec int8")):
        plan = plan_of(build, f"{words} {more}")
        s = plan["shardd"]
        their = next((d for d in plan["deepspeed"] if d["name"] == theirs), None)
        print(f"| {name} | ", end="")
        print(f"{their['device_bytes'] / 1e9:.4g}, {their['node_bytes'] / 1e9:.4g}" if their
              else "-", end=" | ")
        print(f"{s['device_bytes'][stage - 1] / 1e9:.4g}, {s['node_bytes']['total'] / 1e9:.4g} | "
              f"{s['disk_bytes'] / 1e9:.4g} | {s['node_traffic_bytes'] / 1e9:.4g} |")


def tables(build):
    """The plan against published figures. deploy/ZERO.md has this, and a test compares them."""
    large, small = "--params 7.5B --ranks 64 --nodes 8 --replicas 1", "--params 7B --ranks 4"
    device_table(build, large, (120, 31.4, 16.6, 1.88), "ZeRO paper, Table 1")
    print()
    place_table(build, large)
    print()
    device_table(build, small, (40, 15, 10, 5), "rule of thumb")
    print()
    place_table(build, small)


def measured(build, row, layers, numel):
    nodes = Nodes(build)
    try:
        trainers = Trainers(build, nodes, row, layers, numel)
        for _ in range(WARM):
            trainers.step()
        sent, wrote = octets(), [written(d.pid) for d in nodes.daemons]
        for _ in range(STEPS):
            trainers.step()
        found = {
            "device": trainers.device(),
            "node": max(mapped(d.pid) for d in nodes.daemons),
            "wire": (octets() - sent) / STEPS / NODES,
            "disk": max(nodes.disk(n) for n in range(NODES)) if row.disk else 0,
            "written": max(written(d.pid) - w for d, w in zip(nodes.daemons, wrote)) / STEPS
            if row.disk else 0}
        trainers.close()
        return found
    finally:
        nodes.close()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("build")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--json", action="store_true")
    p.add_argument("--plan", action="store_true")
    o = p.parse_args()
    if o.plan:
        return tables(o.build)
    own_network()
    # A layer ends in the middle of an alignment, which is what the plan supposes of a tensor.
    layers, numel = 12, (8 << 20) // (5 if o.quick else 1) // 64 * 64 - 32
    wrong, out = [], []
    kinds = ("device", "node", "wire", "disk", "written")
    print(f"| {layers * numel} parameters, MiB: plan, measured | of a trainer | of a node | "
          "wire, of a node's step | on its disk | written, of a step |\n|---|---|---|---|---|---|",
          file=sys.stderr if o.json else sys.stdout)
    for row in ROWS:
        plan, found = planned(o.build, row, layers, numel), measured(o.build, row, layers, numel)
        cells = []
        for k in kinds:
            if plan[k] == 0:
                cells.append("-")
                continue
            off = found[k] / plan[k] - 1
            cells.append(f"{plan[k] / MIB:.1f}, {found[k] / MIB:.1f} ({100 * off:+.1f} %)")
            if abs(off) > 0.02:
                wrong.append(f"{row.name}: {k} is {100 * off:+.1f} % from the plan")
        out.append({"name": row.name, "plan": plan, "measured": found})
        print(f"| {row.name} | {' | '.join(cells)} |", flush=True,
              file=sys.stderr if o.json else sys.stdout)
    if o.json:
        print(json.dumps({"format": 1, "params": layers * numel, "rows": out}))
    for text in wrong:
        print(f"zero: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
