#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# man.sh BUILD: checks the manual that `make man` makes. mandoc and groff have no warning about any
# page. Each function of shard.h, and of shard_cuda.h unless the build has CUDA=0, has a page with
# all of its sections, and each struct has a name that leads to one. Each status, constant and
# variable that a page names exists, each example compiles, and each reference to another page leads
# to one. Each option and command of --help is in the manual.
set -eu
build=${1:?usage: man.sh BUILD}
cd "$(dirname "$0")/../.."
here=$PWD
export LC_ALL=C
fail()
{
	echo "not ok man: $*"
	exit 1
}
command -v python3 mandoc groff >/dev/null || { echo "ok man: skipped, python3, mandoc or groff is not here"; exit 0; }
cuda=$(cat "$build/with-cuda")
headers=("$here/include/shard.h")
[ "$cuda" = no ] || headers+=("$here/include/shard_cuda.h")
make=("${MAKE:-make}" --no-print-directory B="$build")
[ "$cuda" = yes ] || make+=(CUDA=0)
"${make[@]}" man >/dev/null || fail "make man"
cd "$build/man"
said=$(for f in man?/*; do
	read -r first <"$f"
	# mandoc advises links instead. It only matters that the other page exists.
	if [[ $first = .so* ]]; then
		[ -f "${first#.so }" ] || echo "$f: ${first#.so } is not there"
	else
		mandoc -Tlint -W warning "$f" || true
		groff -ww -man -Tascii "$f" 2>&1 >/dev/null || true
	fi
done)
[ -z "$said" ] || fail "warnings:
$said"
list() { python3 "$here/deploy/man.py" --list "$@" | sort; }
! list "$here/include/shard.h" | grep -q cuda || fail "make CUDA=0 would make pages about libshard-cuda"
diff <(list "${headers[@]}") <(ls man?/* | sort) || fail "make install would install other pages"
# Lists what is declared and what may be named, without comments, as the preprocessor sees it.
last=${headers[-1]} # It includes the other one.
"${CC:-cc}" -I"$here/include" -E -P "$last" | tr '\n' ' ' >declared.txt
tr ';' '\n' <declared.txt | sed -n '/visibility/s/^[^(]*((.*)) [^(]*[ *]\(shard_[a-z_]*\)(.*/\1/p' >functions.txt
for h in "${headers[@]}"; do
	grep -qx "$(basename "$h" .h)_error" functions.txt || fail "no function found in $h"
	sed -n 's/^struct \(shard_[a-z_]*\) {$/\1/p' "$h"
done >structs.txt
sed 's/.*enum shard_status {\([^}]*\)}.*/\1/' declared.txt | grep -oE 'SHARD_[A-Z_]+' | sort -u >statuses.txt
{ cat declared.txt; "${CC:-cc}" -I"$here/include" -E -dM "$last"; grep -rhoE 'getenv\("SHARD_[A-Z]+"\)' "$here/client"; } |
	grep -oE 'SHARD_[A-Z0-9_]+' | sort -u >words.txt
while read -r f; do
	page=man3/$f.3
	[ -f "$page" ] || fail "$f has no page"
	for section in NAME SYNOPSIS DESCRIPTION ARGUMENTS "RETURN VALUE" ERRORS THREADS EXAMPLE "SEE ALSO"; do
		grep -qx "\.SH $section" "$page" || { [ "$section" = "RETURN VALUE" ] && grep -q '^\\fBvoid shard' "$page"; } || fail "$page has no $section"
	done
	said=$(sed -n '/^\.SH ERRORS/,/^\.SH THREADS/s/^\.B \(.*\)/\1/p' "$page" | sort -u | comm -23 - statuses.txt)
	[ -z "$said" ] || fail "$page: no such status: $said"
done <functions.txt
while read -r struct; do
	page=man3/$struct.3
	[ -f "$page" ] || fail "struct $struct has no page"
	read -r first <"$page"
	[[ $first != .so* ]] || page=${first#.so }
	grep -q "^\.SS struct $struct\$" "$page" || fail "$page does not describe struct $struct"
done <structs.txt
said=$(sed '/^\.TH/d; s/\\f.//g' man3/* | grep -oE '\bSHARD_[A-Z0-9_]+' | sort -u | comm -23 - words.txt | xargs)
[ -z "$said" ] || fail "the manual names what is not there: $said"
# A function that has an example of its own shows that, and the others that of their group.
for word in shard_push:SHARD_ADD shard_join:getenv shard_grad:one_step; do
	f=man3/${word%:*}.3
	sed -n '/^\.SH EXAMPLE/,/^\.fi/p' "$f" | grep -q "${word#*:}" || fail "$f shows another example than its own, which has ${word#*:}"
done
for f in man3/*; do
	! grep -q '^\.so ' "$f" || continue
	sed -n '/^\.SH EXAMPLE/,/^\.fi/p' "$f" | sed '/^\.\(SH\|nf\|fi\)/d; s/\\&//g; s/\\-/-/g; s/\\e/\\/g' >example.c
	[ -s example.c ] || fail "$f has no example"
	"${CC:-cc}" -std=c11 -Wall -Wextra -Werror -I"$here/include" -fsyntax-only example.c >cc.txt 2>&1 || { cat cc.txt; fail "the example of $f"; }
done
grep -hoE '(\\fBshard[a-z_.]*\\fR|^\.BR shard[a-z_.]*) ?\([1-8]\)' man?/* | sed -E 's/\\f.|^\.BR| //g' | sort -u | while read -r ref; do
	section=${ref: -2:1}
	[ -f "man$section/${ref%(*}.$section" ] || fail "no page $ref, which is referred to"
done
text() { mandoc -Tascii "$1" | sed 's/.\x08//g' | tr -s ' \n' '  '; }
text man5/shardd.conf.5 >conf.txt
"$here/$build/shardd" --help 2>/dev/null | sed -n '/^\[daemon\]/,/^Exit/s/^  \([a-z_0-9][a-z_0-9]*\) .*/\1/p' | while read -r key; do
	grep -q " $key " conf.txt || fail "shardd.conf(5) lacks $key"
done
for section in SIGNALS HTTP ENVIRONMENT FILES EVENTS EXAMPLES; do
	grep -qx "\.SH $section" man8/shardd.8 || fail "shardd(8) has no $section"
done
# The events of the log are those of the table: each one of the code, and no other.
sed -n '/^\.SH EVENTS/,/^\.SH EXAMPLES/s/^\.B //p' man8/shardd.8 | sort >events.txt
{ cd "$here" && grep -rhoE 'event=[a-z_]+' --include=*.c daemon proto/base; } | sed 's/event=//; /^$/d' | sort -u >logged.txt
said=$(comm -23 logged.txt events.txt | xargs)
[ -z "$said" ] || fail "deploy/events.txt lacks events that are logged: $said"
comm -13 logged.txt events.txt | while read -r event; do # Some names are arguments of a line of the log.
	grep -rqF --include=*.c "\"$event\"" "$here/daemon" || [ "$event" = save_failed ] || [ "$event" = restore_failed ] || fail "deploy/events.txt: $event: nothing logs it"
done
sort -cu "$here/deploy/events.txt" || fail "deploy/events.txt is not in order"
text man8/shardd.8 >daemon.txt
for path in $(sed -n 's/^| `\(\/[a-z]*\)` |.*/\1/p' "$here/daemon/obs/README.md"); do
	grep -q " $path " daemon.txt || fail "shardd(8) lacks $path"
done
text man1/shardctl.1 >ctl.txt
for word in SHARD_ADDRESS SHARD_SECRET SHARD_TLS EXAMPLES; do
	grep -q "$word" ctl.txt || fail "shardctl(1) lacks $word"
done
"$here/$build/shardctl" --help | awk '/^Commands/ { on = 1; next } on && !/^  / { exit }
	on { if (!c) { match($0, /^  [a-z]+ +/); c = RLENGTH } s = substr($0, 3, c - 2); sub(/ +$/, "", s); print s }' | while read -r command; do
	grep -qF "$command" ctl.txt || fail "shardctl(1) lacks $command"
	words=$(grep -oE '^[a-z]+( [a-z]+)*' <<<"$command")
	# shellcheck disable=SC2086
	"$here/$build/shardctl" $words --help | sed -n '/^ Options of all/,$d; s/^ *\(--[a-z-]*\).*/\1/p' | while read -r option; do
		grep -qF -- " $option" <(sed -n "/^\.SS $words/,/^\.S[SH] [^\\n]*/p" man1/shardctl.1 | sed 's/\\-/-/g; s/^\.B/ /') || fail "shardctl(1) lacks $option of $words"
	done
	# shellcheck disable=SC2086
	example=$("$here/$build/shardctl" $words --help | sed -n '/^Example:/{n;s/^ *//;p}' | tr -s ' ')
	grep -qF -- "${example% \\}" ctl.txt || fail "shardctl(1) lacks the example of $words: $example"
done
rm -f -- *.txt example.c
echo "ok man: $(ls man?/* | wc -l) pages, no warning, and their examples compile"
