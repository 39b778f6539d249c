# SPDX-License-Identifier: Apache-2.0
# The simulator: `make sim SEEDS=n SEED=k` runs seeds k .. k+n-1, half as many in which coordinators
# are elected (tests/sim/elect.h), and those of tests/sim/seeds. `make sim-mutants` shows that the
# checkers catch planted mistakes. PART=1/3: only a third of them.
.PHONY: sim sim-mutants
SEEDS ?= 2000
SEED  ?= 0
SIM_ELECTED := 1000000000
SIM_CORE := $(wildcard daemon/core/*.c)
sim: $(B)/sim
	@$(B)/sim --seed $(SEED) --seeds $(SEEDS) & static=$$!; \
	$(B)/sim --seed $$(($(SIM_ELECTED) + $(SEED))) --seeds $$((($(SEEDS) + 1) / 2)); elected=$$?; \
	wait $$static && [ $$elected = 0 ]
	@for k in $$(sed -n 's/^\([0-9][0-9]*\) .*/\1/p' tests/sim/seeds); do $(B)/sim --seed $$k >$(B)/sim.log || { cat $(B)/sim.log; exit 1; }; done
sim-mutants: $(B)/sim $(B)/tests/lib/duo.o $(B)/tests/lib/lone.o
	CC="$(CC)" B="$(B)" SANF="$(SANF)" PART="$(PART)" bash tests/sim/mutants.sh
