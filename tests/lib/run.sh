#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS PROGRAM...: runs cmocka programs, two at a time (JOBS), and prints one line for
# each. A program that prints nothing for TIMEOUT seconds of a quiet machine is killed (guard.sh).
# Appends "passed failed skipped milliseconds processor name" per program to the file RESULTS and keeps each
# program's output beside it. Fails if anything failed.
set -u
results=$1
here=$(dirname "$0")
shift
logs=$results.logs
mkdir -p "$logs"
export LC_ALL=C

one()
{
	local program=$1 name=${1#*/tests/} log start rc p f s ms note=
	log=$logs/${name//\//-}.log
	start=$(date +%s%N)
	"$here/guard.sh" "$log" "${TIMEOUT:-120}" "$program"
	rc=$?
	ms=$((($(date +%s%N) - start) / 1000000))
	p=$(grep -c '^\[       OK \]' "$log")
	f=$(grep '^\[  FAILED  \] [^0-9]' "$log" | sort -u | grep -vc 'test(s)')
	s=$(grep '^\[  SKIPPED \] [^0-9]' "$log" | sort -u | grep -vc 'test(s)')
	[ "$rc" != 124 ] || note=" (it hung)"
	if [ "$rc" != 0 ] && [ "$f" = 0 ]; then
		f=1 note="${note:- (exit $rc)}"
	fi
	printf '%s %s %s %s %s %s\n' "$p" "$f" "$s" "$ms" "$(cat "$log.cpu")" "$name" >>"$results"
	printf '%-4s %-34s %3d passed%s%s  %d.%d s%s\n' "$([ "$f" = 0 ] && echo ok || echo FAIL)" "$name" "$p" \
		"$([ "$f" = 0 ] || echo ", $f failed")" "$([ "$s" = 0 ] || echo ", $s skipped")" \
		$((ms / 1000)) $((ms / 100 % 10)) "$note"
	if [ "$f" != 0 ]; then
		# First what each failed test found. check.sh prints that again at its end: whoever
		# keeps only a part of the output keeps that.
		grep -E -B3 '^ERROR: |^\[  (ERROR |FAILED) |: expected | CHECK ' "$log" | grep -v '^ts=' | head -30 |
			cut -c1-400 | sed 's/^/     > /' | tee "${log%.log}.found"
		grep -vE '^\[( RUN|       OK)' "$log" | tail -${TAIL:-25} | sed 's/^/     | /'
		return 1
	fi
}
export -f one
export results logs here
[ $# -gt 0 ] || exit 0
printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -I{} bash -c 'one {}'
