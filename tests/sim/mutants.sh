#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Plants each mistake of tests/sim/mutants/*.patch in a copy of daemon/core, or of the simulator where it is the shell's, compiles it, and
# runs the simulator with it: the fault-free seed must pass, and within SEEDS seeds the checker that the patch names must catch it.
# One line per mutant; fails if one survives. NAMES: only these.
# `make sim-mutants` sets B, CC and SANF.
set -u
seeds=${SEEDS:-2000}
work=$B/mutants
flags="-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -w ${SANF:-} -Iinclude -Iproto -I$B/gen"
libs=$(ls "$B"/daemon/optim/*.o "$B"/proto/base/*.o "$B"/proto/wire/{dtype,xxh}*.o)
failed=0
total=0

enumerated() { # in one(): every interleaving of a verdict finds it, without any seed
	# shellcheck disable=SC2086
	if ! $CC $flags -I"$dir/daemon" -Idaemon -Itests tests/unit/test_verdict.c $libs -lcmocka -lm -o "$dir/verdict" >"$dir/log" 2>&1; then
		echo "mutant: $name: does not compile: $(head -1 "$dir/log")"
		return 1
	fi
	out=$("$dir/verdict" 2>/dev/null | grep '^verdict: ' | grep -v ': safe$\|: cut off$' | tail -1)
	if [ -z "$out" ]; then
		echo "mutant: $name: survives every interleaving"
		return 1
	fi
	echo "mutant: $name: caught: $out"
}

one() { # patch
	local name dir checker out rc sim
	name=$(basename "$1" .patch)
	dir=$work/$name
	checker=$(sed -n 's/^Checker: //p' "$1")
	rm -rf "$dir"
	mkdir -p "$dir/daemon" "$dir/tests"
	cp -r daemon/core "$dir/daemon/core"
	cp -r tests/sim "$dir/tests/sim"
	sim=$(ls "$B"/tests/sim/*.o)
	if grep -q '^+++ b/tests/sim/' "$1"; then sim=$(ls "$dir"/tests/sim/*.c); fi
	if ! patch -s -d "$dir" -p1 <"$1" >"$dir/log" 2>&1; then
		echo "mutant: $name: the patch does not apply: $(head -1 "$dir/log")"
		return 1
	fi
	if [ "$checker" = verdict ]; then
		enumerated
		return
	fi
	# shellcheck disable=SC2086
	if ! $CC $flags -I"$dir/daemon" -Idaemon -I"$dir/tests" -Itests "$dir"/daemon/core/*.c $sim $libs -pthread -lm -o "$dir/sim" >"$dir/log" 2>&1; then
		echo "mutant: $name: does not compile: $(head -1 "$dir/log")"
		return 1
	fi
	if ! out=$("$dir/sim" --seed 0 2>&1); then
		echo "mutant: $name: fails without any fault: $(tail -1 <<<"$out")"
		return 1
	fi
	out=$("$dir/sim" --seed 1 --seeds "$seeds" --until "$checker" 2>&1)
	rc=$?
	out=$(grep '^sim: ' <<<"$out" | tail -1)
	if [ $rc -eq 0 ]; then
		echo "mutant: $name: survives $seeds seeds"
		return 1
	fi
	if ! grep -q "checker $checker:" <<<"$out"; then
		echo "mutant: $name: expected checker $checker, got: $out"
		return 1
	fi
	echo "mutant: $name: caught: ${out#sim: }"
}

for p in tests/sim/mutants/*.patch; do
	if [ -n "${NAMES:-}" ] && ! grep -qw -- "$(basename "$p" .patch)" <<<"$NAMES"; then continue; fi
	total=$((total + 1))
	one "$p" || failed=$((failed + 1))
done
echo "mutants: $((total - failed)) of $total caught by the checker they name"
[ $failed -eq 0 ]
