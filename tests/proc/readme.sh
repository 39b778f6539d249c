#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# readme.sh BUILD: README's training loop, taken from README, compiled with -Werror against the installed library, run against an
# installed daemon; its loss must fall. One line per check; status 0 if all passed.
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

"$dir/root/usr/bin/shardd" --listen 127.0.0.1:0 --socket "$dir/sock" --state "$dir/state" --set daemon.http=off --set daemon.memory=64MiB >"$dir/log" 2>&1 &
daemon=$!
tail -n +1 -F "$dir/log" --pid=$daemon 2>/dev/null | grep -q -m1 event=start || { cat "$dir/log"; fail "shardd did not start"; }
SHARD_ADDRESS="unix:$dir/sock" LD_LIBRARY_PATH="$dir/root/usr/lib" timeout 60 "$dir/loop" >"$dir/out" 2>&1 || { cat "$dir/out" "$dir/log"; fail "the loop failed"; }
awk '/^step/ {n++; if (n == 1) first = $4; last = $4} END {exit !(n == 30 && last < first / 2)}' "$dir/out" || { cat "$dir/out"; fail "the loss did not fall"; }
kill -TERM $daemon
wait $daemon || fail "shardd ended with status $?"
daemon=
echo "ok readme: $(tail -n 1 "$dir/out")"
