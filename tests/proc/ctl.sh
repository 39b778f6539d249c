#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ctl.sh BUILD: checks what holds for every command of shardctl: --json, --address and --timeout
# before and after its name, each exit code that --help documents, help with an example for each of
# them, and bash completion that offers exactly the commands and options of --help. Exits with 0 if
# nothing is wrong.
set -u
. "$(dirname "$0")/../lib/pace.sh"
B=$(cd "${1:?usage: ctl.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/shard-ctl.XXXXXX")
daemon='' reserved=''
trap 'kill -9 $daemon $reserved 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
unset "${!SHARD_@}"
checks=0 wrong=0

check() { # WHAT CONDITION...
	local what=$1
	shift
	checks=$((checks + 1))
	"$@" || { wrong=$((wrong + 1)); echo "not ok ctl: $what"; }
}

exits() { # RC WORD...
	local want=$1 rc
	shift
	paced 20 "$B/shardctl" "$@" >"$dir/out" 2>&1 </dev/null
	rc=$?
	checks=$((checks + 1))
	[ $rc = "$want" ] || { wrong=$((wrong + 1)); echo "not ok ctl: shardctl $*: exit $rc, expected $want:"; cat "$dir/out"; }
}

is_json() { python3 -c 'import json,sys; json.load(sys.stdin)' <"$dir/out" 2>/dev/null; }

# --- a daemon ---
exec 7< <(exec python3 -B tests/lib/ports.py 2)
reserved=$!
read -r port http <&7
printf '%s\n' '[daemon]' 'node = a' "listen = 127.0.0.1:$port" "http = 127.0.0.1:$http" "socket = $dir/s" "state = $dir/state" 'memory = 64MiB' 'allow_unauthenticated = yes' 'warm_restart = off' >"$dir/conf"
"$B/shardd" --config "$dir/conf" 2>"$dir/log" &
daemon=$!
answers() { "$B/shardctl" --timeout 60 -a "unix:$dir/s" status >/dev/null 2>&1; }
wait_until 30 answers || { cat "$dir/log"; echo "not ok ctl: shardd does not answer"; exit 1; }

# --- options of all commands, on both sides of the name, and --json everywhere ---
at=unix:$dir/s
while read -r command; do
	read -ra words <<<"$command"
	exits 0 --json --timeout 60 -a "$at" "${words[@]}"
	check "--json $command: no JSON" is_json
	exits 0 "${words[@]}" --json --timeout=60 --address="$at"
	check "$command --json: no JSON" is_json
	exits 0 -a "$at" "${words[@]}"
done <<EOF
status
top --once --interval 0.05
bench --params 10K --steps 2
plan --params 1M
config check $dir/conf
config explain $dir/conf
doctor --config $dir/conf
model list
EOF

# --- exit codes ---
documented=$("$B/shardctl" --help | tr '\n' ' ' | sed 's/.*Exit status: //; s/  */ /g')
check "--help does not document the exit codes: $documented" [ "${documented% }" = \
	"0 ok, 1 failed or differs, 2 usage, 3 unreachable, 4 configuration, 5 refused." ]
exits 0 status -a "127.0.0.1:$port"
printf '%s\n' '[daemon]' 'node = a' "socket = $dir/none/s" "state = $dir/state" 'memory = 64MiB' >"$dir/bad_folder"
exits 1 doctor --config "$dir/bad_folder"
exits 2 status word
exits 2 --nothing
exits 3 status -a "unix:$dir/nobody"
exits 3 top --once -a 127.0.0.1:1
echo nonsense >"$dir/bad"
exits 4 config check "$dir/bad"
exits 4 config explain "$dir/bad"
exits 4 doctor --config "$dir/bad" -a "$at"
# It waits for the end of a line, and answers where the number of this process happens to have one.
"$B/shardctl" status -a "127.0.0.1:$http" --timeout 5 >"$dir/out" 2>&1
rc=$?
check "the port of the page: exit $rc" grep -qx "[35]" <<<"$rc"
check "the port of the page: not said" grep -qF "is that the port of its page" "$dir/out"
mkdir "$dir/nothing"
exits 5 restore "$dir/nothing" -a "$at"
check "restore of nothing: not said" grep -qF "nothing: there is no file \`latest\`" "$dir/out"
coproc other { python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
c.sendall(b"SSH-2.0-other\r\n" * 20)
c.recv(1 << 20)' 2>/dev/null; }
read -r -u "${other[0]}" elsewhere
exits 5 status -a "127.0.0.1:$elsewhere" # Another program listens there.
exits 2 model
for group in model config secret; do
	check "$group alone: it does not list its subcommands" bash -c '"$0" "$1" 2>&1 >/dev/null | grep -q "^  $1 [a-z]"' "$B/shardctl" $group
done
says() { # TEXT WORD...: the last line of exits() has TEXT.
	local text=$1
	shift
	check "shardctl $*: no \"$text\"" grep -qF -- "$text" "$dir/out"
}
exits 2 model frob -a "$at"
says "model: frob: no such subcommand: choose list, show, drop, set, pause, resume or kick" model frob
exits 2 stats -a "$at"
says "stats: no such command: did you mean status" stats
exits 2 status extra
says '"extra" is too much: write status' status extra
exits 2 model show a b
says '"b" is too much: write model show NAME' model show a b
exits 2 model set m --force -a "$at"
# A negative number is a word.
exits 5 model set m lr -1 -a "$at"
says 'no model "m"' model set m lr -1
exits 5 model set m lr -.5e-3 -a "$at"
exits 5 -a "$at" model set m lr -- -1
exits 2 model kick m -1 -a "$at"
says 'kick: "-1": choose a rank' model kick m -1
exits 2 -1
says "-1: no such command" -1
exits 2 model drop -a "$at"
exits 2 model kick m x -a "$at"
# The number must not wrap around to 0.
exits 2 model kick m 4294967296 -a "$at"
for whom in b: :1 b:x b:-1 b:4294967296 1:; do
	exits 2 model kick m "$whom" -a "$at"
	exits 2 kick m "$whom" -a "$at"
done
exits 2 kick m -a "$at"
# full STATUS COMMAND...: stdout is a full disk. The command says so, once, and has that status.
full()
{
	local want=$1 rc=0
	shift
	"$@" >/dev/full 2>"$dir/err" || rc=$?
	check "$*: exit $rc, not $want, with a full disk behind: $(<"$dir/err")" [ $rc = $want ]
	check "$*: it does not say once that the disk is full" [ "$(grep -cE "^shard[a-z]*: the standard output cannot be written: (No space left|is the disk full)" "$dir/err")" = 1 ]
	check "$*: it says more than that" [ "$(wc -l <"$dir/err")" = 1 ]
}
for words in status "status --all" "model list" members events "top --once" "config explain" "plan --params 1B" "checkpoints $dir" "secret new"; do
	full 1 "$B/shardctl" $words -a "$at"
	[ "${words#checkpoints}" != "$words" ] || full 1 "$B/shardctl" --json $words -a "$at"
done
for words in --version --help help "help status" "status --help" "model --help" "config check $PWD/deploy/shardd.conf" "config check --print $PWD/deploy/shardd.conf"; do
	full 1 "$B/shardctl" $words
done
for words in --version --help --check --explain; do
	full 1 "$B/shardd" $words
done
# A configuration out of a pipe, and with a folder beside it.
mkdir "$dir/conf.d" && printf '[daemon]\nworkers = 3\n' >"$dir/conf.d/10.conf"
for json in "" --json; do
	check "config check <(...) $json" "$B/shardctl" $json config check <(cat "$dir/conf") >"$dir/out"
	check "config check --config-dir $json: $(cat "$dir/out")" grep -qE '^workers = 3$|"workers","value":"3"' \
		<("$B/shardctl" $json config check --print --config-dir "$dir/conf.d" "$dir/conf")
	check "config explain --config-dir $json" grep -qE '^workers = 3 +; .*/10.conf:2$|"workers","value":"3"' \
		<("$B/shardctl" $json config explain --config-dir "$dir/conf.d" "$dir/conf")
done
# Bytes that are no text are seen, and are no longer what they were.
printf '[daemon]\nnode = \xff\x1b[31m\n' >"$dir/odd"
for json in "" --json; do
	exits 4 $json config check "$dir/odd"
	check "config check of what is not UTF-8 $json: $(cat -v "$dir/out")" grep -qF '[daemon] node = \xff\x1b[31m: choose 1 to 64' <(sed 's/\\\\/\\/g' "$dir/out")
done
printf '[daemon]\nsocket = /tmp/\xff\n' >"$dir/odd"
exits 0 --json config check "$dir/odd"
check "config check of a path that is not UTF-8: $(cat -v "$dir/out")" grep -qF '"value":"/tmp/\\xff"' "$dir/out"
exits 1 --json checkpoints $'/nope\xff'
check "an error about a word that is not UTF-8" grep -qF '/nope\\xff' "$dir/out"
# Memory that this user may not look into is listed without figures that would be made up.
kept=$dir/warm/shardd-0123456789abcdef0123456789abcdef
mkdir -p "$kept" && chmod 711 "$dir" && chmod 755 "$dir/warm" && chmod 700 "$kept"
listed() { "$@" "$B/shardd" --forget-memory --list --set "daemon.warm_dir=$dir/warm"; }
check "--forget-memory --list of a folder without a page: $(listed)" grep -q "^$kept: unknown, .* by uid $UID: there is no page in it that says whose it is$" <(listed)
other=(setpriv --reuid 65534 --clear-groups)
if [ $UID = 0 ] && "${other[@]}" "$B/shardd" --version >/dev/null 2>&1; then
	check "--forget-memory --list for another user: $(listed "${other[@]}")" [ "$(listed "${other[@]}")" = \
		"$kept: unknown, of uid 0: Permission denied: ask as root or as that user" ]
fi
# What is not there is said with what shows what is.
for words in "save m" "verify m" "history m" "rebalance m"; do
	exits 5 $words -a "$at"
	check "$words: no way on: $(<"$dir/out")" grep -qF 'no model "m"' "$dir/out"
	check "$words: no way on: $(<"$dir/out")" grep -qF ': `shardctl model list` shows those that there are' "$dir/out"
done
exits 1 checkpoints /nope
says "/nope: there is no such folder: name the one that checkpoints were saved to" checkpoints
exits 1 secret rotate /nope
says '`shardctl secret new FILE` makes one' secret rotate
exits 1 import /nope "$dir/x" --name m
says "/nope: No such file or directory: name a file .safetensors, or the folder" import
exits 3 status -a tcp://nowhere.invalid:1
says 'see why `getent hosts nowhere.invalid` finds nothing' status
exits 2 import a b --name=-gpt
says "import: --name -gpt: choose 1 to 64 of a-z 0-9 . _ - that do not begin with -" import
exits 3 model list -a "unix:$dir/nobody"
for words in "show m" "show m --tensors" "drop m --force" "set m lr 0.1" "pause m" "resume m" "kick m 0 --why because" "kick m b:7"; do
	exits 5 model $words -a "$at"
	check "model $words: no name of what is missing" grep -q 'SHARD_NOT_FOUND: no model "m": none is defined' "$dir/out"
done
kill -STOP $daemon
exits 3 status -a "$at" --timeout 0.3
kill -CONT $daemon

# --- secrets ---
keys() { tr '\n' ' ' <"$dir/key"; }
exits 0 secret new "$dir/key"
exits 1 secret new "$dir/key"
exits 0 secret new --force "$dir/key"
exits 1 secret new "$dir"
says "is a folder: name a file in it" secret new
exits 1 secret new "$dir/none/key"
says "$dir/none/key cannot be written: No such file" secret new
old=$(keys)
exits 1 secret rotate "$dir/key" --swap
exits 1 secret rotate "$dir/key" --drop
check "a key that is alone was changed" [ "$(keys)" = "$old" ]
inode=$(stat -c %i "$dir/key")
(umask 0 && exits 0 secret rotate "$dir/key")
both=$(keys)
check "rotate: the new key is not behind the old one" [ "${both:0:65}" = "$old" ]
check "rotate: no second key" grep -qE '^[0-9a-f]{64} $' <<<"${both:65}"
check "rotate: the file was written in place" [ "$(stat -c %i "$dir/key")" != "$inode" ]
exits 1 secret rotate "$dir/key"
says "has two keys: --swap" secret rotate
exits 2 secret rotate "$dir/key" --swap --drop
ln -s key "$dir/link"
exits 0 secret rotate "$dir/link" --swap
check "rotate --swap" [ "$(keys)" = "${both:65}$old" ]
check "rotate replaced a link" [ -L "$dir/link" ]
exits 0 secret rotate "$dir/key" --drop
check "rotate --drop" [ "$(keys)" = "${both:65}" ]
check "rotate: mode $(stat -c %a "$dir/key")" [ "$(stat -c %a "$dir/key")" = 600 ]
check "rotate left something beside the file" [ "$(find "$dir" -name 'key*' | wc -l)" = 1 ]
chmod 644 "$dir/key"
exits 1 secret rotate "$dir/key"
says "mode" secret rotate

# --- configuration ---
printf '%s\n' nonsense '[daemon]' 'log_lvl = info' 'node = A' '[nots]' 'x = 1' '[net]' "$(printf 'transport = a\033[2Jb')" >"$dir/many"
exits 4 config check "$dir/many"
for text in "many:1: not understood" "many:3: [daemon] log_lvl = info: unknown key: did you mean log_level" "many:4: [daemon] node = A: choose" \
	"many:5: [nots]: unknown section" "many:8: [net] transport = a\x1b[2Jb: choose"; do
	says "shardctl: $dir/$text" config check
done
check "config check: more or fewer than 5 lines" [ "$(wc -l <"$dir/out")" = 5 ]
printf '%s\n' '[daemon]' 'http = 0.0.0.0:1' '[cluster]' 'step_timeout = 1s' >"$dir/many"
exits 4 config check "$dir/many"
check "config check: not both contradictions" [ "$(grep -c "^shardctl: $dir/many:[24]: " "$dir/out")" = 2 ]
exits 0 config check "$dir/conf"
check "config check: no verdict" [ "$(cat "$dir/out")" = "$dir/conf: ok" ]
exits 0 config check "$dir/conf" --print
check "config check --print: no configuration and verdict" grep -qx "; $dir/conf: ok" <(grep -A99 '^node = a$' "$dir/out")
cp "$dir/out" "$dir/printed"
exits 0 config check "$dir/printed"
exits 4 config check "$dir/none"

# --- completion ---
. deploy/shardctl.bash
complete_words() { # WORD...: prints the sorted candidates for the last word.
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
	_shardctl
	printf '%s\n' "${COMPREPLY[@]}" | sort -u | tr '\n' ' '
}
same() { [ "$1" = "$2" ] || { printf '  completion: %s\n  --help:     %s\n' "$1" "$2"; return 1; }; }
# --- help ---
all=$("$B/shardctl" --help | sed -nE '/^Commands/,/^$/s/^  ([a-z]+( [a-z]+)?)( .*|$)/\1/p')
check "--help lists the subcommands" [ "$(wc -l <<<"$all")" -ge 25 ]
while read -r command; do
	# shellcheck disable=SC2086
	exits 0 $command --help
	# shellcheck disable=SC2086
	check "$command --help: not of that command" grep -q "^Usage: shardctl $command \[OPTION" "$dir/out"
	check "$command --help: no example" grep -q "^ *\(sudo \)\?shardctl $command" <(sed -n '/^Example:/,$p' "$dir/out")
	check "$command --help: no word of what it does" [ "$(sed -n '3,/^ *-/p' "$dir/out" | wc -w)" -gt 12 ]
	cp "$dir/out" "$dir/help"
	# shellcheck disable=SC2086
	exits 0 help $command
	check "help $command differs from $command --help" cmp -s "$dir/help" "$dir/out"
done <<<"$all"
exits 0 help
says "Commands (" help
exits 0 help model
says "model kick NAME" help model
exits 2 help nothing
exits 2 help model nothing
words() { tr ' ' '\n' | grep -v '^-' | xargs; }
listed() { # WORD...: the options that the help of a command lists.
	"$B/shardctl" "$@" --help | grep -oE '^ +(-[a-zA-Z?], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u | tr '\n' ' '
}

commands=$("$B/shardctl" --help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p' | sort -u | tr '\n' ' ')
offered=$(complete_words shardctl "" | tr ' ' '\n' | grep -v '^-' | tr '\n' ' ')
check "commands" same "${offered# }" "$commands"
for command in $commands; do
	check "options of $command" same "$(complete_words shardctl "$command" --)" "$(listed "$command")"
	subs=$(sed -n "s/^$command //p" <<<"$all" | sort | tr '\n' ' ')
	if [ -n "$subs" ]; then
		check "$command's words" same "$(complete_words shardctl "$command" "" | words)" "$(words <<<"$subs")"
		check "help $command's words" same "$(complete_words shardctl help "$command" "" | words)" "$(words <<<"$subs")"
	fi
	for sub in $subs; do
		check "options of $command $sub" same "$(complete_words shardctl "$command" "$sub" --)" "$(listed "$command" "$sub")"
	done
done
check "help's words" same "$(complete_words shardctl help "" | words)" "$(words <<<"$commands")"
check "config's words" same "$(complete_words shardctl config c)" "check "
check "secret's words" same "$(complete_words shardctl secret r)" "rotate "
check "dtype" same "$(complete_words shardctl plan --dtype = b)" "bf16 "
check "behind options" same "$(complete_words shardctl --timeout 3 -a x sta)" "status "
check "model's words" same "$(complete_words shardctl model s)" "set show "
check "model's keys" same "$(complete_words shardctl model set m c)" "clip "
mkdir -p "$dir/ckpt/global_step7"
: >"$dir/ckpt/global_step7/manifest.json"
check "no options among words" same "$(complete_words shardctl model set m "")" "clip lr "
check "options where there is nothing else" grep -q -- --once <<<"$(complete_words shardctl top "")"
exits 2 import "$dir/none" "$dir/none"
says "write --name NAME" import
check "tags of a folder" same "$(complete_words shardctl restore "$dir/ckpt" --tag g)" "global_step7 "
check "folders" same "$(complete_words shardctl restore "$dir/ck")" "$dir/ckpt "
check "files" same "$(complete_words shardctl config check README)" "README.md "

# --- the completions for zsh and fish, where these are ---
PATH=$B:$PATH
if command -v fish >/dev/null; then
	fish_words() { fish --no-config -c "source deploy/shardctl.fish; complete -C '$1'" 2>&1 | sort -u | tr '\n' ' '; }
	check "fish: commands" same "$(fish_words "shardctl " | xargs)" "$(words <<<"$commands")"
	check "fish: subcommands" same "$(fish_words "shardctl model s")" "set show "
	check "fish: options" same "$(fish_words "shardctl top --s")" "--secret --sort "
	check "fish: options of a subcommand" same "$(fish_words "shardctl model drop --f")" "--force "
fi
if command -v zsh >/dev/null; then
	zsh_words() { # WORD...: all that is offered for the last one
		zsh -fc 'compadd() { shift; print -l -- $@ }; _files() { print files }; words=("$@"); CURRENT=$#; complete_it() { . deploy/shardctl.zsh }; complete_it' zsh "$@" 2>&1 | sort -u | tr '\n' ' '
	}
	check "zsh: commands" same "$(zsh_words shardctl "" | xargs)" "$(words <<<"$commands")"
	check "zsh: subcommands" same "$(zsh_words shardctl secret "")" "new rotate "
	check "zsh: options" same "$(zsh_words shardctl top --)" "$(listed top)"
	check "zsh: options of a subcommand" same "$(zsh_words shardctl model drop --)" "$(listed model drop)"
	check "zsh: files" same "$(zsh_words shardctl config check "")" "files "
fi

echo "$([ $wrong = 0 ] && echo ok || echo not ok) ctl: $checks checks, $wrong wrong"
[ $wrong = 0 ]
