# SPDX-License-Identifier: Apache-2.0
"""The links of `make chaos`. A thread stands in front of each node's port and forwards bytes, until
it is told to cut connections (both ends see a reset), to hold them (they stay open and say
nothing), or to refuse new ones."""

import random
import selectors
import socket
import struct
import threading
import time

CHUNK = 1 << 18
HOST = "127.0.0.2"


class _Pair:
    """One connection: two sockets, and the bytes that wait to be written to each."""

    def __init__(self, proxy, near, target):
        self.proxy, self.held_until = proxy, 0.0
        self.near, self.far = near, socket.socket()
        self.other = {self.near: self.far, self.far: self.near}
        self.waiting = {self.near: b"", self.far: b""}  # To be written there.
        for s in self.other:
            s.setblocking(False)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connected = False
        try:
            self.far.connect(("127.0.0.1", target))
        except BlockingIOError:
            pass

    def watch(self):
        for s in self.other:
            events = 0
            if time.monotonic() >= self.held_until:
                if not self.connected:
                    events = selectors.EVENT_WRITE if s is self.far else 0
                else:
                    events |= (
                        selectors.EVENT_READ if len(self.waiting[self.other[s]]) < 8 * CHUNK else 0
                    )
                    events |= selectors.EVENT_WRITE if self.waiting[s] else 0
            self.proxy.set(s, events, self)

    def ready(self, s, events):
        if not self.connected:
            self.connected = self.far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            if not self.connected:
                return self.end()
        try:
            if events & selectors.EVENT_READ:
                data = s.recv(CHUNK)
                if not data:
                    return self.end(reset=False)
                self.waiting[self.other[s]] += data
                s = self.other[s]
            if self.waiting[s]:
                self.waiting[s] = self.waiting[s][s.send(self.waiting[s]) :]
        except BlockingIOError:
            pass
        except OSError:
            return self.end()
        return self.watch()

    def end(self, reset=True):
        for s in self.other:
            self.proxy.set(s, 0, self)
            try:
                if not reset and self.waiting[s]:
                    s.send(self.waiting[s])
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
            except OSError:
                pass
        self.proxy.pairs.discard(self)


class Proxy(threading.Thread):
    def __init__(self, targets):
        """targets: ports of 127.0.0.1. The proxy has the same port of HOST in front of each."""
        super().__init__(daemon=True)
        self.selector, self.registered, self.pairs = selectors.DefaultSelector(), {}, set()
        self.commands, self.lock, self.refused_until = [], threading.Lock(), 0.0
        for target in targets:
            s = socket.create_server((HOST, target), backlog=64)
            s.setblocking(False)
            self.selector.register(s, selectors.EVENT_READ, target)

    def set(self, s, events, pair):
        was = self.registered.get(s, 0)
        if events and not was:
            self.selector.register(s, events, pair)
        elif events and events != was:
            self.selector.modify(s, events, pair)
        elif was and not events:
            self.selector.unregister(s)
        self.registered[s] = events
        if not events:
            del self.registered[s]

    def tell(self, what, share, seed, seconds=0.0):
        """what: cut | hold | refuse. share: how many of the connections. seconds: for hold and
        refuse."""
        with self.lock:
            self.commands.append((what, share, seed, seconds))

    def _obey(self):
        with self.lock:
            commands, self.commands = self.commands, []
        for what, share, seed, seconds in commands:
            pick = random.Random(seed)
            pairs = sorted(self.pairs, key=lambda p: p.near.fileno())
            chosen = [p for p in pairs if pick.random() < share] or pairs[:1]
            if what == "refuse":
                self.refused_until = time.monotonic() + seconds
            for pair in chosen:
                if what == "hold":
                    pair.held_until = time.monotonic() + seconds
                else:
                    pair.end()

    def _accept(self, listener, target):
        try:
            near, _ = listener.accept()
        except OSError:
            return
        if time.monotonic() < self.refused_until:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()
            return
        pair = _Pair(self, near, target)
        self.pairs.add(pair)
        pair.watch()

    def run(self):
        while True:
            for key, events in self.selector.select(0.02):
                if not isinstance(key.data, _Pair):
                    self._accept(key.fileobj, key.data)
                elif key.data in self.pairs:
                    key.data.ready(key.fileobj, events)
            self._obey()
            for pair in list(self.pairs):
                if pair.held_until:
                    pair.held_until = (
                        0.0 if time.monotonic() >= pair.held_until else pair.held_until
                    )
                    pair.watch()
