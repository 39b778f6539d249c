# SPDX-License-Identifier: Apache-2.0
# `make demo`: install what is missing, build, train through two daemons, compare with the in-process reference. BREAK=1 must fail.
DEMO := $(B)/reference $(B)/dumpcmp $(B)/lossbound

$(B)/dumpcmp: $(B)/tests/demo/dumpcmp.o $(B)/tests/lib/compare.o
	$(link) $^
$(B)/lossbound: $(B)/tests/demo/lossbound.o $(GPT_A) $(PROTO_A)
	$(link) $^ -lm
$(B)/tests/unit/test_gpt_reference: | $(B)/reference # whose symbols it reads
$(B)/tests/proc/test_exact: | $(B)/shardd $(B)/gpt $(DEMO) # which it runs

.PHONY: demo demo-run
demo: deps # a second make, so that nothing is built before what it needs is there
	@$(MAKE) --no-print-directory demo-run
demo-run: all $(DEMO)
	@BREAK='$(BREAK)' KEEP='$(KEEP)' tests/demo/demo.sh $(B)
