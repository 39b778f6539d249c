#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench.sh BUILD [--quick]: runs every benchmark, one after the other. Standard output has only the
# figures, one line each: "bench: NAME VALUE UNIT limit LIMIT ratio R". What else they say goes to
# standard error. Exits with 1 if one of them could not measure.
build=$(cd "${1:?usage: bench.sh BUILD [--quick]}" && pwd)
status=0
unset "${!SHARD_@}"
for name in kernel step staleness net latency control memory http rejoin warm save nvme copies failover; do
	"$build/tests/bench/bench_$name" ${2:+"$2"} || status=1
done
exit $status
