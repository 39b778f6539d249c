#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exact.sh BUILD TRAINERS-ON-A,TRAINERS-ON-B [options of gpt...]: checks that a short run through
# two daemons equals the reference, byte by byte. It prints nothing and exits with 0 if it does. It
# is the demo without its output, for tests of other element types, optimizers, chunks and worlds.
# BREAK=1: the last trainer flips one bit of one gradient, which has to be found.
# KILL=K: trainer K ends by SIGKILL in the middle of step 5 and is started again. The others wait
# for it, and nothing of the result may change.
# DAEMONS="a,b a": daemons are killed with -9 in mid-run, here both of them and then the first one,
# each time EVERY=n steps (15) after the time before. They come back with what they held, and their
# trainers go on. However slow this script is, training does not run away from it: the trainers wait
# at a step until the daemons have died (gpt --gate).
# TCP=1: the trainers reach their daemons over TCP.
# WORKERS=n: so many workers for each daemon. OUT=FOLDER keeps what was dumped and the logs there.
name=exact
build=$(cd "${1:?usage: exact.sh BUILD N,N [options]}" && pwd)
on=${2:?usage: exact.sh BUILD N,N [options]}
shift 2
[ -n "${DAEMONS:-}" ] && WARM=1
. "${BASH_SOURCE%/*}/cluster.sh"

pace_look
deadline_s=$((30 * ${SLOW:-1} * pace / 100))
text
start_daemons
ranks=$((${on%,*} + ${on#*,}))
run=(--data "$dir/text" --layers 1 --dim 32 --heads 2 --seq 32 --batch 9 --steps 6 --world $ranks "$@")
trainer() # K LOG
{
	local node port address extra=()

	node=$([ "$1" -lt "${on%,*}" ] && echo a || echo b)
	port=port_$node
	address=$([ "${TCP:-}" = 1 ] && echo "tcp://127.0.0.1:${!port}" || echo "unix:$dir/$node.sock")
	[ "${BREAK:-}" = 1 ] && [ "$1" = $((ranks - 1)) ] && extra=(--break 3)
	[ "${KILL:-}" = "$1" ] && [ ! -e "$dir/died" ] && extra+=(--die 5)
	[ -z "${DAEMONS:-}" ] || extra+=(--gate "$dir/gate")
	start "trainer-$1" timeout $deadline_s "$build/gpt" "${run[@]}" --rank-hint "$1" --address "$address" --log "$2" \
		--dump "$dir/daemons" "${extra[@]}"
}

gate() # STEP: the last one that trainers take for now
{
	echo "$1" >"$dir/gate.new"
	mv "$dir/gate.new" "$dir/gate"
}

last_step()
{
	tail -qn 1 "$dir"/*.log 2>/dev/null | sed -n 's/^step=\([0-9]*\) .*/\1/p' | sort -n | tail -n 1
}

deaths=0
die() # NODE...
{
	local n

	for n in "$@"; do
		kill -9 "${pid_of[daemon-$n]}"
	done
	for n in "$@"; do
		wait "${pid_of[daemon-$n]}"
	done 2>/dev/null
	for n in "$@"; do
		rm -f "$dir/$n.sock"
		mv "$dir/daemon-$n.out" "$dir/daemon-$n.$((++deaths)).out"
		start daemon-$n "$build/shardd" --config "$dir/$n.conf"
	done
	for n in "$@"; do
		wait_for_socket $n
	done
}

look() # for one that has ended: only at the end, whatever becomes of a daemon
{
	local k

	for ((k = 0; k < ranks; k++)); do
		[ -n "${pid_of[trainer-$k]:-}" ] && ! running "trainer-$k" || continue
		{ wait "${pid_of[trainer-$k]}"; } 2>/dev/null || fail "trainer $k ended with a daemon"
		unset "pid_of[trainer-$k]"
	done
}

steps=$(printf '%s\n' "${run[@]}" | sed -n '/^--steps$/{n;p}' | tail -n 1)
read -ra times <<<"${DAEMONS:-}"
more=$((${#times[@]} ? steps / ${#times[@]} - ${EVERY:-15} - 1 : 0)) # so late a daemon may die
[ $more -ge 0 ] || fail "--steps $steps is too few for ${#times[@]} deaths, ${EVERY:-15} steps apart"
wanted=${EVERY:-15}
gate $((wanted + more))
for ((k = 0; k < ranks; k++)); do
	trainer $k "$dir/trainer-$k.log"
done
for nodes in "${times[@]}"; do
	until step=$(last_step) && [ "${step:-0}" -ge $wanted ]; do
		look
		sleep 0.01
	done
	die ${nodes//,/ }
	step=$(last_step)
	wanted=$((step + ${EVERY:-15}))
	gate $((wanted + more))
done
gate "$steps"
while [ -n "${DAEMONS:-}" ] && [[ " ${!pid_of[*]}" == *" trainer-"* ]]; do
	look
	sleep 0.01
done
[ -z "${DAEMONS:-}" ] || [ $deaths -ge ${#times[@]} ] || fail "$deaths daemons have died"
if [ -n "${KILL:-}" ]; then
	wait "${pid_of[trainer-$KILL]}" 2>/dev/null
	[ $? = 137 ] || fail "trainer $KILL did not end by SIGKILL in step 5"
	touch "$dir/died"
	trainer "$KILL" "$dir/again.log"
fi
for ((k = 0; k < ranks; k++)); do
	[ -z "${pid_of[trainer-$k]:-}" ] || finish trainer-$k
done
stop_daemons
[ -z "${OUT:-}" ] || cp -r "$dir/daemons" "$dir"/daemon-?.out "$OUT"
[ "${on%,*}" = 0 ] && on=${on#*,}
"$build/reference" "${run[@]}" --nodes "${on%,0}" --log "$dir/reference.log" --dump "$dir/reference" >"$dir/reference.out" 2>&1 ||
	fail "the reference failed"
"$build/dumpcmp" "$dir/daemons" "$dir/reference" >"$dir/compare.out" || fail "not exact"
# what the trainers were told about each step is what the reference computed
told()
{
	sed -E 's/ (rank|samples|loss|pushed|pulled|ns|attempts)=[^ ]*//g' "$1"
}
for ((k = 0; k < ranks; k++)); do
	[ $k != "${KILL:-}" ] || continue # it died between a commit and its line
	log=$dir/trainer-$k.log
	if [ -n "${DAEMONS:-}" ]; then # and with a daemon may die what it would have said of a step
		! told "$log" | grep -qvxF -f <(told "$dir/reference.log")
	else
		cmp -s <(told "$log") <(told "$dir/reference.log")
	fi || fail "trainer $k was told other norms than the reference's"
done
