#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# coverage.sh DIR PERCENT FUZZER...: runs each instrumented fuzzer in DIR over its corpus alone and
# counts the lines that it reaches in the sources of its "// covers:" lines. Fails if the sources of
# a fuzzer together stay below PERCENT. SHOW=1 prints the lines that were missed.
set -u
dir=$1 percent=$2
shift 2
tool() { command -v "$1" || ls /usr/bin/"$1"-[0-9]* 2>/dev/null | sort -V | tail -1; }
profdata=$(tool llvm-profdata) cov=$(tool llvm-cov) bad=0
[ -n "$profdata" ] && [ -n "$cov" ] || { echo "fuzz-coverage: needs llvm-profdata and llvm-cov: apt install llvm"; exit 1; }
for f in "$@"; do
	covers=$(sed -n 's|^// covers:||p' "tests/fuzz/$f.c")
	[ -n "$covers" ] || { echo "fuzz-coverage: tests/fuzz/$f.c has no \"// covers:\" line"; bad=1; continue; }
	LLVM_PROFILE_FILE=$dir/$f.profraw "$dir/$f" -runs=0 -verbosity=0 "tests/fuzz/corpus/${f#fuzz_}" >"$dir/$f.log" 2>&1 || { cat "$dir/$f.log"; exit 1; }
	"$profdata" merge -o "$dir/$f.profdata" "$dir/$f.profraw"
	# shellcheck disable=SC2086
	"$cov" report "$dir/$f" -instr-profile="$dir/$f.profdata" $covers >"$dir/$f.report" || exit 1
	[ -z "${SHOW:-}" ] || "$cov" show "$dir/$f" -instr-profile="$dir/$f.profdata" $covers | grep -E '^ +[0-9]+\| +0\|'
	awk -v f="$f" -v want="$percent" '
		$1 ~ /\.c$/ { printf "fuzz-coverage: %s %s %d of %d lines\n", f, $1, $8 - $9, $8 }
		$1 == "TOTAL" { p = $8 ? 100 * ($8 - $9) / $8 : 0; printf "fuzz-coverage: %s %.1f %% (at least %d)\n", f, p, want; exit p < want }' \
		"$dir/$f.report" ||
		{ echo "fuzz-coverage: FAILED: $f: its corpus reaches less than $percent %"; bad=1; }
done
exit $bad
