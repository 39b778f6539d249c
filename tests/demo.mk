# SPDX-License-Identifier: Apache-2.0
# `make demo`: installs what is missing, builds, trains with two daemons, and compares with the
# in-process reference. With BREAK=1 it must fail.
DEMO := $(B)/reference $(B)/dumpcmp $(B)/lossbound

$(B)/dumpcmp: $(B)/tests/demo/dumpcmp.o $(B)/tests/lib/compare.o
	$(link) $^
$(B)/lossbound: $(B)/tests/demo/lossbound.o $(GPT_A) $(PROTO_A)
	$(link) $^ -lm
$(B)/tests/unit/test_gpt_reference: | $(B)/reference # It reads the symbols of that.
$(B)/tests/proc/test_exact $(B)/tests/proc/test_own_dtypes: | $(B)/shardd $(B)/gpt $(DEMO) # It runs all of these.

# A failed recipe makes GNU make exit with 2, and in question mode with 1, which is what BREAK=1
# promises. Lines with $(MAKE) run in either mode, and the make inside must not be in question mode.
ifeq ($(MAKELEVEL)$(BREAK),01)
MAKEFLAGS += --question
endif
without_q = MAKEFLAGS='$(subst q,,$(firstword $(MAKEFLAGS))) $(wordlist 2,99,$(MAKEFLAGS))'

.PHONY: demo demo-run demo-kill demo-kill-run demo-elastic demo-elastic-run
demo: # Each part has a make of its own, so that nothing is built before what it needs.
	@$(if $(filter 1,$(BREAK)),$(without_q)) $(MAKE) --no-print-directory deps
	@$(if $(filter 1,$(BREAK)),$(without_q)) $(MAKE) --no-print-directory demo-run || exit 1
demo-run: all $(DEMO)
	@BREAK='$(BREAK)' KEEP='$(KEEP)' CODEC='$(CODEC)' TIER='$(TIER)' tests/demo/demo.sh $(B)

# `make demo-kill KILLS=n SEED=k STEPS=n`: kills trainers and daemons with kill -9 and starts them
# again. The replayed history must give the same bits.
demo-kill:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory demo-kill-run
demo-kill-run: all $(DEMO)
	@BREAK='$(BREAK)' KEEP='$(KEEP)' TIER='$(TIER)' KILLS='$(KILLS)' STEPS='$(STEPS)' SEED='$(if $(findstring file,$(origin SEED)),,$(SEED))' \
	  tests/demo/kill.sh $(B)

# `make nvme-kill NVME_KILLS=n`: kills a process with reads, writes and updates of chunks on a disk
# under way, by io_uring and by threads, n times each. `make check` does so a few times.
.PHONY: nvme-kill
nvme-kill: $(B)/tests/proc/test_nvme_kill
	@NVME_KILLS='$(or $(NVME_KILLS),1000)' $<

# `make nvme-power NVME_LOSSES=n`: takes the power n times from a disk that forgets what was not
# synced, and n times from several nodes, and compares every chunk. `make check` does so a few
# hundred times.
.PHONY: nvme-power
nvme-power: $(B)/tests/unit/test_nvme_power $(B)/tests/unit/test_nvme_power_nodes
	@for t in $^; do NVME_LOSSES='$(or $(NVME_LOSSES),1000)' $$t || exit 1; done

# `make demo-elastic`: kills the node that coordinates for good, and lets another one join.
demo-elastic:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory demo-elastic-run
demo-elastic-run: all $(DEMO)
	@KEEP='$(KEEP)' STEPS='$(STEPS)' tests/demo/elastic.sh $(B)
