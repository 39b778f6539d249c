#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools.sh BUILD: checks the command lines of shardd and shardctl as scripts use them: exit codes,
# texts, a port and a state directory in use, SIGTERM, and status as JSON and as text. Prints one
# line for each thing that is wrong and a last line with the count, and exits with 0 if nothing is
# wrong.
set -u
. "$(dirname "$0")/../lib/pace.sh"
B=$(cd "${1:?usage: tools.sh BUILD}" && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-tools.XXXXXX")
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$dir"' EXIT
unset "${!SHARD_@}"
checks=0 wrong=0

# expect RC TEXT COMMAND...: checks the exit code and that the output contains the text.
expect()
{
	local want=$1 text=$2 out rc
	shift 2
	pace_look
	out=$(paced 20 "$@" 2>&1 </dev/null)
	rc=$?
	checks=$((checks + 1))
	[ "$rc" = "$want" ] && [[ $out = *"$text"* ]] && return 0
	wrong=$((wrong + 1))
	printf 'not ok tools: %s\n  exit %s, expected %s with "%s":\n%s\n' "${*//$B\//}" "$rc" "$want" "$text" "$out"
}

conf() # NAME LINE...
{
	local name=$1
	shift
	printf '%s\n' '[daemon]' "node = $name" "socket = $dir/$name.sock" "state = $dir/$name.state" 'memory = 64MiB' 'http = off' 'warm_restart = off' 'allow_unauthenticated = yes' "$@" >"$dir/$name.conf"
}

answers() { "$B/shardctl" --timeout 60 -a "unix:$dir/$1.sock" status >/dev/null 2>&1; }

# start NAME PORT: starts a daemon and waits until its socket answers.
start()
{
	"$B/shardd" --config "$dir/$1.conf" --listen "127.0.0.1:$2" 2>"$dir/$1.log" &
	pids+=($!)
	wait_until 30 answers "$1" && return 0
	echo "not ok tools: shardd does not start"
	cat "$dir/$1.log"
	exit 1
}

# --- usage and configuration ---
expect 0 "shardd 0" "$B/shardd" --version
expect 0 "shardctl 0" "$B/shardctl" --version
expect 0 "step_timeout" "$B/shardd" --help
expect 0 "loss_scale_window" "$B/shardd" --help
expect 0 "config check FILE" "$B/shardctl" --help
expect 2 "unrecognized option" "$B/shardd" --bad
expect 2 "no arguments are expected" "$B/shardd" word
expect 2 "which command?" "$B/shardctl"
expect 2 "nothing: no such command" "$B/shardctl" nothing
expect 2 "write config check FILE" "$B/shardctl" config check
expect 2 "chek: no such subcommand: choose check or explain" "$B/shardctl" config chek x
expect 2 "choose a number of seconds" "$B/shardctl" --timeout x status
expect 2 "write unix:/path" "$B/shardctl" -a nowhere status
expect 4 "cannot be opened: No such file" "$B/shardd" --config "$dir/none.conf"
expect 4 "command line: [daemon] log_level = loud: choose error, warn, info or debug" "$B/shardd" --log-level loud
expect 4 "SHARD_WORKERS in the environment: [daemon] workers = 0" env SHARD_WORKERS=0 "$B/shardd" --check
expect 4 "nobody may come in there" "$B/shardd" --listen 0.0.0.0:1 --check
expect 4 "[daemon] http = 0.0.0.0:1: not loopback" "$B/shardd" --set daemon.http=0.0.0.0:1 --check
expect 0 "http = off" "$B/shardd" --set daemon.http=off --check
conf a
expect 0 "node = a" "$B/shardd" --config "$dir/a.conf" --check
expect 0 "node = a" "$B/shardctl" config check --print "$dir/a.conf"
conf bad 'log_lvl = info'
expect 4 "bad.conf:9: [daemon] log_lvl = info: unknown key: did you mean log_level" "$B/shardctl" config check "$dir/bad.conf"
expect 3 "SHARD_UNREACHABLE" "$B/shardctl" -a "unix:$dir/a.sock" status
expect 3 "SHARD_UNREACHABLE" "$B/shardctl" -a 127.0.0.1:1 status

# --- a running daemon ---
port=$((20000 + $$ % 9000))
start a $port
expect 0 "node a: shardd" "$B/shardctl" -a "unix:$dir/a.sock" status
expect 0 '"node":"a"' "$B/shardctl" --json -a "127.0.0.1:$port" status
expect 0 "coordinates" env SHARD_ADDRESS="unix:$dir/a.sock" "$B/shardctl" status
expect 1 "state directory $dir/a.state is in use by pid ${pids[0]}" "$B/shardd" --config "$dir/a.conf" --listen 127.0.0.1:0 --socket "$dir/other.sock"
conf b
expect 1 ":$port" "$B/shardd" --config "$dir/b.conf" --listen "127.0.0.1:$port"
expect 1 "a.sock" "$B/shardd" --config "$dir/b.conf" --listen 127.0.0.1:0 --socket "$dir/a.sock"
expect 1 "its directory is not there: make it, or set [daemon] socket" "$B/shardd" --config "$dir/b.conf" --listen 127.0.0.1:0 \
	--socket "$dir/none/none/b.sock"
# The first daemon is not affected.
expect 0 '"node":"a"' "$B/shardctl" --json -a "unix:$dir/a.sock" status

# --- stopping ---
kill -TERM "${pids[0]}"
wait "${pids[0]}"
rc=$?
checks=$((checks + 1))
[ $rc = 0 ] && grep -q 'event=stopped' "$dir/a.log" || { wrong=$((wrong + 1)); echo "not ok tools: SIGTERM: exit $rc"; cat "$dir/a.log"; }
start a $port
expect 0 '"incarnation":' "$B/shardctl" --json -a "unix:$dir/a.sock" status
kill -KILL "${pids[1]}"
wait "${pids[1]}" 2>/dev/null
# After a crash the stale socket and the lock file do not prevent a start.
start a $port
kill -INT "${pids[2]}"
wait "${pids[2]}"
rc=$?
checks=$((checks + 1))
[ $rc = 0 ] || { wrong=$((wrong + 1)); echo "not ok tools: SIGINT: exit $rc"; }

# --- an address that everybody can reach ---
"$B/shardd" --config "$dir/b.conf" --listen "0.0.0.0:$port" --set daemon.allow_unauthenticated=yes 2>"$dir/b.log" &
pids+=($!)
wait_until 30 grep -q 'event=start ' "$dir/b.log"
checks=$((checks + 1))
grep -q 'level=warn node=b event=unauthenticated' "$dir/b.log" || { wrong=$((wrong + 1)); echo "not ok tools: no warning"; cat "$dir/b.log"; }
kill -TERM "${pids[3]}"
wait "${pids[3]}"
echo "$([ $wrong = 0 ] && echo ok || echo not ok) tools: $checks checks, $wrong wrong"
[ $wrong = 0 ]
