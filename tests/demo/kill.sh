#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kill.sh BUILD: trains with two daemons and four trainers. The trainers are killed with -9 at
# random moments, alone, together and while they join, and are started again, so that the worlds
# grow and shrink between one and four. The daemons are killed in the same way, one or both, and
# started again with their memory: that ends no trainer. Then the history of worlds, which daemon a
# has logged, is replayed in one process. Every master weight and moment is compared byte by byte, and every figure
# that any trainer was told. Each life of a trainer has checked that the place in the data which the
# trainers before it committed is that of the step. Ends with "demo: exact" and status 0.
# KILLS=n SEED=k STEPS=n say how often, at which moments and how long. BREAK=1 leaves one world out
# of the replay, which must end with status 1. TIER=nvme or mixed: see cluster.sh. KEEP=1 keeps the
# folder.
name=demo
build=$(cd "${1:?usage: kill.sh BUILD}" && pwd)
kills=${KILLS:-20} seed=${SEED:-$(($(date +%s) % 30000))} steps=${STEPS:-800}
stall_s=60
WARM=1
. "${BASH_SOURCE%/*}/cluster.sh"
model=(--layers "${LAYERS:-2}" --dim "${DIM:-64}" --heads 4 --seq 64 --batch 16 --seed 1 --dtype bf16 --steps "$steps"
	--settings "optimizer=adamw lr=6e-3 beta2=0.95 clip=1.0 chunk_elems=16384$tier")
RANDOM=$seed

nodes=(a a b b)
life=(0 0 0 0) # of each trainer: how often it was started
deaths=0 daemon_deaths=0

trainer() # K
{
	local k=$1

	life[k]=$((life[k] + 1))
	start "trainer-$k.${life[k]}" "$build/gpt" --data "$dir/text" "${model[@]}" --world 1,4 --look 60 --rank-hint "$k" \
		--address "unix:$dir/${nodes[k]}.sock" --log "$dir/trainer-$k.${life[k]}.log" --dump "$dir/daemons"
}

ms() # MILLISECONDS
{
	read -rt "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))" <>"$dir/never"
}

last_step()
{
	tail -qn 1 "$dir"/trainer-?.*.log 2>/dev/null | sed -n 's/^step=\([0-9]*\) .*/\1/p' | sort -n | tail -n 1
}

# those of TRAINERS... that still live are killed in one go
kill_them()
{
	local k pids=() of

	for k in "$@"; do
		of=trainer-$k.${life[k]}
		[ -n "${pid_of[$of]:-}" ] || continue
		running "$of" || finish "$of" # a trainer that ended by itself must have ended well
		[ -z "${pid_of[$of]:-}" ] || pids+=("${pid_of[$of]}")
		deaths=$((deaths + 1))
	done
	[ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null
	for k in "$@"; do
		of=trainer-$k.${life[k]}
		[ -z "${pid_of[$of]:-}" ] || wait "${pid_of[$of]}" 2>/dev/null
		unset "pid_of[$of]"
	done
}

await_step() # STEP
{
	local since=$SECONDS seen=0 now k

	while now=$(last_step); [ "${now:-0}" -lt "$1" ]; do
		[ "${now:-0}" = $seen ] || since=$SECONDS
		seen=${now:-0}
		! passed $stall_s $since || fail "no step for $((SECONDS - since)) s, after step $seen"
		for k in a b; do
			running "daemon-$k" || fail "daemon-$k ended while training"
		done
		for k in 0 1 2 3; do
			running "trainer-$k.${life[k]}" || finish "trainer-$k.${life[k]}"
		done
		ms 5
	done
}

daemon() # NODE: its memory is there, its socket soon. Its trainers look for it
{
	"$build/shardd" --config "$dir/$1.conf" >>"$dir/daemon-$1.out" 2>&1 </dev/null &
	pid_of[daemon-$1]=$!
}

# At one moment one daemon dies, or both do, and in one of three cases some trainers with it.
strike_daemons() # WHEN
{
	local victims n k=

	case $((RANDOM % 3)) in
		0) victims=(a) ;;
		1) victims=(b) ;;
		2) victims=(a b) ;;
	esac
	await_step "$1"
	ms $((RANDOM % 40))
	for n in "${victims[@]}"; do
		kill -9 "${pid_of[daemon-$n]}"
		daemon_deaths=$((daemon_deaths + 1))
	done
	for n in "${victims[@]}"; do
		wait "${pid_of[daemon-$n]}" 2>/dev/null
		echo >>"$dir/daemon-$n.out" # its last line may end anywhere
	done
	if [ $((RANDOM % 3)) = 0 ]; then
		k=$((RANDOM % 4))
		kill_them $k
		trainer $k
	fi
	ms $((RANDOM % 200))
	for n in "${victims[@]}"; do
		daemon "$n"
	done
	echo "step $1 of $steps: killed daemon ${victims[*]}${k:+, and trainer $k}"
}

# At one moment some trainers die. They come again after a while. One in three dies once more while
# it joins.
strike() # WHEN
{
	local k victims=() rest=(0 1 2 3) n=$((RANDOM % 8)) again=

	n=$((n < 4 ? 1 : n < 6 ? 2 : n < 7 ? 3 : 4))
	while [ ${#victims[@]} -lt $n ]; do
		k=$((RANDOM % ${#rest[@]}))
		victims+=("${rest[k]}")
		rest=("${rest[@]:0:k}" "${rest[@]:k+1}")
	done
	await_step "$1"
	ms $((RANDOM % 40)) # anywhere in a step
	kill_them "${victims[@]}"
	ms $((RANDOM % 200))
	for k in "${victims[@]}"; do
		trainer "$k"
	done
	if [ $((RANDOM % 3)) = 0 ]; then
		again=", and ${victims[0]} again while it joined"
		ms $((RANDOM % 30))
		kill_them "${victims[0]}"
		trainer "${victims[0]}"
	fi
	echo "step $1 of $steps: killed ${victims[*]}$again"
}

mkfifo "$dir/never"
text
start_daemons
echo "demo: SEED=$seed: $kills moments at which trainers, or their two daemons, are killed with -9"
for k in 0 1 2 3; do
	trainer $k
done
for ((i = 0; i < kills; i++)); do # the last one early enough to come back before the end
	when=$((steps / 20 + (steps * 8 / 10) * i / kills + RANDOM % (steps * 8 / 10 / kills + 1)))
	if [ $((i % 2)) = 0 ]; then strike $when; else strike_daemons $when; fi
done
await_step "$steps"
for k in 0 1 2 3; do
	[ -z "${pid_of[trainer-$k.${life[k]}]:-}" ] || finish "trainer-$k.${life[k]}"
done
stop_daemons
! grep -q 'nobody left a place' "$dir"/trainer-?.*.out || fail "a trainer that came again found no place in the data"

grep -o ' event=world .*' "$dir/daemon-a.out" >"$dir/worlds" || fail "daemon a logged no worlds"
if [ "${BREAK:-}" = 1 ]; then # the world that lasted longest, but for the first: as if nobody had come or gone then
	awk -v steps="$steps" '{ match($0, /step=[0-9]+/); from[NR] = substr($0, RSTART + 5, RLENGTH - 5) + 0; nodes[NR] = $NF; line[NR] = $0 }
		END { from[NR + 1] = steps + 1
			for (i = 2; i <= NR; i++)
				if (nodes[i] != nodes[i - 1] && from[i + 1] - from[i] > longest) { longest = from[i + 1] - from[i]; out = i }
			for (k = 1; k <= NR; k++) if (k != out) print line[k]
			exit !out }' "$dir/worlds" >"$dir/wrong" || fail "there was but one world: nothing to leave out"
	mv "$dir/wrong" "$dir/worlds"
fi
echo "demo: $deaths killed, and daemons $daemon_deaths times; $(grep -c '' "$dir/worlds") worlds, of $(sed 's/.* size=\([0-9]*\) .*/\1/' "$dir/worlds" | sort -n | uniq -c |
	awk '{ printf "%s%d (%d times)", sep, $2, $1; sep = ", " }') trainers; the same history in one process:"
"$build/reference" --data "$dir/text" "${model[@]}" --history "$dir/worlds" --log "$dir/reference.log" --dump "$dir/reference" \
	>"$dir/reference.out" 2>&1 || fail "the reference failed"
if ! "$build/dumpcmp" "$dir/daemons" "$dir/reference"; then
	echo "demo: not exact"
	exit 1
fi
# what any trainer in any of its lives was told about a step is what the reference computed
told()
{
	cat "$@" | sed -E 's/ (rank|samples|loss|pushed|pulled|ns|attempts)=[^ ]*//g' | LC_ALL=C sort -u
}
LC_ALL=C comm -23 <(told "$dir"/trainer-?.*.log) <(told "$dir/reference.log") >"$dir/odd"
if [ -s "$dir/odd" ]; then
	head -n 3 "$dir/odd"
	echo "demo: not exact: trainers were told other figures than the reference's"
	exit 1
fi
echo "demo: exact"
