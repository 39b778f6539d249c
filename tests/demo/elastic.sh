#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# elastic.sh BUILD: three daemons on loopback with two copies of each chunk, which elect their
# coordinator, and two trainers each on b and c. Node a, which coordinates first, is killed -9 for
# good in the middle of the training. Later a node that is in nobody's [nodes] joins by one line of
# its own, and gets its share of the chunks. Then the same training runs in one process, and every
# master weight and moment is compared byte by byte. Ends with "demo-elastic: exact" and status 0.
# KEEP=1 keeps the folder with logs and dumps.
name=demo-elastic
build=$(cd "${1:?usage: elastic.sh BUILD}" && pwd)
steps=${STEPS:-300} batch=16 seq=64
settings="optimizer=adamw lr=6e-3 beta2=0.95 clip=1.0 chunk_elems=16384 replicas=2"
model=(--layers 2 --dim 64 --heads 4 --seq $seq --batch $batch --steps "$steps" --seed 1 --dtype bf16 --settings "$settings")
elected=(--set cluster.membership=quorum --set cluster.election_timeout=300ms
	--set cluster.heartbeat_timeout=2s --set cluster.lost_timeout=5s)
stall_s=60
. "${BASH_SOURCE%/*}/cluster.sh"

step() # the last step that rank 0 has logged
{
	tail -n 1 "$dir/trainer-0.log" 2>/dev/null | sed -n 's/^step=\([0-9]*\) .*/\1/p'
}

until_step() # N
{
	local since=$SECONDS k

	until [ "$(step || true)" ] && [ "$(step)" -ge "$1" ]; do
		for k in 0 1 2 3; do
			running "trainer-$k" || finish "trainer-$k"
		done
		! passed $stall_s $since || fail "step $1 was not made within $((SECONDS - since)) s"
		sleep 0.01
	done
}

logged() # DAEMON TEXT: waits for it
{
	local since=$SECONDS

	until grep -q "$2" "$dir/$1.out"; do
		running "$1" || finish "$1"
		! passed $stall_s $since || fail "$1 did not log $2 within $((SECONDS - since)) s"
		sleep 0.05
	done
}

text
for n in a b c d; do
	take_port $n
done
CONF="c = 127.0.0.1:$port_c"
for node in a b c; do
	config $node
	start daemon-$node "$build/shardd" --config "$dir/$node.conf" "${elected[@]}"
done
for node in a b c; do
	wait_for_socket $node
done
logged daemon-a event=leading
echo "demo-elastic: three daemons, two copies of each chunk, trainers on b and c; node a coordinates"
nodes=(b b c c)
for k in 0 1 2 3; do
	start trainer-$k "$build/gpt" --data "$dir/text" "${model[@]}" --world 4 --rank-hint $k --address "unix:$dir/${nodes[k]}.sock" \
		--log "$dir/trainer-$k.log" --dump "$dir/daemons"
done
until_step $((steps / 5))
at=$(date +%s%N)
{ kill -9 "${pid_of[daemon-a]}" && wait "${pid_of[daemon-a]}"; } 2>/dev/null # The shell would tell of it.
before=$(step)
unset "pid_of[daemon-a]"
# A step may have been decided when a died. The one after it was not.
until_step $((before + 2))
echo "step $before: node a is killed for good; step $((before + 2)) is done $((($(date +%s%N) - at) / 1000000)) ms later"
grep -h event=leading "$dir"/daemon-[bc].out | sed 's/.*node=\(.\).*/node \1 coordinates now/'
until_step $((steps / 2))
config d
sed -i '/^\[nodes\]/,$d' "$dir/d.conf"
start daemon-d "$build/shardd" --config "$dir/d.conf" "${elected[@]}" --set "cluster.join=127.0.0.1:$port_b"
before=$(step)
logged daemon-d event=learned
echo "step $before: node d joins by the address of b; it has its chunks at step $(step)"
until_step $((steps - 20))
"$build/shardctl" --address "unix:$dir/b.sock" members
for k in 0 1 2 3; do
	finish trainer-$k
done
[ "$(step)" = "$steps" ] || fail "training ended at step $(step) of $steps"
for k in 0 1 2 3; do
	grep -qv "rank=$k world=4 " "$dir/trainer-$k.log" && fail "trainer $k was not rank $k of 4 throughout"
done
for node in b c d; do
	kill -TERM "${pid_of[daemon-$node]}"
done
for node in b c d; do
	finish daemon-$node
done
echo "demo-elastic: trainers and daemons have stopped cleanly; the same training in one process:"
"$build/reference" --data "$dir/text" "${model[@]}" --nodes 2,2 --log "$dir/reference.log" --dump "$dir/reference" >"$dir/reference.out" 2>&1 ||
	fail "the reference failed"
if ! "$build/dumpcmp" "$dir/daemons" "$dir/reference"; then
	echo "demo-elastic: not exact"
	exit 1
fi
echo "demo-elastic: exact"
