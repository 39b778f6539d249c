# SPDX-License-Identifier: Apache-2.0
# What several benchmarks measure themselves against; beside them, but linked like a library.
$(TEST_A): $(B)/tests/bench/limit_tcp.o
