#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layers.py [ROOT]: checks which file includes and calls which. The files of a folder call and
include those of their own folder and of folders further down, and tell those above by tables of
functions (link/events.h, data/events.h, model/watch.h). Prints one line for each call and include
of something above, and for each circle of more than four files. Fails if there is any."""
import collections
import os
import re
import sys

# The lowest first. The order of folders on one line does not matter. "" are the files in daemon/
# itself.
ROOMS = {
    "daemon": [["optim", "core"], ["config", "gpu"], ["node", "store", "cluster"], ["warm"], ["link"], ["data"], ["model"],
               ["control"], ["ckpt"], ["obs"], [""]],
    "proto": [["base"], ["wire", "cuda"], ["net", "ckpt"]],
}
# Files in daemon/ itself that belong to a low layer: what every folder may know of the process.
LOW = {"daemon/server.h": "node"}
CIRCLE_MAX = 4


def sources(root, part):
    for folder, _, names in os.walk(os.path.join(root, part)):
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cu")):
                yield os.path.relpath(os.path.join(folder, name), root)


def rank(path):
    part, *rest = path.split("/")
    room = LOW.get(path, rest[0] if len(rest) > 1 else "")
    for i, rooms in enumerate(ROOMS[part]):
        if room in rooms:
            return i
    sys.exit(f"layers: {path}: {part}/{room}/ has no place among the rooms of tests/lib/layers.py")


def plain(text):
    """Returns the text without comments, strings and directives."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"^[ \t]*#(\\\n|[^\n])*", "", text, flags=re.M)


def definitions(text):
    """Returns (name, static) of each function that is defined: at the beginning of a line, before a
    brace at the beginning of one."""
    for m in re.finditer(r"^(?!static_assert)([A-Za-z_][^;{}()=]*?)\b(\w+)\((?:[^;{}])*\)\s*\n\{", text, flags=re.M):
        yield m.group(2), m.group(1).startswith("static")


def circles(edges):
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in edges.get(v, ()):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            found.append(stack[at:])
            del stack[at:]

    for v in list(edges):
        if v not in index:
            visit(v)
    return [sorted(c) for c in found if len(c) > CIRCLE_MAX]


def main():
    sys.setrecursionlimit(20000)
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    wrong = []
    for part in ROOMS:
        files = list(sources(root, part))
        texts = {f: open(os.path.join(root, f), encoding="utf-8").read() for f in files}
        bodies = {f: plain(t) for f, t in texts.items()}
        owner, own, twice = {}, collections.defaultdict(set), set()
        for f in files:
            for name, static in definitions(bodies[f]):
                if static or f.endswith(".h"):
                    own[f].add(name)
                    continue
                if owner.setdefault(name, f) != f:
                    twice.add(name)  # Two builds define it: rdma.c and rdma_none.c.
        calls = collections.defaultdict(set)
        for f in files:
            for name in set(re.findall(r"\b([a-z_]\w*)\b", bodies[f])) - own[f] - twice:
                to = owner.get(name)
                if to is None or to == f or f.endswith(".h"):
                    continue
                calls[f].add(to)
                if rank(to) > rank(f):
                    wrong.append(f"{f}: calls {name}() of {to}, which is above it")
            for header in re.findall(r'^ *# *include "([^"]+)"', texts[f], flags=re.M):
                to = f"{part}/{header}"
                if to in texts and rank(to) > rank(f):
                    wrong.append(f"{f}: includes {to}, which is above it")
        wrong += [f"a circle of {len(c)} files: {' '.join(c)}" for c in circles(calls)]
    print("".join(f"{w}\n" for w in sorted(wrong)), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
