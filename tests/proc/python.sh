#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# python.sh BUILD: the tests of the Python package that need no torch: its structs and functions
# against shard.h, and training against numpy. `make check-python` runs all of them.
set -u
B=$(cd "${1:?usage: python.sh BUILD}" && pwd)
cd "$(dirname "$0")/../.." || exit 1
${MAKE:-make} --no-print-directory python || exit 1
unset "${!SHARD_@}"
export SHARDD_LIB=$B/libshard.so.0 SHARD_DAEMON=$B/shardd
exec build/python/bin/python3 -B -m pytest -p no:cacheprovider -q client/python/tests/test_layout.py \
	client/python/tests/test_session.py
