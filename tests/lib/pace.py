# SPDX-License-Identifier: Apache-2.0
"""How long a test may wait before it fails, as tests/lib/pace.h does it for C.

A bound is written for a quiet machine of 2025. Before it counts as passed, a fixed piece of work is
timed. The bound grows with how much longer that takes here and now, so neither a slow machine nor a
busy one fails a test. Tests wait for events, and a bound only ends those that hang.
"""
import time

TURNS = 150000
QUIET_S = 0.010  # So many turns take that long on a quiet machine.
FRESH_S = 5.0

_measured = (0.0, -FRESH_S)  # The pace, and when it was measured.


def pace():
    """Returns how many times longer than on a quiet machine things take now, at least 1."""
    global _measured
    began = time.monotonic()
    if began - _measured[1] >= FRESH_S:
        x = 0
        for i in range(TURNS):
            x += i % 7
        now = time.monotonic()
        _measured = max(1.0, (now - began) / QUIET_S), now
    return _measured[0]


def seconds(quiet):
    """Returns how long so many seconds of a quiet machine are here, for calls that take a timeout
    and cannot be made again."""
    return quiet * pace()


class Bound:
    """So many seconds of a quiet machine, from now on. The pace is only measured when they have
    passed."""

    def __init__(self, quiet):
        self.quiet, self.began = quiet, time.monotonic()

    def left(self):
        """Returns the seconds until it is worth asking again. 0: it has passed."""
        past = time.monotonic() - self.began
        if past < self.quiet:
            return self.quiet - past
        return max(0.0, self.quiet * pace() - past)

    def passed(self):
        return self.left() == 0
