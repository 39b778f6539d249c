# SPDX-License-Identifier: Apache-2.0
# `make chaos SECONDS=n SEED=k CLUSTER=static|quorum|etcd`: runs real daemons and trainers under faults, and replays their
# logs. Without CLUSTER it runs quorum and etcd, and then the figures of the loss of a node. See tests/chaos/chaos.sh.
CHAOS_CLUSTER := $(if $(filter command environment,$(firstword $(origin CLUSTER))),$(CLUSTER))
CHAOS_SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),$(if $(CHAOS_CLUSTER),60,180))
CHAOS_SEED    := $(if $(filter command environment,$(firstword $(origin SEED))),$(SEED))
.PHONY: chaos chaos-run
$(B)/chaos-trainer: $(B)/tests/chaos/trainer.o $(CLIENT_A) $(PROTO_A)
	$(link) $^ $(LIBS_CLIENT) -lm
chaos: # Each part has a make of its own, so that nothing is built before what it needs.
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory chaos-run
chaos-run: all python $(B)/chaos-trainer $(if $(CHAOS_CLUSTER),,$(B)/tests/bench/bench_failover $(B)/tests/bench/bench_copies)
	@KEEP='$(KEEP)' FLIP='$(FLIP)' FAULTS='$(FAULTS)' QUICK='$(QUICK)' ROUNDS='$(ROUNDS)' \
	  tests/chaos/chaos.sh $(B) $(CHAOS_SECONDS) '$(CHAOS_SEED)' '$(CHAOS_CLUSTER)'
