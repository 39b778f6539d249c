#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD: two daemons on loopback, two trainers each, the licence texts of this machine; then
# the same training in one process, and a comparison of every master weight and moment, byte by
# byte. Ends with "demo: exact" and status 0. BREAK=1 flips one bit of one gradient in one trainer:
# that must be found, status 1. CODEC=int8 or int4: gradients and images travel so between the
# daemons. TIER=nvme, mixed, gpu or gpu-mixed: see cluster.sh. KEEP=1 keeps the folder with logs and
# dumps.
name=demo
build=$(cd "${1:?usage: demo.sh BUILD}" && pwd)
steps=200 batch=16 seq=64 every=25
stall_s=60
. "${BASH_SOURCE%/*}/cluster.sh"
settings="optimizer=adamw lr=6e-3 beta2=0.95 clip=1.0 chunk_elems=16384${CODEC:+ grad_codec=$CODEC image_codec=$CODEC}$tier"
model=(--layers 2 --dim 64 --heads 4 --seq $seq --batch $batch --steps $steps --seed 1 --dtype bf16 --settings "$settings")

# --- progress: step, loss over ranks, tokens/s, ms per step, MiB pushed and pulled so far ---

progress()
{
	cat "$dir"/trainer-?.log 2>/dev/null | awk -v tokens=$((batch * seq)) '
	{
		for (i = 1; i <= NF; i++) { split($i, kv, "="); v[kv[1]] = kv[2] }
		loss[v["step"]] += v["loss"] * v["samples"]; samples[v["step"]] += v["samples"]; ns[v["step"]] = v["ns"]
		ranks[v["step"]]++; pushed += v["pushed"]; pulled += v["pulled"]
		if (ranks[v["step"]] == v["world"] && v["step"] + 0 > last) last = v["step"] + 0
	}
	END {
		if (last) {
			for (i = last; i > 0 && i > last - 10; i--) { time += ns[i]; n++ }
			printf "%d %.3f %.0f %.1f %.1f %.1f", last, loss[last] / samples[last], tokens * n / time * 1e9, time / n / 1e6,
				pushed / 2 ^ 20, pulled / 2 ^ 20
		}
	}'
}

bar() # DONE OF WIDTH
{
	local full=$(($1 * $3 / $2)) line

	printf -v line '%*s' "$full" ''
	printf '%s%*s' "${line// /#}" $(($3 - full)) ''
}

shown=0 shown_at=0
show() # STEP LOSS TOKENS/S MS PUSHED PULLED; without a terminal every 25 steps or 30 s, so that slow does not look like stuck
{
	local text

	printf -v text 'step %3d/%d  loss %s  %s tokens/s  %s ms/step  pushed %s MiB  pulled %s MiB' "$1" $steps "${@:2}"
	if [ -t 1 ]; then
		printf '\r[%s] %s \033[K' "$(bar "$1" $steps 20)" "$text"
	elif [ "$1" -ge $((shown + every)) ] || [ "$1" = $steps ] && [ "$1" != $shown ] || [ $((SECONDS - shown_at)) -ge 30 ]; then
		echo "$text"
		shown=$(($1 / every * every)) shown_at=$SECONDS
	fi
}

watch() # until every trainer has ended
{
	local last=0 since=$SECONDS left=(0 1 2 3) k still
	local -a line

	while [ ${#left[@]} -gt 0 ]; do
		sleep 0.2
		still=()
		for k in "${left[@]}"; do
			if running "trainer-$k"; then
				still+=("$k")
			else
				finish "trainer-$k"
			fi
		done
		left=("${still[@]}")
		for k in a b; do
			running "daemon-$k" || fail "daemon-$k ended while training"
		done
		read -ra line < <(progress; echo)
		[ ${#line[@]} = 6 ] && show "${line[@]}"
		if [ "${line[0]:-0}" != "$last" ]; then
			last=${line[0]}
			since=$SECONDS
		fi
		! passed $stall_s $since || fail "no step for $((SECONDS - since)) s"
	done
	[ -t 1 ] && echo
	[ "$last" = $steps ] || fail "training ended at step $last of $steps"
}

# --- the demo ---

text
start_daemons
echo "demo: $(wc -c <"$dir/text") bytes of text; daemons a (127.0.0.1:$port_a) and b (127.0.0.1:$port_b), two trainers each"
nodes=(a a b b)
for k in 0 1 2 3; do
	extra=()
	[ "${BREAK:-}" = 1 ] && [ $k = 3 ] && extra=(--break $((steps / 2)))
	start trainer-$k "$build/gpt" --data "$dir/text" "${model[@]}" --world 4 --rank-hint $k --address "unix:$dir/${nodes[k]}.sock" \
		--log "$dir/trainer-$k.log" --dump "$dir/daemons" "${extra[@]}"
done
watch
for k in 0 1 2 3; do
	grep -qv "rank=$k world=4 " "$dir/trainer-$k.log" && fail "trainer $k was not rank $k of 4 throughout: $(grep -vm1 "rank=$k world=4 " "$dir/trainer-$k.log")"
done
stop_daemons
echo "demo: trainers and daemons have stopped cleanly; the same training in one process:"
SECONDS=0
"$build/reference" --data "$dir/text" "${model[@]}" --nodes 2,2 --log "$dir/reference.log" --dump "$dir/reference" >"$dir/reference.out" 2>&1 ||
	fail "the reference failed"
echo "demo: reference took $SECONDS s"
learned=yes
"$build/lossbound" "$dir/text" "$dir"/trainer-?.log || learned=no
if ! "$build/dumpcmp" "$dir/daemons" "$dir/reference"; then
	echo "demo: not exact"
	exit 1
fi
[ $learned = yes ] || exit 1
echo "demo: exact"
