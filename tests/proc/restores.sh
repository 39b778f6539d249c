#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# restores.sh BUILD: four trainers of two daemons train, and the model is set back to a checkpoint
# 50 times meanwhile (`shardctl restore --force`), at whatever they do just then. None of them may
# end. After the last time they train to the end, which must be that of the same training in one
# process. RESTORES=n does it n times. KEEP=1 keeps the folder.
name=restores
build=$(cd "${1:?usage: restores.sh BUILD}" && pwd)
restores=${RESTORES:-50}
model=(--layers 1 --dim 32 --heads 4 --seq 64 --batch 8 --seed 1 --dtype bf16 --steps 400
	--settings "optimizer=adamw lr=6e-3 beta2=0.95 clip=1.0 chunk_elems=4096")
. "${BASH_SOURCE%/*}/../demo/cluster.sh"

nodes=(a a b b)
ctl=("$build/shardctl" --address "unix:$dir/a.sock")

step() # the newest that any trainer was told
{
	tail -qn 1 "$dir"/trainer-?.log 2>/dev/null | sed -n 's/^step=\([0-9]*\) .*/\1/p' | sort -n | tail -n 1
}

all_live() # DOING
{
	local k

	for k in 0 1 2 3; do
		running "trainer-$k" || fail "trainer-$k ended $1"
	done
}

# no trainer may come to the end before the last restore, so each waits for the number in this file
text
start_daemons
echo 60 >"$dir/gate"
for k in 0 1 2 3; do
	start "trainer-$k" "$build/gpt" --data "$dir/text" "${model[@]}" --world 4 --rank-hint $k --gate "$dir/gate" \
		--address "unix:$dir/${nodes[k]}.sock" --log "$dir/trainer-$k.log" --dump "$dir/daemons"
done
since=$SECONDS
until now=$(step); [ "${now:-0}" -ge 20 ]; do
	all_live "before step 20"
	! passed 60 $since || fail "no step 20 within $((SECONDS - since)) s"
	sleep 0.01
done
"${ctl[@]}" save gpt --dir "$dir/ckpt" --tag base >"$dir/save.out" 2>&1 || fail "the save failed: $(cat "$dir/save.out")"
echo 300 >"$dir/gate"
for ((i = 1; i <= restores; i++)); do
	"${ctl[@]}" restore "$dir/ckpt" --tag base --name gpt --force >"$dir/restore.out" 2>&1 || fail "restore $i failed: $(cat "$dir/restore.out")"
	all_live "at restore $i"
done
all_live "after the last restore"
echo 400 >"$dir/gate"
for k in 0 1 2 3; do
	finish "trainer-$k"
done
told=$(grep -c '' "$dir/trainer-0.log")
stop_daemons
"$build/reference" --data "$dir/text" "${model[@]}" --nodes 2,2 --log "$dir/reference.log" --dump "$dir/reference" >"$dir/reference.out" 2>&1 ||
	fail "the reference failed"
"$build/dumpcmp" "$dir/daemons" "$dir/reference" >"$dir/compare.out" 2>&1 || fail "not exact: $(tail -n 2 "$dir/compare.out")"
echo "ok restores: $restores restores while $told steps were made ended no trainer; the end is exact"
