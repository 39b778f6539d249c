#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RESULTS PROGRAM...: runs cmocka programs, two at a time (JOBS), each at most TIMEOUT seconds, and prints one line for each. Appends
# "passed failed skipped" per program to the file RESULTS; keeps each program's output beside it. Fails if anything failed.
set -u
results=$1
shift
logs=$results.logs
mkdir -p "$logs"
export LC_ALL=C

one()
{
	local program=$1 name=${1#*/tests/} log start rc p f s note=
	log=$logs/${name//\//-}.log
	start=$(date +%s%N)
	timeout --kill-after=5 "${TIMEOUT:-120}" "$program" >"$log" 2>&1 </dev/null
	rc=$?
	p=$(grep -c '^\[       OK \]' "$log")
	f=$(grep '^\[  FAILED  \] [^0-9]' "$log" | sort -u | grep -vc 'test(s)')
	s=$(grep '^\[  SKIPPED \] [^0-9]' "$log" | sort -u | grep -vc 'test(s)')
	[ "$rc" = 124 ] || [ "$rc" = 137 ] && note=" (over ${TIMEOUT:-120} s)"
	if [ "$rc" != 0 ] && [ "$f" = 0 ]; then
		f=1 note="${note:- (exit $rc)}"
	fi
	printf '%s %s %s\n' "$p" "$f" "$s" >>"$results"
	printf '%-4s %-34s %3d passed%s%s  %d.%d s%s\n' "$([ "$f" = 0 ] && echo ok || echo FAIL)" "$name" "$p" \
		"$([ "$f" = 0 ] || echo ", $f failed")" "$([ "$s" = 0 ] || echo ", $s skipped")" \
		$((($(date +%s%N) - start) / 1000000000)) $((($(date +%s%N) - start) / 100000000 % 10)) "$note"
	if [ "$f" != 0 ]; then
		grep -vE '^\[( RUN|       OK)' "$log" | tail -${TAIL:-25} | sed 's/^/     | /'
		return 1
	fi
}
export -f one
export results logs
[ $# -gt 0 ] || exit 0
printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -I{} bash -c 'one {}'
