# SPDX-License-Identifier: Apache-2.0
"""The wire protocol, spoken from its documents alone.

It reads proto/wire/README.md for the ops and proto/wire/shard.proto for the messages, and shares no
code with shardd. A Conn is one connection: it frames, makes checksums, proves the secret and
returns what arrived. Its caller may send any bytes at all. What the other end refuses arrives as a
frame ERROR or as Closed. A wait that takes longer than its bound is a Hang.
"""
import array
import ctypes
import hashlib
import hmac
import os
import random
import re
import socket
import struct
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.append(os.path.join(ROOT, "tests", "lib"))
import pace  # noqa: E402

HEAD = struct.Struct("<4sHHIIIIQQIIQII")
REPLY = 1
FEATURE_BODY_SUM, FEATURE_AUTH = 1, 2
TRAINER, NODE, TOOL = 1, 2, 3

_xxh = ctypes.CDLL("libxxhash.so.0")
_xxh.XXH3_64bits_withSeed.restype = ctypes.c_uint64
_xxh.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]


def xxh3(data, seed=0):
    return _xxh.XXH3_64bits_withSeed(bytes(data), len(data), seed)


class Closed(Exception):
    """The other end closed the connection. args[0] is what it said before, or an empty text."""


class Refused(Exception):
    """An ERROR is the answer to a request. args: status, text."""


class Hang(Exception):
    """No answer came within the bound."""


# --- messages, from shard.proto ---

def _messages():
    text = open(os.path.join(ROOT, "proto/wire/shard.proto"), encoding="utf-8").read()
    text = re.sub(r"//[^\n]*", "", text)
    out = {}
    for name, body in re.findall(r"message\s+(\w+)\s*\{([^}]*)\}", text):
        fields = re.findall(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;", body)
        out[name] = {f[2]: (int(f[3]), f[1], bool(f[0])) for f in fields}
    return out


MESSAGE = _messages()
VARINT = {"uint32", "uint64", "int32", "int64", "sint32", "sint64", "bool"}
FIXED = {"double": "<d", "fixed64": "<Q", "fixed32": "<I"}


def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _scalar(kind, value):
    if kind in FIXED:
        if kind != "double":
            value &= (1 << (64 if kind == "fixed64" else 32)) - 1
        return struct.pack(FIXED[kind], value)
    if kind.startswith("sint"):
        return varint((value << 1) ^ (value >> 63))
    return varint(int(value))


def pack(name, values):
    """Packs a message into bytes. values: field -> value, a dict for a message, a list if the field
    is repeated."""
    out = bytearray()
    for field, value in values.items():
        number, kind, many = MESSAGE[name][field]
        if kind in VARINT or kind in FIXED:
            if many:
                body = b"".join(_scalar(kind, v) for v in value)
                out += varint(number << 3 | 2) + varint(len(body)) + body
            else:
                wire = 0 if kind in VARINT else 5 if kind == "fixed32" else 1
                out += varint(number << 3 | wire) + _scalar(kind, value)
            continue
        for v in value if many else [value]:
            if kind in MESSAGE:
                v = pack(kind, v)
            elif isinstance(v, str):
                v = v.encode()
            out += varint(number << 3 | 2) + varint(len(v)) + v
    return bytes(out)


def _read_varint(data, at):
    n = shift = 0
    while True:
        b = data[at]
        at += 1
        n |= (b & 127) << shift
        shift += 7
        if b < 128:
            return n, at


def _value(kind, raw):
    if kind == "bool":
        return bool(raw)
    if kind.startswith("sint"):
        return (raw >> 1) ^ -(raw & 1)
    if kind.startswith("int") and raw >> 63:
        return raw - (1 << 64)
    return raw


def unpack(name, data):
    """Returns the message as a dict with every field, which is zero, empty or {} if it was absent.
    """
    out = {}
    for field, (_, kind, many) in MESSAGE[name].items():
        out[field] = [] if many else {} if kind in MESSAGE else b"" if kind == "bytes" else "" if kind == "string" else 0
    names = {number: (field, kind, many) for field, (number, kind, many) in MESSAGE[name].items()}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        wire = key & 7
        if wire == 0:
            raw, at = _read_varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            raw, at = data[at:at + size], at + size
        else:
            size, at = _read_varint(data, at)
            raw, at = data[at:at + size], at + size
        if key >> 3 not in names:
            continue
        field, kind, many = names[key >> 3]
        if kind in MESSAGE:
            value = unpack(kind, raw)
        elif kind == "string":
            value = raw.decode()
        elif kind == "bytes":
            value = bytes(raw)
        elif wire == 2:  # Packed numbers.
            pos = 0
            while pos < len(raw):
                if kind in FIXED:
                    size = struct.calcsize(FIXED[kind])
                    out[field].append(struct.unpack(FIXED[kind], raw[pos:pos + size])[0])
                    pos += size
                else:
                    n, pos = _read_varint(raw, pos)
                    out[field].append(_value(kind, n))
            continue
        else:
            value = _value(kind, raw) if wire == 0 else struct.unpack(FIXED[kind], raw)[0]
        if many:
            out[field].append(value)
        else:
            out[field] = value
    return out


# --- ops, from README ---

def _bytes_of(text):
    return int(text.replace("Mi", "").strip()) * (1 << 20 if "Mi" in text else 1)


def _ops():
    """Returns name -> (number, body of the request, body of the reply, min, max). Body None:
    nothing or tensor bytes."""
    ops = {}
    for line in open(os.path.join(ROOT, "proto/wire/README.md"), encoding="utf-8"):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) < 5 or not cells[0].isdigit():
            continue
        number = int(cells[0])
        if number < 100:
            sides = [re.sub(r"[^A-Za-z].*", "", s.strip()) for s in cells[3].split("→")]
            sides = [s if s in MESSAGE else None for s in sides]
            lengths = cells[4].split("..")
            ops[cells[1]] = (number, sides[0], sides[-1] if len(sides) > 1 else None,
                             _bytes_of(lengths[0]), _bytes_of(lengths[-1]))
        elif number < 200 and len(cells) == 5 and cells[1].isupper():
            ops[cells[1]] = (number, "Core", None, 0, 16 << 20 if "16 MiB" in cells[4] else 4096)
    return ops


OPS = _ops()
OP = {name: row[0] for name, row in OPS.items()}
OP_NAME = {row[0]: name for name, row in OPS.items()}
assert OP["HELLO"] == 1 and OP["REGION"] == 60 and OP["WAITING"] == 115, "README's tables were not understood"
BULK = {OP[n] for n in ("WRITE", "READ", "PUSH_DATA", "IMAGE_DATA", "CONTRIB_DATA")}
FIELDS = ("op", "flags", "model", "generation", "seq", "term", "step", "attempt", "chunk")


class Frame:
    def __init__(self, **fields):
        for f in FIELDS:
            setattr(self, f, fields.get(f, 0))
        self.body = fields.get("body", b"")

    @property
    def name(self):
        return OP_NAME.get(self.op, str(self.op))

    def copy(self, **fields):
        out = Frame(**{f: getattr(self, f) for f in FIELDS}, body=self.body)
        for k, v in fields.items():
            setattr(out, k, v)
        return out

    def message(self):
        row = OPS.get(self.name)
        kind = row and (row[2] if self.flags & REPLY else row[1])
        if self.name == "ERROR":
            kind = "Error"
        return unpack(kind, self.body) if kind else {}

    def __str__(self):
        ids = " ".join(f"{f}={getattr(self, f)}" for f in FIELDS[1:] if getattr(self, f))
        return f"{self.name} {ids} body={len(self.body)}"


def frame_bytes(f, ordinal, sums=True):
    """Returns a frame as it travels. Its fields are cut to their width, so any number may be given.
    """
    body_sum = xxh3(f.body) if f.body and sums else 0
    head = HEAD.pack(b"SHRD", 1, f.op & 0xffff, f.flags & 0xffffffff, f.model & 0xffffffff,
                     f.generation & 0xffffffff, f.seq & 0xffffffff, f.term & (1 << 64) - 1,
                     f.step & (1 << 64) - 1, f.attempt & 0xffffffff, f.chunk & 0xffffffff, body_sum,
                     len(f.body), 0)
    return head[:60] + struct.pack("<I", xxh3(head[:60], ordinal) & 0xffffffff) + f.body


class Conn:
    """One connection, at either end. address: a path of a unix socket, or (host, port). sock: an
    accepted connection."""

    def __init__(self, address=None, sock=None, bound=20.0):
        self.bound = bound  # In seconds of a quiet machine, for an answer and for bytes to be read.
        self.unix = isinstance(address, str)
        if sock is None:
            sock = socket.socket(socket.AF_UNIX if self.unix else socket.AF_INET, socket.SOCK_STREAM)
            sock.settimeout(pace.seconds(bound))
            sock.connect(address)
        self.sock = sock
        if not self.unix:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.out = self.inn = 0
        self.tag = 0
        self.buffer = bytearray()
        self.fds = []
        self.waiting = []  # Frames that arrived while an answer was awaited.
        self.last_error = ""

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.sock.close()

    def raw(self, data):
        try:
            self.sock.settimeout(pace.seconds(self.bound))
            self.sock.sendall(data)
        except socket.timeout:
            raise Hang("the other end takes no bytes") from None
        except OSError as e:
            self._gone(e)

    def _gone(self, e):
        """Reads what the other end said before it closed."""
        try:
            while True:
                f = self.read(0.5)
                if f is None:
                    break
        except Closed:
            pass
        raise Closed(self.last_error or str(e))

    def send(self, f):
        self.raw(frame_bytes(f, self.out))
        self.out += 1

    def _fill(self, left):
        """Reads more bytes into the buffer. False: none came in so many seconds."""
        if left <= 0:
            return False
        self.sock.settimeout(left)
        try:
            if self.unix:
                data, anc, _, _ = self.sock.recvmsg(1 << 18, socket.CMSG_LEN(16 * 4))
                for level, kind, raw in anc:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        fds = array.array("i")
                        fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
                        self.fds += list(fds)
            else:
                data = self.sock.recv(1 << 18)
        except socket.timeout:
            return False
        except OSError as e:
            raise Closed(self.last_error or str(e)) from None
        if not data:
            raise Closed(self.last_error)
        self.buffer += data
        return True

    def read(self, seconds=None):
        """Returns the next frame, or None if none came in so many seconds, or within the bound. The
        checksums of what arrives are checked."""
        bound = pace.Bound(self.bound)
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            if len(self.buffer) >= 64:
                h = HEAD.unpack_from(self.buffer)
                size = h[12]
                if len(self.buffer) >= 64 + size:
                    break
            left = bound.left() if until is None else until - time.monotonic()
            if not self._fill(left) and (until is not None or bound.passed()):
                return None
        head, body = bytes(self.buffer[:64]), bytes(self.buffer[64:64 + size])
        del self.buffer[:64 + size]
        if h[0] != b"SHRD" or xxh3(head[:60], self.inn) & 0xffffffff != h[13]:
            raise AssertionError("the daemon sent a frame whose header does not hold")
        if h[11] and xxh3(body) != h[11]:
            raise AssertionError(f"the daemon sent a body whose sum does not hold: {OP_NAME.get(h[2])}")
        self.inn += 1
        f = Frame(op=h[2], flags=h[3], model=h[4], generation=h[5], seq=h[6], term=h[7], step=h[8],
                  attempt=h[9], chunk=h[10], body=body)
        if f.name == "ERROR" and not f.flags & REPLY:
            self.last_error = f.message()["text"]
        return f

    def next(self, seconds=None):
        """Returns the next frame. Frames that were put aside come first."""
        return self.waiting.pop(0) if self.waiting else self.read(seconds)

    def request(self, name, message=None, body=b"", on_frame=None, seconds=None, **fields):
        """Sends a request, waits for its answer and returns that frame. Raises Refused, or Hang if
        none has come in so many seconds of a quiet machine. Other frames go to on_frame or are put
        aside."""
        row = OPS[name]
        self.tag += 1
        tag = self.tag
        if message is not None:
            body = pack(row[1], message)
        self.send(Frame(op=row[0], attempt=tag, body=body, **fields))
        bound = pace.Bound(self.bound if seconds is None else seconds)
        while True:
            f = self.read(bound.left())
            if f is None and not bound.passed():
                continue
            if f is None:
                raise Hang(f"no answer to {name} within {self.bound if seconds is None else seconds:.0f} s")
            if f.flags & REPLY and f.attempt == tag:
                if f.name == "ERROR":
                    e = f.message()
                    raise Refused(e["status"], e["text"])
                return f
            if on_frame is not None:
                on_frame(f)
            else:
                self.waiting.append(f)

    # --- opening ---

    def hello(self, role=TRAINER, secret=None, whole=None, brief=None, label=None):
        """Sends HELLO, and AUTH if there is a secret (32 bytes). whole: more fields of Hello.
        Returns the other end's whole Hello."""
        label = label or ("shardd auth 2 node" if role == NODE else "shardd auth 2 client")
        mine = {"wire_min": 1, "wire_max": 1, "features": FEATURE_BODY_SUM, "role": role,
                "release": "stranger", "pid": os.getpid()}
        mine.update(whole or {})
        if secret is None:
            return self.request("HELLO", mine).message()
        mine["features"] |= FEATURE_AUTH
        nonce = os.urandom(32)
        first = {k: mine[k] for k in ("wire_min", "wire_max", "features", "role", "node", "connection", "release")
                 if k in mine}
        first["nonce"] = nonce
        first.update(brief or {})
        body = pack("Hello", first)
        reply = self.request("HELLO", body=body)
        theirs = reply.message()
        hello_c = pack("Hello", mine)
        sums = nonce + theirs["nonce"] + hashlib.sha256(body).digest() + hashlib.sha256(reply.body).digest()
        proof = prove(secret, f"{label} dialler", sums, hello_c)
        answer = self.request("AUTH", {"proof": proof, "hello": hello_c}).message()
        want = prove(secret, f"{label} listener", sums, answer["hello"])
        if not hmac.compare_digest(want, answer["proof"]):
            raise AssertionError("the daemon's own proof does not hold")
        return unpack("Hello", answer["hello"])


def prove(secret, label, sums, hello):
    return hmac.new(secret, label.encode() + b"\0" + sums + hashlib.sha256(hello).digest(), hashlib.sha256).digest()


# --- hostile messages ---

NUMBERS = [0, 1, 2, 3, 7, 8, 63, 64, 255, 256, 257, 4095, 65535, 65536, (1 << 20), (1 << 31) - 1, 1 << 31,
           (1 << 32) - 1, 1 << 32, (1 << 44) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-308, 1e308, float("inf"), float("-inf"), float("nan"), 65536.0]
TEXTS = ["", "a", "m", "..", "../../etc", "/", "/tmp", "x" * 255, "x" * 300, "lr=1", "lr=nan optimizer=sgd", "%s%n",
         "optimizer=adamw chunk_elems=1024", "global_step1", "\u00e4", "a\nb", "max_world=8 local_world=1"]


class Liar:
    """Draws messages and headers. It remembers what it saw, so that its lies are near the truth."""

    def __init__(self, rng):
        self.rng = rng
        self.seen = {}  # (message, field) -> values.
        self.heads = []

    def saw(self, f):
        if f.flags & REPLY or f.op >= 100 or f.step or f.model:
            self.heads = (self.heads + [f])[-32:]
        try:
            kind = OPS[f.name][2 if f.flags & REPLY else 1]
            if kind:
                self._learn(kind, f.message())
        except (KeyError, IndexError, UnicodeDecodeError, struct.error):
            pass

    def _learn(self, kind, message):
        for field, value in message.items():
            if value in ("", b"", 0, [], {}):
                continue
            known = self.seen.setdefault((kind, field), [])
            known.append(value)
            del known[:-8]
            inner = MESSAGE[kind][field][1]
            if inner in MESSAGE:
                for v in value if isinstance(value, list) else [value]:
                    self._learn(inner, v)

    def _one(self, kind, field, inner, depth):
        r = self.rng
        if inner in MESSAGE:
            return self.message(inner, depth + 1)
        if inner == "double":
            return r.choice(DOUBLES)
        if inner == "string":
            return r.choice(TEXTS) if r.random() < .9 else bytes(r.randrange(256) for _ in range(8))
        if inner == "bytes":
            return bytes(r.randrange(256) for _ in range(r.choice([0, 1, 8, 16, 31, 32, 33, 200])))
        n = r.choice(NUMBERS)
        return n if r.random() < .7 else r.randrange(0, 5)

    def message(self, kind, depth=0):
        r, out = self.rng, {}
        for field, (_, inner, many) in MESSAGE[kind].items():
            known = self.seen.get((kind, field))
            if known and r.random() < .75:
                out[field] = r.choice(known)
                continue
            if r.random() < .35 or depth > 3:
                continue
            if many:
                n = r.choice([0, 1, 1, 2, 2, 3, 5, 8, 9, 64]) if r.random() < .97 else 1100
                out[field] = [self._one(kind, field, inner, depth + (n > 9)) for _ in range(n)]
            else:
                out[field] = self._one(kind, field, inner, depth)
        return out

    def near(self, n):
        r = self.rng
        x = r.random()
        return n if x < .6 else n + r.choice([-1, 1, 2, 256]) if x < .85 else r.choice(NUMBERS)

    def frame(self, names, state=None):
        """Returns a frame with right checksums, of one of these ops. state: field -> what is true
        now."""
        r = self.rng
        name = r.choice(names)
        number, kind, reply_kind, least, most = OPS[name]
        base = r.choice(self.heads) if self.heads and r.random() < .7 else Frame()
        f = Frame(op=number, **{k: self.near(getattr(base, k)) for k in FIELDS[2:]})
        for k, v in (state or {}).items():
            if r.random() < .8:
                setattr(f, k, v)
        f.chunk = r.choice([0, 1, f.chunk, 2, 3, (1 << 32) - 1]) if r.random() < .7 else f.chunk
        if r.random() < .15:
            f.flags |= REPLY
            kind = reply_kind
        if number in BULK and r.random() < .6:
            f.flags |= r.choice([0, 1, 2, 3, 65535]) << 16
        if r.random() < .03:
            f.flags |= r.choice([2, 4, 1 << 15, 0xfffe])
        if kind is not None and r.random() < .93:
            f.body = pack(kind, self.message(kind))
            if r.random() < .08 and f.body:  # Not quite protobuf.
                b = bytearray(f.body)
                b[r.randrange(len(b))] ^= 1 << r.randrange(8)
                f.body = bytes(b[:r.randrange(1, len(b) + 1)])
        else:
            top = min(most, 262144)
            n = r.choice([0, 1, 2, 4, 64, 128, 4096, least, top]) if number in BULK else r.choice([0, 0, 1, least])
            f.body = r.randbytes(min(n, 1 << 20))
        f.body = f.body[:most + 1]
        return f
