#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# readme.sh BUILD: checks that the documents are true. The trainer of README.md and client/README.md
# is compiled with -Werror against the installed library and runs with an installed daemon; its loss
# must fall. Then each command of deploy/README.md between its marks "run" and "/run" runs in order
# with the model of that trainer, and each must succeed. daemon/obs/README.md has the metrics of a
# scrape of that daemon. deploy/ZERO.md has the figures of `shardctl plan`. The functions of
# daemon/README.md are in the files that it names. README.md is not too long. Prints one line, and
# exits with 0 if everything passed.
set -eu
build=$(cd "${1:?usage: readme.sh BUILD}" && pwd)
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tests/lib/pace.sh"
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
[ "$(wc -l <"$here/README.md")" -le 150 ] || fail "README.md has $(wc -l <"$here/README.md") lines, at most 150"
# The further bytes of a UTF-8 character take no column.
long=$(LC_ALL=C awk '{gsub(/[\200-\277]/, ""); gsub(/\t/, "        ")} length > 100 {print FNR}' "$here/README.md")
[ -z "$long" ] || fail "README.md: longer than 100 columns: lines" $long

# The tables of deploy/ZERO.md are those of `shardctl plan`.
sed -n '/^<!-- plan -->/,/^<!-- .plan -->/p' "$here/deploy/ZERO.md" | grep '^|' >"$dir/told"
python3 -B "$here/tests/bench/zero.py" "$build" --plan | grep '^|' >"$dir/planned" || fail "zero.py --plan"
diff "$dir/told" "$dir/planned" || fail "deploy/ZERO.md has other figures than tests/bench/zero.py BUILD --plan"

# daemon/README.md describes ways through the code. Each function must be in the named file.
tr '\n' ' ' <"$here/daemon/README.md" | grep -oE '`[a-z_/]+\.[ch]: +[a-z_0-9]+`' | tr -d '`:' >"$dir/ways"
[ "$(grep -c . "$dir/ways")" -ge 80 ] || fail "daemon/README.md names too few functions"
while read -r file name; do
	[ -f "$here/daemon/$file" ] && file=daemon/$file
	grep -qE "^[A-Za-z_].*\b$name\(" "$here/$file" || fail "daemon/README.md: there is no $name() in $file"
done <"$dir/ways"

awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$here/README.md" "$here/client/README.md" >"$dir/loop.c"
[ "$(grep -c '^#include <shard.h>' "$dir/loop.c")" = 2 ] || fail "README.md and client/README.md have no C block each"
export PKG_CONFIG_SYSROOT_DIR="$dir/root" PKG_CONFIG_PATH="$dir/root/usr/lib/pkgconfig"
flags=$(pkg-config --cflags --libs libshard) || fail "pkg-config libshard"
# shellcheck disable=SC2086
${CC:-cc} -std=c11 -Wall -Wextra -Werror -o "$dir/loop" "$dir/loop.c" "$here/tests/proc/readme_main.c" $flags 2>"$dir/cc.log" ||
	{ cat "$dir/cc.log"; fail "the trainer of README.md does not compile"; }

"$dir/root/usr/bin/shardd" --socket "$dir/sock" --state "$dir/state" --set daemon.http=127.0.0.1:0 --set daemon.memory=64MiB --set daemon.warm_restart=off >"$dir/log" 2>&1 &
daemon=$!
tail -n +1 -F "$dir/log" --pid=$daemon 2>/dev/null | grep -q -m1 event=start || { cat "$dir/log"; fail "shardd did not start"; }
SHARD_ADDRESS="unix:$dir/sock" LD_LIBRARY_PATH="$dir/root/usr/lib" paced 60 "$dir/loop" >"$dir/out" 2>&1 || { cat "$dir/out" "$dir/log"; fail "the loop failed"; }
awk '/^step/ {n++; if (n == 1) first = $4; last = $4} END {exit !(n == 30 && last < first / 2)}' "$dir/out" || { cat "$dir/out"; fail "the loss did not fall"; }

# Compares the metrics of that daemon and its model with the README: each one is explained with its
# labels, and each explained one exists.
port=$(sed -n 's/.*event=http port=//p' "$dir/log")
exec 3<>"/dev/tcp/127.0.0.1/$port" || fail "the daemon does not answer HTTP"
printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
paced 60 cat <&3 >"$dir/scrape"
exec 3>&-
sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' "$dir/scrape" | sort >"$dir/scraped"
sed -n '/^## Metrics/,$ s/^| `\([a-z_]*\)\({[a-z,]*}\)\{0,1\}` |.*/\1 \2/p' "$here/daemon/obs/README.md" | sort >"$dir/explained"
[ "$(wc -l <"$dir/scraped")" -ge 40 ] || { cat "$dir/scrape"; fail "a scrape has too few metrics"; }
diff "$dir/scraped" <(cut -d' ' -f1 "$dir/explained") >"$dir/diff" ||
	fail "a scrape (<) and daemon/obs/README.md (>): $(grep '^[<>]' "$dir/diff" | tr '\n' ' ')"
awk 'NR == FNR {labels[$1] = $2; next}
	!/^#/ && /^[a-z_]+[{ ]/ {
		split($0, half, /[{}]/); name = $1; sub(/[{ ].*/, "", name)
		if (!(name in labels)) sub(/_(bucket|sum|count)$/, "", name)
		text = $0 ~ /^[a-z_]+\{/ ? "," half[2] "," : ","
		gsub(/="[^"]*"/, "", text); gsub(/,(model|le)(,le)?,/, ",", text); gsub(/^,|,$/, "", text)
		want = text == "" ? "" : "{" text "}"
		if (labels[name] != want) {print name " has labels \"" want "\""; exit 1}
	}' "$dir/explained" "$dir/scrape" >"$dir/said" || fail "daemon/obs/README.md: $(cat "$dir/said")"

# Runs the commands of an operator, with the model and the folder of deploy/README.md replaced.
export PATH="$dir/root/usr/bin:$PATH" SHARD_ADDRESS="unix:$dir/sock" LC_ALL=C
awk '/^<!-- run -->$/ {on = 1; next} /^<!-- \/run -->$/ {on = 0} on && /^    / {sub(/^    /, ""); sub(/  +#.*/, ""); print}' "$here/deploy/README.md" |
	sed "s| gpt\b| readme|g; s|/srv/checkpoints|$dir/checkpoints|g" >"$dir/commands"
[ "$(grep -c . "$dir/commands")" -ge 10 ] || fail "deploy/README.md has too few commands to run"
while read -r -a command; do
	[ "${command[0]:-}" = shardctl ] || fail "deploy/README.md runs something else than shardctl: ${command[*]}"
	status=0
	paced 60 "${command[@]}" >"$dir/said" 2>&1 </dev/null || status=$?
	# doctor may find this machine unfit.
	[ $status = 0 ] || [ "${command[1]} $status" = "doctor 1" ] || { cat "$dir/said"; tail -n 5 "$dir/log"; fail "${command[*]}: status $status"; }
done <"$dir/commands"
kill -TERM $daemon
wait $daemon || fail "shardd ended with status $?"
daemon=
echo "ok readme: $(tail -n 1 "$dir/out"), $(grep -c . "$dir/commands") commands, $(wc -l <"$dir/scraped") metrics"
