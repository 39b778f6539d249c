#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pace.sh BUILD: checks the bounds of tests in shell and Python. They end what hangs, and grow on a
# slower machine. Prints one line, and exits with 0 if nothing is wrong.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/lib/pace.sh
fail() { echo "not ok pace: $*"; exit 1; }

pace_look
now=$pace
[ "$now" -ge 100 ] || fail "the pace is $now %"
pace_look() { pace=$say; } # Acts as on a machine of that pace.
say=100
paced 1 sleep 60 && fail "what hangs is not ended"
[ $? = 124 ] || fail "what hangs ends with another status"
wait_until 0 false && fail "what never comes came"
passed 1 $((SECONDS - 3)) || fail "3 s are not more than 1 s"
passed 60 $SECONDS && fail "a minute has passed at once"
say=500
passed 1 $((SECONDS - 3)) && fail "the bound does not grow on a slow machine"
since=$SECONDS
wait_until 0 true || fail "what is there was not seen"
paced 1 bash -c 'read -r -t 1.5 <> <(:)'
[ $? = 124 ] && fail "a slow machine has no more time"

python3 -B - <<'END' || fail "pace.py"
import sys
import time

sys.path.insert(0, "tests/lib")
import pace

assert pace.pace() >= 1
b = pace.Bound(60)
assert not b.passed() and 59 < b.left() <= 60
b.began -= 100
pace.pace = lambda: 1.0
assert b.passed() and b.left() == 0
pace.pace = lambda: 4.0
assert not b.passed() and 100 < b.left() <= 140
assert pace.seconds(2) == 8
END
echo "ok pace: $now %"
