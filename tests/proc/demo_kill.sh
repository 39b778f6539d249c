#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check: all
# demo_kill.sh BUILD: runs a small `make demo-kill`. It must be exact, and a world that is left out
# of the replay must be found.
set -eu
build=${1:?usage: demo_kill.sh BUILD}
cd "$(dirname "$0")/../.."
# B is given as it is, because dependencies name it.
"${MAKE:-make}" --no-print-directory B="$build" "$build/reference" "$build/dumpcmp" >/dev/null
export LAYERS=1 DIM=32 STEPS=150 KILLS=4
out=$(mktemp "${TMPDIR:-/tmp}/shardd-demo-kill.XXXXXX")
trap 'rm -f "$out"' EXIT
tests/demo/kill.sh "$build" >"$out" 2>&1 || { cat "$out"; echo "not ok demo_kill"; exit 1; }
grep '^demo: [0-9]* killed' "$out"
STEPS=80 KILLS=3 SEED=1 BREAK=1 tests/demo/kill.sh "$build" >"$out" 2>&1 && { cat "$out"; echo "not ok demo_kill: a world that was left out is not found"; exit 1; }
grep -q '^demo: not exact' "$out" || { cat "$out"; echo "not ok demo_kill: it failed, but not for the world that was left out"; exit 1; }
echo "ok demo_kill: exact; a world left out of the replay is found"
