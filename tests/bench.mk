# SPDX-License-Identifier: Apache-2.0
# `make bench`: builds and runs every benchmark. Prints lines "bench: NAME VALUE UNIT limit LIMIT
# ratio R". QUICK=1 uses small sizes, as a smoke test.
$(TEST_A): $(B)/tests/bench/daemons.o $(B)/tests/bench/fleet.o $(B)/tests/bench/bare.o

.PHONY: bench bench-build bench-growth
bench-build: all $(BENCH)
bench: bench-build
	@bash tests/bench/bench.sh $(B) $(if $(QUICK),--quick)

# How the time of a step grows with parameters, trainers and daemons on one machine. QUICK=1 uses
# the small ones.
bench-growth: bench-build
	@$(B)/tests/bench/bench_growth $(if $(QUICK),--quick) | tee $(B)/growth.txt
	@python3 tests/bench/growth.py <$(B)/growth.txt
