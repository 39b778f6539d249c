#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# globals.sh BUILD: checks that daemon, client and proto have no mutable global state, because
# several servers run in one process. It reads the objects' .data and .bss. What protobuf-c
# generates is constant except for addresses, and is in .data.rel.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$1
# Of stream_discard_here only the address is used. last belongs to the calling thread, as shard.h
# promises for shard_error(). A signal handler of fault.c has no argument, and a process has one. It
# also has one OpenSSL, which openssl.c loads once, as tls/load.c does with libshard-tls.so.0.
allowed='^(stream_discard_here|last)$'
found=$(find "$B/daemon" "$B/client" "$B/proto" -name '*.o' -not -path '*/examples/*' | xargs nm -A -f sysv 2>/dev/null |
	awk -F'|' '{ gsub(/ /, "", $3); gsub(/ /, "", $7); gsub(/ /, "", $1) }
		$7 ~ /^\.t?(bss|data)(\.|$)/ && $7 !~ /^\.data\.rel/ && $3 ~ /^[bBdDC]$/ { n = split($1, part, ":"); print part[1], part[n] }' |
	while read -r file name; do [[ $name =~ $allowed || $file = */client/fault.o || $file = */net/openssl.o || $file = */tls/load.o ]] || echo "$file: $name"; done)
[ -z "$found" ] || { echo "globals: mutable state:"; echo "$found"; exit 1; }
echo "globals: none"
