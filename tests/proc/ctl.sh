#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ctl.sh BUILD: checks what holds for every command of shardctl: --json, --address and --timeout
# before and after its name, each exit code that --help documents, and bash completion that offers
# exactly the commands and options of --help. Exits with 0 if nothing is wrong.
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
printf '%s\n' '[daemon]' 'node = a' "listen = 127.0.0.1:$port" "http = 127.0.0.1:$http" "socket = $dir/s" "state = $dir/state" 'memory = 64MiB' 'allow_unauthenticated = yes' >"$dir/conf"
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
exits 2 model frob -a "$at"
exits 2 model drop -a "$at"
exits 2 model kick m x -a "$at"
# The number must not wrap around to 0.
exits 2 model kick m 4294967296 -a "$at"
for whom in b: :1 b:x b:-1 b:4294967296 1:; do
	exits 2 model kick m "$whom" -a "$at"
	exits 2 kick m "$whom" -a "$at"
done
exits 2 kick m -a "$at"
for words in status "model list" "config explain" "plan --params 1B"; do
	check "$words: exit 0 with a full disk behind" bash -c '! "$@" -a "$0" >/dev/full 2>&1' "$at" "$B/shardctl" $words
done
exits 3 model list -a "unix:$dir/nobody"
for words in "show m" "show m --tensors" "drop m --force" "set m lr 0.1" "pause m" "resume m" "kick m 0 --why because" "kick m b:7"; do
	exits 5 model $words -a "$at"
	check "model $words: no name of what is missing" grep -q 'SHARD_NOT_FOUND: no model "m": none is defined' "$dir/out"
done
kill -STOP $daemon
exits 3 status -a "$at" --timeout 0.3
kill -CONT $daemon

# --- completion ---
. deploy/shardctl.bash
complete_words() { # WORD...: prints the sorted candidates for the last word.
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
	_shardctl
	printf '%s\n' "${COMPREPLY[@]}" | sort -u | tr '\n' ' '
}
same() { [ "$1" = "$2" ] || { printf '  completion: %s\n  --help:     %s\n' "$1" "$2"; return 1; }; }
commands=$("$B/shardctl" --help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p' | sort -u | tr '\n' ' ')
offered=$(complete_words shardctl "" | tr ' ' '\n' | grep -v '^-' | tr '\n' ' ')
check "commands" same "${offered# }" "$commands"
for command in $commands; do
	listed=$("$B/shardctl" "$command" --help | grep -oE '^ +(-[a-zA-Z?], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u | tr '\n' ' ')
	check "options of $command" same "$(complete_words shardctl "$command" --)" "$listed"
done
check "config's words" same "$(complete_words shardctl config c)" "check "
check "dtype" same "$(complete_words shardctl plan --dtype = b)" "bf16 "
check "behind options" same "$(complete_words shardctl --timeout 3 -a x sta)" "status "
check "model's words" same "$(complete_words shardctl model s)" "set show "
check "model's keys" same "$(complete_words shardctl model set m c)" "clip "
mkdir -p "$dir/ckpt/global_step7"
: >"$dir/ckpt/global_step7/manifest.json"
check "tags of a folder" same "$(complete_words shardctl restore "$dir/ckpt" --tag g)" "global_step7 "
check "folders" same "$(complete_words shardctl restore "$dir/ck")" "$dir/ckpt "
check "files" same "$(complete_words shardctl config check README)" "README.md "

echo "$([ $wrong = 0 ] && echo ok || echo not ok) ctl: $checks checks, $wrong wrong"
[ $wrong = 0 ]
