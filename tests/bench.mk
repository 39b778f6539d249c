# SPDX-License-Identifier: Apache-2.0
# `make bench`: builds and runs every benchmark. Prints lines "bench: NAME VALUE UNIT limit LIMIT
# ratio R". QUICK=1 uses small sizes, as a smoke test.
$(TEST_A): $(addprefix $(B)/tests/bench/,daemons.o fleet.o bare.o)

# Counts the frames of daemons that run as threads (crowd.c).
$(B)/tests/bench/bench_control: $(addprefix $(B)/tests/bench/,cores.o crowd.o frames.o)
$(B)/tests/bench/bench_control: LDFLAGS += -Wl,--wrap=wire_seal,--wrap=wire_invalid

# A bare TLS transfer stands beside that of daemons.
$(B)/tests/bench/bench_net: $(B)/tests/bench/limit_tls.o
$(B)/tests/bench/bench_net: TEST_L += -lssl -lcrypto

.PHONY: bench bench-build bench-growth bench-python
bench-build: all $(BENCH)
bench: bench-build
	@bash tests/bench/bench.sh $(B) $(if $(QUICK),--quick)

# A step of torch with shardd beside DDP, FSDP2 and DeepSpeed, which are installed below build/.
# ROUNDS, RANKS="2,4", SIZES="21,100" (millions of parameters).
bench-python: bench-build torch
	@$(TORCH_PYTHON) -B client/python/bench/bench.py $(B) $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(RANKS),--ranks $(RANKS)) $(if $(SIZES),--sizes $(SIZES))

# Losses with and without codecs, from five seeds, and bytes. Writes tests/bench/codec_loss.svg.
# STEPS=n SEEDS=n, if they are asked for: other tests have a SEEDS with a default.
asked = $(if $(filter command environment,$(firstword $(origin $1))),$2 $($1))
.PHONY: codec-loss
codec-loss: bench-build
	@python3 -B tests/bench/codec_loss.py $(B) tests/bench/codec_loss.svg $(call asked,STEPS,--steps) $(call asked,SEEDS,--seeds)

# What ZeRO's stages need of devices, nodes, disks and wires: the plan, and a real run beside it.
.PHONY: zero
$(B)/tests/bench/zero_trainer: $(B)/tests/bench/zero_trainer.o $(CLIENT_A) $(PROTO_A)
	$(link) $^ $(LIBS_CLIENT) -lm
zero: all $(B)/tests/bench/zero_trainer
	@python3 -B tests/bench/zero.py $(B) $(if $(QUICK),--quick)

# How the time of a step grows with parameters, trainers and daemons on one machine. QUICK=1 uses
# the small ones.
bench-growth: bench-build
	@$(B)/tests/bench/bench_growth $(if $(QUICK),--quick) | tee $(B)/growth.txt
	@python3 tests/bench/growth.py <$(B)/growth.txt

# What one coordinator bears: measures what its messages cost here, and simulates more nodes than
# there are. Writes tests/growth/costs.txt and growth.svg. `make growth-plot` does without measuring.
.PHONY: growth growth-plot
growth: bench-build
	@$(B)/tests/bench/bench_control --costs tests/growth/costs.txt
	@$(MAKE) --no-print-directory growth-plot
growth-plot:
	@python3 -B tests/growth/growth.py tests/growth/costs.txt tests/growth/growth.svg
