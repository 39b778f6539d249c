#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# readme.sh BUILD: README's training loop, taken from README, compiled with -Werror against the installed library, run against an
# installed daemon; its loss must fall. Then each command between its marks "run" and "/run", in their order, against the model that this
# left; each must succeed. One line per check; status 0 if all passed.
set -eu
build=$(cd "${1:?usage: readme.sh BUILD}" && pwd)
here=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/shardd-readme.XXXXXX")
daemon=
trap '[ -z "$daemon" ] || kill -9 $daemon 2>/dev/null; rm -rf "$dir"' EXIT
unset "${!SHARD_@}"

fail()
{
	echo "not ok readme: $*"
	exit 1
}

make -s -C "$here" install DESTDIR="$dir/root" PREFIX=/usr LIBDIR=/usr/lib >"$dir/install.log" 2>&1 || { cat "$dir/install.log"; fail "make install"; }
awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$here/README.md" >"$dir/loop.c"
[ -s "$dir/loop.c" ] || fail "README has no C block"
export PKG_CONFIG_SYSROOT_DIR="$dir/root" PKG_CONFIG_PATH="$dir/root/usr/lib/pkgconfig"
flags=$(pkg-config --cflags --libs libshard) || fail "pkg-config libshard"
# shellcheck disable=SC2086
${CC:-cc} -std=c11 -Wall -Wextra -Werror -o "$dir/loop" "$dir/loop.c" "$here/tests/proc/readme_main.c" $flags 2>"$dir/cc.log" ||
	{ cat "$dir/cc.log"; fail "README's loop does not compile"; }

"$dir/root/usr/bin/shardd" --listen 127.0.0.1:0 --socket "$dir/sock" --state "$dir/state" --set daemon.http=off --set daemon.memory=64MiB --set daemon.warm_restart=off >"$dir/log" 2>&1 &
daemon=$!
tail -n +1 -F "$dir/log" --pid=$daemon 2>/dev/null | grep -q -m1 event=start || { cat "$dir/log"; fail "shardd did not start"; }
SHARD_ADDRESS="unix:$dir/sock" LD_LIBRARY_PATH="$dir/root/usr/lib" timeout 60 "$dir/loop" >"$dir/out" 2>&1 || { cat "$dir/out" "$dir/log"; fail "the loop failed"; }
awk '/^step/ {n++; if (n == 1) first = $4; last = $4} END {exit !(n == 30 && last < first / 2)}' "$dir/out" || { cat "$dir/out"; fail "the loss did not fall"; }

# every key of the configuration is in README's table, with the words of --help
"$dir/root/usr/bin/shardd" --help | awk '/^\[daemon\]/ { on = 1 } /^Exit/ { on = 0 } !on { next }
	/^  [a-z]/ { if (line) print line; line = $0; next } /^     / { if (line) { sub(/^ +/, " "); line = line $0 } next } { if (line) print line; line = "" }
	END { if (line) print line }' | while read -r key text; do
	grep -qF "| \`$key\` | ${text//|/\\|} |" "$here/README.md" || fail "README's configuration lacks \`$key\`: $text"
done

# what an operator types: README's model and folder become ours
export PATH="$dir/root/usr/bin:$PATH" SHARD_ADDRESS="unix:$dir/sock" LC_ALL=C
awk '/^<!-- run -->$/ {on = 1; next} /^<!-- \/run -->$/ {on = 0} on && /^    / {sub(/^    /, ""); sub(/  +#.*/, ""); print}' "$here/README.md" |
	sed "s| gpt\b| readme|g; s|/srv/checkpoints|$dir/checkpoints|g" >"$dir/commands"
[ "$(grep -c . "$dir/commands")" -ge 10 ] || fail "README has too few commands to run"
while read -r -a command; do
	[ "${command[0]:-}" = shardctl ] || fail "README runs something else than shardctl: ${command[*]}"
	status=0
	timeout 60 "${command[@]}" >"$dir/said" 2>&1 </dev/null || status=$?
	# doctor may find this machine unfit
	[ $status = 0 ] || [ "${command[1]} $status" = "doctor 1" ] || { cat "$dir/said"; tail -n 5 "$dir/log"; fail "${command[*]}: status $status"; }
done <"$dir/commands"
kill -TERM $daemon
wait $daemon || fail "shardd ended with status $?"
daemon=
echo "ok readme: $(tail -n 1 "$dir/out"), $(grep -c . "$dir/commands") commands"
