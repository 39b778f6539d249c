#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# globals.sh BUILD: no mutable global state in daemon, client and proto: several servers run in one process. Reads the objects' .data and
# .bss; what protobuf-c generates is constant but for its address, and lies in .data.rel.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$1
# stream_discard_here: only its address counts. last: of the calling thread, as shard.h promises for shard_error()
allowed='^(stream_discard_here|last)$'
found=$(find "$B/daemon" "$B/client" "$B/proto" -name '*.o' -not -path '*/examples/*' | xargs nm -A -f sysv 2>/dev/null |
	awk -F'|' '{ gsub(/ /, "", $3); gsub(/ /, "", $7); gsub(/ /, "", $1) }
		$7 ~ /^\.t?(bss|data)(\.|$)/ && $7 !~ /^\.data\.rel/ && $3 ~ /^[bBdDC]$/ { n = split($1, part, ":"); print part[1], part[n] }' |
	while read -r file name; do [[ $name =~ $allowed ]] || echo "$file: $name"; done)
[ -z "$found" ] || { echo "globals: mutable state:"; echo "$found"; exit 1; }
echo "globals: none"
