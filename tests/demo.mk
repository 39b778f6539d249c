# SPDX-License-Identifier: Apache-2.0
# `make demo`: install what is missing, build, train through two daemons, compare with the in-process reference. BREAK=1 must fail.
DEMO := $(B)/reference $(B)/dumpcmp $(B)/lossbound

$(B)/dumpcmp: $(B)/tests/demo/dumpcmp.o $(B)/tests/lib/compare.o
	$(link) $^
$(B)/lossbound: $(B)/tests/demo/lossbound.o $(GPT_A) $(PROTO_A)
	$(link) $^ -lm
$(B)/tests/unit/test_gpt_reference: | $(B)/reference # whose symbols it reads
$(B)/tests/proc/test_exact: | $(B)/shardd $(B)/gpt $(DEMO) # which it runs

# A failed recipe makes GNU make exit with 2; in question mode with 1, which is what BREAK=1 promises. Lines with $(MAKE) run in
# either mode; the make inside must not be in it.
ifeq ($(MAKELEVEL)$(BREAK),01)
MAKEFLAGS += --question
endif
without_q = MAKEFLAGS='$(subst q,,$(firstword $(MAKEFLAGS))) $(wordlist 2,99,$(MAKEFLAGS))'

.PHONY: demo demo-run demo-kill demo-kill-run
demo: # makes of their own, so that nothing is built before what it needs is there
	@$(if $(filter 1,$(BREAK)),$(without_q)) $(MAKE) --no-print-directory deps
	@$(if $(filter 1,$(BREAK)),$(without_q)) $(MAKE) --no-print-directory demo-run || exit 1
demo-run: all $(DEMO)
	@BREAK='$(BREAK)' KEEP='$(KEEP)' tests/demo/demo.sh $(B)

# `make demo-kill KILLS=n SEED=k STEPS=n`: trainers are killed with -9 and started again; the replayed history must give the same bits.
demo-kill:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory demo-kill-run
demo-kill-run: all $(DEMO)
	@BREAK='$(BREAK)' KEEP='$(KEEP)' KILLS='$(KILLS)' STEPS='$(STEPS)' SEED='$(if $(findstring file,$(origin SEED)),,$(SEED))' \
	  tests/demo/kill.sh $(B)
