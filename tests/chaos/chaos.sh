#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# chaos.sh BUILD SECONDS SEED CLUSTER: `make chaos`. With a CLUSTER it is a run of chaos.py. Without
# one it is a run for each source that elects (quorum, etcd), and then the figures of the loss of a
# node, as lines "bench: NAME VALUE UNIT limit LIMIT ratio R": after a partition (a short run in
# which nodes are only isolated), and after kill -9 and a join (bench_failover), and what a second
# copy costs (bench_copies). ROUNDS=n: 2 n kills for each source. QUICK=1: small models, and no etcd
# in the figures. Ends with the names of the parts that failed, and with status 1 if one has.
set -u
build=${1:?usage: chaos.sh BUILD SECONDS SEED CLUSTER} seconds=$2 seed=$3 cluster=$4
here=${BASH_SOURCE%/*}
unset "${!SHARD_@}"

storm() # CLUSTER SECONDS
{
	build/python/bin/python3 -B "$here/chaos.py" "$build" "$2" "$seed" "$1"
}

if [ -n "$cluster" ]; then
	storm "$cluster" "$seconds"
	exit
fi
failed=()
part() # NAME COMMAND...
{
	local name=$1
	shift
	echo "chaos: --- $name"
	"$@" || failed+=("$name")
}
for source in quorum etcd; do
	part "$source" storm $source "$seconds"
done
if [ -z "${FAULTS:-}" ]; then
	for source in quorum etcd; do
		FAULTS=isolate FLIP='' part "a partition, $source" storm $source 30
	done
	part "kill -9, and a join" "$build/tests/bench/bench_failover" \
		${QUICK:+--quick} ${ROUNDS:+--rounds "$ROUNDS"}
	part "a second copy" "$build/tests/bench/bench_copies" ${QUICK:+--quick}
fi
[ ${#failed[@]} = 0 ] || { printf 'chaos: FAILED: %s\n' "${failed[@]}" && exit 1; }
echo "chaos: all parts ok"
