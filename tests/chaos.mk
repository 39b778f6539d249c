# SPDX-License-Identifier: Apache-2.0
# `make chaos SECONDS=n SEED=k CLUSTER=static|quorum|etcd`: runs real daemons and trainers under faults, and replays their
# logs. See tests/chaos/chaos.py.
CHAOS_SECONDS := $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),60)
CHAOS_CLUSTER := $(if $(filter command environment,$(firstword $(origin CLUSTER))),$(CLUSTER),static)
CHAOS_SEED    := $(if $(filter command environment,$(firstword $(origin SEED))),$(SEED))
.PHONY: chaos chaos-run
$(B)/chaos-trainer: $(B)/tests/chaos/trainer.o $(CLIENT_A) $(PROTO_A)
	$(link) $^ $(LIBS_CLIENT) -lm
chaos: # Each part has a make of its own, so that nothing is built before what it needs.
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory chaos-run
chaos-run: all python $(B)/chaos-trainer
	@KEEP='$(KEEP)' FLIP='$(FLIP)' FAULTS='$(FAULTS)' \
	  build/python/bin/python3 -B tests/chaos/chaos.py $(B) $(CHAOS_SECONDS) '$(CHAOS_SEED)' '$(CHAOS_CLUSTER)'
