# SPDX-License-Identifier: Apache-2.0
# The simulator: `make sim SEEDS=n SEED=k` runs seeds k .. k+n-1, and `make sim-mutants` shows that
# the checkers catch planted mistakes.
.PHONY: sim sim-mutants
SEEDS ?= 2000
SEED  ?= 0
SIM_CORE := $(wildcard daemon/core/*.c)
sim: $(B)/sim
	$(B)/sim --seed $(SEED) --seeds $(SEEDS)
sim-mutants: $(B)/sim $(B)/tests/lib/duo.o $(B)/tests/lib/lone.o
	CC="$(CC)" B="$(B)" SANF="$(SANF)" bash tests/sim/mutants.sh
