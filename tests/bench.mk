# SPDX-License-Identifier: Apache-2.0
# `make bench`: builds and runs every benchmark. Prints lines "bench: NAME VALUE UNIT limit LIMIT
# ratio R". QUICK=1 uses small sizes, as a smoke test.
$(TEST_A): $(B)/tests/bench/daemons.o $(B)/tests/bench/fleet.o

.PHONY: bench bench-build
bench-build: all $(BENCH)
bench: bench-build
	@bash tests/bench/bench.sh $(B) $(if $(QUICK),--quick)
