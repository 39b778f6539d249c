#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# write_bw.sh DEVICE GID BYTES TIMES [serve | listens | HOST]: ib_write_bw between two processes;
# prints the client's output. Without the last argument both ends run here. `serve` is the server
# alone, `listens` waits until a server on this machine listens, and HOST is the client alone. The
# client starts when the kernel says that the server listens, however long the server takes to open
# its device; a server that ends before is told by its own output.
set -u
device=$1 gid=$2 bytes=$3 times=$4
port=18515 # perftest's own

bw() { timeout 300 ib_write_bw -d "$device" -x "$gid" -F -s "$bytes" -n "$times" -p "$port" "$@"; }
listens() { grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$port") [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null; }

case ${5:-} in
serve) bw ;;
listens) until listens; do sleep 0.1; done ;;
'')
	said=$(mktemp) || exit 1
	trap 'rm -f "$said"' EXIT
	bw >"$said" 2>&1 &
	server=$!
	until listens; do
		kill -0 "$server" 2>/dev/null || { echo "write_bw: the server ended:" >&2; cat "$said" >&2; exit 1; }
		sleep 0.1
	done
	bw 127.0.0.1
	rc=$?
	wait "$server" || { cat "$said" >&2; rc=1; }
	exit $rc ;;
*) bw "$5" ;;
esac
