# SPDX-License-Identifier: Apache-2.0
# The limits with which several benchmarks compare themselves. They are beside the benchmarks, but
# linked like a library.
$(TEST_A): $(B)/tests/bench/limit_tcp.o
