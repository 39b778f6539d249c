#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# growth.sh BUILD: checks the arithmetic of the simulated growth (tests/growth). Prints one line, and
# exits with 0 if nothing is wrong.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=$(python3 -B tests/growth/test_growth.py 2>&1) || { echo "$out"; echo "not ok growth"; exit 1; }
echo "ok growth: $(sed -n 's/^Ran //p' <<<"$out")"
