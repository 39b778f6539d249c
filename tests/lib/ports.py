#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ports for tests in Python and shell, reserved as in ports.c: the byte at the port's number is
locked in one file, and the port is outside of the range that the kernel gives to outgoing
connections. So two tests that run at the same time never get the same port.

take() reserves a port until this process ends. In a shell:

    exec 7< <(exec python3 -B tests/lib/ports.py 2)
    reserved=$!
    read -r port http <&7

It prints the ports in one line, and ends with that shell, which must kill it where it waits for its children.
"""
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

FIRST, END = 10000, 29700
F_OFD_SETLK = 37
PR_SET_PDEATHSIG = 1

_file = None
try:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        _low, _high = map(int, f.read().split())
except OSError:
    _low, _high = 32768, 60999
if _low <= FIRST:  # It covers everything, so a port is only reserved among tests.
    _low = _high = 0
_next = FIRST + os.getpid() * 37 % (END - FIRST)


def _reserved(port):
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, port, 1, 0)
    try:
        fcntl.fcntl(_file, F_OFD_SETLK, lock)
    except OSError:
        return False
    return True


def _listens(port):
    """Whether this process can listen there. SO_REUSEADDR ignores old connections of a daemon that
    ended."""
    for host in "127.0.0.1", "127.0.0.2":  # The second is where proxies listen.
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind((host, port))
                s.listen(1)
            except OSError:
                return False
    return True


def take():
    """Returns a port of 127.0.0.1 that no other test has while this process lives."""
    global _file, _next
    if _file is None:
        path = f"/tmp/shard-test-ports-{os.geteuid()}"
        _file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for _ in range(END - FIRST):
        port = _next
        _next = FIRST + (_next + 1 - FIRST) % (END - FIRST)
        if not _low <= port <= _high and _reserved(port) and _listens(port):
            return port
    raise RuntimeError("every port of the tests is taken")


if __name__ == "__main__":
    print(*(take() for _ in range(int(sys.argv[1]))), flush=True)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pause()
