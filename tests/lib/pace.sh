# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# pace.sh is sourced. It tells how long a test may wait before it fails, as tests/lib/pace.h does
# for C. Bounds are written for a quiet machine of 2025. They grow with how much longer a fixed
# piece of work takes here and now, so neither a slow machine nor a busy one fails a test. Tests
# wait for events, and a bound only ends those that hang.
pace=100 pace_at=0 # In percent, and when it was measured.

# pace_measure TENTHS: measures how many times longer than on a quiet machine so many tenths of a
# second of work take now, in percent, at least 100.
pace_measure()
{
	local start
	start=$(date +%s%N)
	awk -v n=$(($1 * 1200000)) 'BEGIN { for (i = 0; i < n; i++) x += i % 7 }'
	pace=$((($(date +%s%N) - start) / ($1 * 1000000)))
	[ $pace -ge 100 ] || pace=100
	pace_at=$EPOCHSECONDS
}

pace_look() { [ $((EPOCHSECONDS - pace_at)) -lt 5 ] || pace_measure 1; }

# paced SECONDS COMMAND...: runs a program and ends it when it has run for so many seconds of a
# quiet machine. Then the status is 124.
paced()
{
	local quiet=$1
	shift
	pace_look
	timeout $((quiet * pace / 100)) "$@"
}

# passed SECONDS SINCE: whether so many seconds of a quiet machine have passed since $SECONDS was
# SINCE. The pace is only measured when they would have passed on a quiet machine.
passed()
{
	[ $((SECONDS - $2)) -gt "$1" ] || return 1
	pace_look
	[ $((SECONDS - $2)) -gt $(($1 * pace / 100)) ]
}

# wait_until SECONDS COMMAND...: runs a command again and again until it succeeds. Fails if it does
# not succeed within so many seconds of a quiet machine.
wait_until()
{
	local quiet=$1 since=$SECONDS
	shift
	until "$@"; do
		! passed "$quiet" "$since" || return 1
		sleep 0.02
	done
}
