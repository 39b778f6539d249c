#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# guard.sh LOG SECONDS COMMAND...: runs a command with its output in LOG and ends it when it hangs.
# A command hangs when it has printed nothing for SECONDS of a quiet machine. How slow this machine
# is now, with whatever else it has to do, is measured before anything is killed, and the bound
# grows with it, so a slow or busy machine fails no test. The exit status is the command's own, or
# 124 after a hang. The command runs in a process group of its own, and the whole group is killed.
# LOG.cpu says what it took of a processor, in milliseconds.
set -u
. "$(dirname "$0")/pace.sh"
log=$1 bound=$2
shift 2

# threads PID: what each thread of the group waits for, so that a hang that happens once in a
# hundred runs says something about itself.
threads()
{
	local pid at
	for pid in $(pgrep -g "$1"); do
		for at in /proc/"$pid"/task/*; do
			echo "guard: process $pid thread ${at##*/} ($(cat "$at/comm")) waits in $(cat "$at/wchan"), system call $(cut -d' ' -f1 "$at/syscall")"
		done
	done 2>/dev/null
}

watch()
{
	local pid=$1 size seen=-1 since=$SECONDS allowed
	while sleep 2; do
		size=$(stat -c %s "$log" 2>/dev/null || echo 0)
		if [ "$size" != "$seen" ]; then
			seen=$size since=$SECONDS
		elif [ $((SECONDS - since)) -ge "$bound" ]; then
			pace_measure 10
			allowed=$((bound * pace / 100))
			[ $((SECONDS - since)) -ge "$allowed" ] || continue
			[ "$(stat -c %s "$log" 2>/dev/null || echo 0)" = "$seen" ] || continue
			threads "$pid" >>"$log"
			echo "guard: nothing printed for $((SECONDS - since)) s, $allowed s were allowed: killed" >>"$log"
			touch "$log.hung"
			kill -TERM -- "-$pid" 2>/dev/null
			sleep 5
			kill -KILL -- "-$pid" 2>/dev/null
			return
		fi
	done
}

rm -f "$log.hung"
setsid "$@" >"$log" 2>&1 </dev/null &
pid=$!
watch "$pid" >/dev/null 2>&1 &
watcher=$!
trap 'kill -TERM -- "-$pid" 2>/dev/null; kill "$watcher" 2>/dev/null; exit 130' INT TERM
wait "$pid"
rc=$?
if [ -e "$log.hung" ]; then
	rm -f "$log.hung"
	rc=124
fi
kill "$watcher" 2>/dev/null
times >"$log.cpu" # A pipe would have a shell of its own, and that has no times.
awk -F'[ms ]+' 'NR == 2 { print int(($1 * 60 + $2 + $3 * 60 + $4) * 1000) }' "$log.cpu" >"$log.ms"
mv "$log.ms" "$log.cpu"
exit "$rc"
