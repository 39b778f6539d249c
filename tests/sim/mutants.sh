#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Plants each mistake of tests/sim/mutants/*.patch in a copy of daemon/core, or of the simulator
# where it is the shell's, compiles what it changes, and runs the simulator with it: the fault-free
# seed must pass, and the checker that the patch names must catch it. The patch also names a seed
# that does. Where that seed no longer does, because the core or the simulator has changed, SEEDS
# seeds are searched, and as many in which coordinators are elected. "Checker: verdict" means
# unit/test_verdict, which tries every interleaving, and "Checker: unit/test_X" that program. One
# line per mutant; fails if one survives. "Case: test_X" names the only test of that program that is
# run. NAMES: only these mutants. PART=1/3: only the first of each three, and of the others only that
# their patches apply. RESEED=1: writes the seeds that were found into the patches. JOBS:
# so many at a time, as many as there are processors if it is not set. `make sim-mutants` sets B, CC
# and SANF.
set -u
export LC_ALL=C # The order of the patches, of which PART depends.
seeds=${SEEDS:-2000}
elected=1000000000 # From this seed on coordinators are elected (tests/sim/elect.h).
work=$B/mutants
flags="-std=c11 -D_GNU_SOURCE -ffp-contract=off -w ${SANF:-} -Iinclude -Iproto -I$B/gen"
libs=$(ls "$B"/daemon/optim/*.o "$B"/proto/base/*.o "$B"/proto/wire/{dtype,xxh}*.o)
jobs=${JOBS:-$(nproc)}
failed=0
total=0
part=${PART:-1/1}
running=0

# compile FOLDER: the sources of it that the patch changes, or all if it changes a header. $objects
# gets those and the others' objects.
compile() {
	local src obj
	for src in "$1"/*.c; do
		obj=$B/${src%.c}.o
		if [[ $headers || " $changed " == *" $src "* ]]; then
			obj=$dir/${src%.c}.o
			[ -f "$dir/$src" ] || cp "$src" "$dir/$src"
			# shellcheck disable=SC2086
			$CC $flags $optimize -I"$dir/daemon" -Idaemon -I"$dir/tests" -Itests \
				-c "$dir/$src" -o "$obj" >>"$dir/log" 2>&1 || return 1
		fi
		objects+=("$obj")
	done
}

unit_object() { # unit/test_X: that program without any mistake, compiled once for all mutants
	# shellcheck disable=SC2086
	[ -f "$work/$1.o" ] || $CC $flags -O1 -Idaemon -Itests -c "tests/$1.c" -o "$work/$1.o"
}

# In one(): $checker is a test program that has to fail. It may have compiled a source of the core
# into itself.
by_unit() {
	local object=$work/$checker.o only rc=0
	only=$(sed -n 's/^Case: //p' "$patch")
	if [ -n "$headers" ] || grep -q '#include ".*\.c"' "tests/$checker.c"; then
		object=$dir/unit.o
		# shellcheck disable=SC2086
		$CC $flags $optimize -I"$dir/daemon" -Idaemon -I"$dir/tests" -Itests \
			-c "tests/$checker.c" -o "$object" >"$dir/log" 2>&1
	fi
	# shellcheck disable=SC2086
	if ! $CC $flags "$object" "${objects[@]}" "$B"/tests/lib/{duo,lone}.o $libs \
		-Wl,--allow-multiple-definition -lcmocka -lm -o "$dir/unit" >>"$dir/log" 2>&1; then
		echo "mutant: $name: does not compile: $(grep -m1 error "$dir/log")"
		return 1
	fi
	out=$(CHECK_ALL='' timeout 300 "$dir/unit" ${only:+"$only"} 2>&1) || rc=$?
	if [ $rc = 0 ]; then
		echo "mutant: $name: survives $checker"
		return 1
	fi
	if [ $rc = 124 ]; then
		echo "mutant: $name: $checker takes more than 300 s"
		return 1
	fi
	case $out in
	*'[  FAILED  ] test'*)
		out=$(sed -n 's/^\[  FAILED  \] \(test.*\)/\1/p' <<<"$out" | sort -u |
			paste -sd' ') ;;
	*) out=$(sed -n 's/^\[ RUN      \] //p' <<<"$out" | tail -1) ;; # a CHECK ended it
	esac
	echo "mutant: $name: caught: $checker $out"
}

enumerated() { # in one(): every interleaving of a verdict finds it, without any seed
	# shellcheck disable=SC2086
	if ! $CC $flags -O2 -I"$dir/daemon" -Idaemon -Itests tests/unit/test_verdict.c $libs \
		-lcmocka -lm -o "$dir/verdict" >"$dir/log" 2>&1; then
		echo "mutant: $name: does not compile: $(head -1 "$dir/log")"
		return 1
	fi
	out=$("$dir/verdict" 2>/dev/null | grep '^verdict: ' | grep -v ': safe$\|: cut off$' |
		tail -1)
	if [ -z "$out" ]; then
		echo "mutant: $name: survives every interleaving"
		return 1
	fi
	echo "mutant: $name: caught: $out"
}

search() { # first, how many
	out=$("$dir/sim" --seed "$1" --seeds "$2" --until "$checker" 2>&1) && return 1
	out=$(grep '^sim: ' <<<"$out" | tail -1)
}

one() { # patch
	local patch=$1 name dir checker out seed changed headers
	local optimize=-O0 stale='' first then f objects=()
	name=$(basename "$1" .patch)
	dir=$work/$name
	checker=$(sed -n 's/^Checker: //p' "$1")
	seed=$(sed -n 's/^Seed: //p' "$1")
	changed=$(sed -n 's|^+++ b/||p' "$1" | tr '\n' ' ')
	headers=$(grep -o '[a-z_/]*\.h ' <<<"$changed")
	# One seed takes milliseconds, so that compiling counts. What tries all orders takes longer.
	[[ $checker != unit/test_quorum* ]] || optimize=-O1
	rm -rf "$dir"
	mkdir -p "$dir/daemon/core" "$dir/tests/sim"
	for f in $changed; do cp "$f" "$dir/$f"; done
	if ! patch -s -d "$dir" -p1 <"$1" >"$dir/log" 2>&1; then
		echo "mutant: $name: the patch does not apply: $(head -1 "$dir/log")"
		return 1
	fi
	if [ "$checker" = verdict ]; then
		enumerated
		return
	fi
	if ! compile daemon/core; then
		echo "mutant: $name: does not compile: $(grep -m1 error "$dir/log")"
		return 1
	fi
	if [[ $checker == unit/* ]]; then
		by_unit
		return
	fi
	# shellcheck disable=SC2086
	if ! compile tests/sim ||
		! $CC $flags "${objects[@]}" $libs -pthread -lm -o "$dir/sim" \
			>>"$dir/log" 2>&1; then
		echo "mutant: $name: does not compile: $(grep -m1 error "$dir/log")"
		return 1
	fi
	if ! out=$("$dir/sim" --seed 0 2>&1); then
		echo "mutant: $name: fails without any fault: $(tail -1 <<<"$out")"
		return 1
	fi
	if ! { [ -n "$seed" ] && search "$seed" 1; }; then
		stale=" (its seed ${seed:-is not named and} does not show it: RESEED=1)"
		first=1 then=$elected
		if [ "${seed:-0}" -ge "$elected" ]; then first=$elected then=1; fi
		if ! search "$first" "$seeds" && ! search "$then" "$seeds"; then
			echo "mutant: $name: survives $seeds seeds"
			return 1
		fi
	fi
	if ! grep -q "checker $checker:" <<<"$out"; then
		echo "mutant: $name: expected checker $checker, got: $out"
		return 1
	fi
	if [ -n "${RESEED:-}" ]; then
		seed=$(sed -n 's/^sim: seed \([0-9]*\) .*/\1/p' <<<"$out")
		sed -i "/^Seed: /d; s/^Checker: .*/&\nSeed: $seed/" "$1"
	fi
	echo "mutant: $name: caught: ${out#sim: }$stale"
}

ended() { # waits for one of them
	wait -n || failed=$((failed + 1))
	running=$((running - 1))
}

rm -rf "$work"
mkdir -p "$work/unit"
patches=() at=0
for p in tests/sim/mutants/*.patch; do
	if [ -n "${NAMES:-}" ] && ! grep -qw -- "$(basename "$p" .patch)" <<<"$NAMES"; then
		continue
	fi
	at=$((at + 1))
	if [ $((at % ${part#*/})) = $((${part%/*} % ${part#*/})) ]; then
		patches+=("$p")
	elif ! patch -s -f --dry-run -p1 <"$p" >"$work/log"; then
		echo "mutant: $(basename "$p" .patch): the patch does not apply: $(head -1 "$work/log")"
		failed=$((failed + 1))
		total=$((total + 1))
	fi
done
for unit in $(sed -n 's|^Checker: \(unit/.*\)|\1|p' "${patches[@]}" | sort -u); do
	unit_object "$unit"
done
for p in "${patches[@]}"; do
	total=$((total + 1))
	while [ $running -ge "$jobs" ]; do ended; done
	one "$p" &
	running=$((running + 1))
done
while [ $running -gt 0 ]; do ended; done
what="$((total - failed)) of $total caught by the checker they name"
[ "$part" = 1/1 ] || what+="; part $part of $at, PART=$part runs it again"
echo "mutants: $what"
[ $failed -eq 0 ]
