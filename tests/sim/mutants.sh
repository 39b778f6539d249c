#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Plants each mistake of tests/sim/mutants/*.patch in a copy of daemon/core, compiles it, and runs the simulator with it: the fault-free
# seed must pass, and within SEEDS seeds the checker that the patch names must catch it. One line per mutant; fails if one survives.
# `make sim-mutants` sets B, CC and SANF.
set -u
seeds=${SEEDS:-2000}
work=$B/mutants
flags="-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -w ${SANF:-} -Iinclude -Iproto -I$B/gen"
libs=$(ls "$B"/daemon/optim/*.o "$B"/proto/base/*.o "$B"/proto/wire/{dtype,xxh}*.o)
others="$(ls "$B"/tests/sim/*.o) $libs"
failed=0
total=0

enumerated() { # in one(): every interleaving of a verdict finds it, without any seed
	# shellcheck disable=SC2086
	if ! $CC $flags -I"$dir/daemon" -Idaemon -Itests tests/unit/test_verdict.c $libs -lcmocka -lm -o "$dir/verdict" >"$dir/log" 2>&1; then
		echo "mutant: $name: does not compile: $(head -1 "$dir/log")"
		return 1
	fi
	out=$("$dir/verdict" 2>/dev/null | grep '^verdict: ' | tail -1)
	if [ -z "$out" ] || grep -q ': safe$' <<<"$out"; then
		echo "mutant: $name: survives: $out"
		return 1
	fi
	echo "mutant: $name: caught: $out"
}

one() { # patch
	local name dir checker out rc
	name=$(basename "$1" .patch)
	dir=$work/$name
	checker=$(sed -n 's/^Checker: //p' "$1")
	rm -rf "$dir"
	mkdir -p "$dir/daemon"
	cp -r daemon/core "$dir/daemon/core"
	if ! patch -s -d "$dir" -p1 <"$1" >"$dir/log" 2>&1; then
		echo "mutant: $name: the patch does not apply: $(head -1 "$dir/log")"
		return 1
	fi
	if [ "$checker" = verdict ]; then
		enumerated
		return
	fi
	# shellcheck disable=SC2086
	if ! $CC $flags -I"$dir/daemon" -Idaemon "$dir"/daemon/core/*.c $others -pthread -lm -o "$dir/sim" >"$dir/log" 2>&1; then
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
	total=$((total + 1))
	one "$p" || failed=$((failed + 1))
done
echo "mutants: $((total - failed)) of $total caught by the checker they name"
[ $failed -eq 0 ]
