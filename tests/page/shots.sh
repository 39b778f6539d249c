#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shots.sh BUILD AXE FOLDER: pictures of the page in FOLDER, of real daemons in every state that it
# has to show, in light and dark, wide and as on a phone. Each time axe-core must find no barrier,
# and the browser must write no error on its console. Skipped without chromium.
name=shots
build=$(cd "${1:?usage: shots.sh BUILD AXE FOLDER}" && pwd)
axe=$2
mkdir -p "$3"
to=$(cd "$3" && pwd)
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "shots: skipped: no chromium here"; exit 0; }
. "${BASH_SOURCE%/*}/../demo/cluster.sh"
look=${BASH_SOURCE%/*}/look.py
settings="optimizer=adamw lr=6e-3 clip=1.0 chunk_elems=16384 join_timeout=600s"
wrong=0 shots=0

up() # EXTRA: both daemons, and the port of a's page
{
	pid_of=()
	rm -rf "$dir"/state-* "$dir"/*.conf
	CONF=$1
	export SHARD_HTTP=127.0.0.1:0 # beats the file
	start_daemons
	unset SHARD_HTTP
	port=$(sed -n 's/.*event=http port=\([0-9]*\).*/\1/p' "$dir/daemon-a.out")
}
down()
{
	local p
	for p in "${pid_of[@]}"; do kill -9 "$p" 2>/dev/null; done
	wait 2>/dev/null
	rm -f "$dir"/trainer-*.log
}
train() # NR WORLD OPTION...
{
	local nr=$1 world=$2 rank node
	shift 2
	for ((rank = 0; rank < nr; rank++)); do
		node=a
		((rank % 2 == 0)) || node=b
		start trainer-$rank "$build/gpt" --address "unix:$dir/$node.sock" --data "$dir/text" --steps 1000000 --world "$world" --rank-hint $rank \
			--settings "$settings" --log "$dir/trainer-$rank.log" "$@"
	done
}
steps() { [ -s "$dir/trainer-0.log" ] && [ "$(wc -l <"$dir/trainer-0.log")" -ge "${1:-40}" ]; }
shot() # NAME UNTIL OPTION...
{
	local name=$1 until=$2
	shift 2
	shots=$((shots + 1))
	python3 -B "$look" "$browser" "$axe" "http://127.0.0.1:$port/" "$to/$name.png" --until "$until" --limit $((90 * ${SLOW:-1})) "$@" || wrong=$((wrong + 1))
}
says() { printf 'document.body.innerText.includes("%s")' "$1"; }
both() # NAME UNTIL: wide in light and dark, and as on a phone
{
	shot "$1" "$2"
	shot "$1-dark" "$2" --dark
	shot "$1-phone" "$2" --size 390x844
}

text
wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " = *" $1 "* ]]; }
if wanted idle; then
	up "" && both idle "$(says "No model is defined")" && down
fi
if wanted healthy; then
	up "" && train 4 4
	wait_until 60 steps || fail "no steps"
	# until the charts have a line and the other node has answered
	both healthy "document.querySelectorAll('[data-flow=\"b>a\"]').length && !$(says "not known yet") && document.querySelectorAll('#flows td.n')[0].innerText !== '0 B/s'"
	down
fi
if wanted stands; then
	up "" && train 4 4
	wait_until 60 steps || fail "no steps"
	kill -STOP "${pid_of[trainer-3]}"
	both stands "$(says "no step for")"
	down
fi
if wanted waits; then
	up "" && train 1 4
	both waits "$(says "waiting")"
	down
fi
if wanted dead; then
	up "" && train 2 2
	wait_until 60 steps || fail "no steps"
	kill -9 "${pid_of[trainer-1]}" "${pid_of[daemon-b]}"
	both dead "$(says "node b is down")"
	down
fi
if wanted lost; then
	up $'[model]\nreplicas = 1\nmin_copies = 1' && train 2 2
	wait_until 60 steps || fail "no steps"
	kill -9 "${pid_of[daemon-b]}"
	wait "${pid_of[daemon-b]}" 2>/dev/null
	rm -f "$dir/b.sock"
	start daemon-b "$build/shardd" --config "$dir/b.conf"
	both lost "document.querySelector('section .state.bad')?.innerText === 'lost'"
	down
fi
if wanted checkpoint; then
	up "" && train 2 2
	wait_until 60 steps || fail "no steps"
	"$build/shardctl" -a "unix:$dir/a.sock" save gpt --dir "$dir/ckpt" >/dev/null || fail "no checkpoint"
	: >"$dir/file"
	"$build/shardctl" -a "unix:$dir/a.sock" save gpt --dir "$dir/file" >/dev/null 2>&1 && fail "a checkpoint in a file"
	both checkpoint "$(says "Last failure")"
	down
fi
if wanted many; then
	up "" && train 40 40 --batch 40 --layers 1 --dim 16 --heads 2 --seq 16
	wait_until 300 steps 5 || fail "no steps with 40 trainers"
	both many "document.querySelectorAll('[data-rank]').length === 40 && !$(says "not known yet")"
	down
fi
if wanted gone; then
	for how in "gone " "gone-dark --dark" "gone-phone --size 390x844"; do
		up "" && train 2 2
		wait_until 60 steps || fail "no steps"
		# shellcheck disable=SC2086
		shot ${how/ / true } --kill "${pid_of[daemon-a]}"
		down
	done
fi
[ $wrong = 0 ] || fail "$wrong of $shots pictures have something wrong"
echo "shots: $shots pictures in $to, 0 wrong"
