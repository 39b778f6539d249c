#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# json.sh BUILD: every command of shardctl with --json, at two daemons that train, and what each
# prints where it fails, against client/ctl/shardctl.schema.json. Fails if the package that reads
# schemas cannot be installed. Exits with 0 if nothing is wrong.
name=json
build=$(cd "${1:?usage: json.sh BUILD}" && pwd)
. "${BASH_SOURCE%/*}/../demo/cluster.sh"
${MAKE:-make} --no-print-directory python || exit 1

export SHARD_HTTP=127.0.0.1:0 # beats the file
start_daemons
unset SHARD_HTTP
text
for rank in 0 1; do
	node=$([ $rank = 0 ] && echo a || echo b)
	start trainer-$rank "$build/gpt" --address "unix:$dir/$node.sock" --data "$dir/text" --steps 1000000 --world 2 --rank-hint $rank \
		--settings "optimizer=adamw lr=6e-3 clip=1.0 chunk_elems=16384" --log "$dir/trainer-$rank.log"
done
steps() { [ -s "$dir/trainer-0.log" ] && [ "$(wc -l <"$dir/trainer-0.log")" -ge 5 ]; }
wait_until 20 steps || fail "no five steps within 20 s of a quiet machine"
port=$(sed -n 's/.*event=http port=\([0-9]*\).*/\1/p' "$dir/daemon-a.out")
build/python/bin/python3 -B tests/python/json_said.py "$build/shardctl" "$dir" "$port" ${PRINT:+--print "$PRINT"} || fail "what shardctl prints is not what the schema says"
