#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check: all
# exchange.sh BUILD: compares shardctl's import, export and checkpoints with the Python package
# `safetensors` (tests/python). Fails if that cannot be installed. Exits with 0 if nothing is wrong.
set -u
B=$(cd "${1:?usage: exchange.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.." || exit 1
${MAKE:-make} --no-print-directory python || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/shard-exchange.XXXXXX")
trap 'rm -rf "$dir"' EXIT
unset "${!SHARD_@}"
build/python/bin/python3 tests/python/exchange.py "$B/shardctl" "$dir"
