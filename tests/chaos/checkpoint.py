# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints as proto/ckpt/README.md describes them, without any code of shardd, and
compares every byte with its checksum."""

import ctypes
import ctypes.util
import json
import os
import struct

import numpy as np

_xxh = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_xxh.XXH3_64bits.restype = ctypes.c_uint64
_xxh.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3(data):
    return _xxh.XXH3_64bits(bytes(data), len(data))


class Wrong(Exception):
    pass


def _manifest(folder):
    raw = open(os.path.join(folder, "manifest.json"), "rb").read()
    head, end = raw[:-26], raw[-26:]
    if end[:7] != b'"sum":"' or end[-3:] != b'"}\n' or int(end[7:23], 16) != xxh3(head):
        raise Wrong(f"{folder}/manifest.json: its last member is not the sum of what is before it")
    m = json.loads(raw)
    if (m["format"], m["version"]) != ("shardd checkpoint", 1):
        raise Wrong(f"{folder}/manifest.json: format {m['format']}, version {m['version']}")
    return m


def _file(folder, f):
    path = os.path.join(folder, f["name"])
    data = open(path, "rb").read()
    if len(data) != f["bytes"]:
        raise Wrong(f"{path}: {len(data)} bytes, the manifest says {f['bytes']}")
    pieces = [data[at : at + f["piece_bytes"]] for at in range(0, len(data), f["piece_bytes"])]
    if "".join(f"{xxh3(p):016x}" for p in pieces) != f["sums"]:
        raise Wrong(f"{path}: differs from the manifest's sums")
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def read(folder):
    """Returns (manifest, {kind: {tensor: array}}). Raises Wrong if no file holds some elements."""
    m = _manifest(folder)
    sizes = {
        t["name"]: (int(np.prod(t["shape"], dtype=np.int64)), t["flags"]) for t in m["tensors"]
    }
    kinds, count = {}, {}
    for kind in m["kinds"]:
        kinds[kind] = {
            n: np.full(size, np.nan, np.float32)
            for n, (size, flags) in sizes.items()
            if kind == "master" or not flags
        }
        count[kind] = {n: np.zeros(len(a), np.int32) for n, a in kinds[kind].items()}
    for f in m["files"]:
        header, body = _file(folder, f)
        for name, entry in header.items():
            kind, _, rest = name.partition("/")
            if kind in ("__metadata__", "blob"):
                continue
            tensor, _, span = rest.rpartition("[")
            first, end = (int(x) for x in span.rstrip("]").split(":"))
            lo, hi = entry["data_offsets"]
            kinds[kind][tensor][first:end] = np.frombuffer(body[lo:hi], "<f4")
            count[kind][tensor][first:end] += 1
    for kind, tensors in count.items():
        for tensor, c in tensors.items():
            if (c != 1).any():
                raise Wrong(
                    f"{folder}: element {int(np.argmax(c != 1))} of {kind} of {tensor} stands there {c[np.argmax(c != 1)]} times"
                )
    return m, kinds


def read_dump(path):
    """Reads what `chaos-trainer read` wrote: (step, {kind: {tensor: array}})."""
    kinds, steps = {}, set()
    with open(path, "rb") as f:
        while line := f.readline():
            kind, tensor, numel, step = line.decode().split()
            kinds.setdefault(kind, {})[tensor] = np.frombuffer(f.read(4 * int(numel)), "<f4")
            steps.add(int(step))
    if len(steps) != 1:
        raise Wrong(f"{path}: weights and moments of different steps: {sorted(steps)}")
    return steps.pop(), kinds
