# SPDX-License-Identifier: Apache-2.0
# `make vm`: tests RDMA on real verbs and the service under a real systemd, in emulated guests
# (tests/vm). It is not part of `make check`. Its parts are vm-a (one guest), vm-b (two with a wire)
# and vm-c (a Debian root with systemd). ONLY="name ..." runs only these tests.
VM_PARTS := vm-a vm-b vm-c
VM_BENCH := $(B)/tests/bench/bench_rdma
# What part c does inside its guest.
VM_IN := $(patsubst %.c,$(B)/%,$(wildcard tests/vm/*.c))
$(VM_IN): $(B)/%: $(B)/%.o $(TEST_LIBS)
	$(link) $^ $(TEST_L)

.PHONY: vm $(VM_PARTS) vm-run deps-vm
deps-vm:
	@tests/lib/deps.sh vm
vm $(VM_PARTS): deps-vm
	@$(MAKE) --no-print-directory vm-run PARTS='$(if $(filter vm,$@),a b c,$(@:vm-%=%))'
vm-run: all $(DEMO) $(VERBS) $(VM_BENCH) $(VM_IN)
	@$(if $(VERBS),,echo 'vm: built without RDMA: libibverbs-dev is not here, or RDMA=0 was given' >&2; exit 1;) \
	MAKE='$(MAKE_COMMAND)' ONLY='$(ONLY)' VERBS='$(filter $(B)/tests/rdma/test_%,$(VERBS))' tests/vm/run.sh $(B) $(PARTS)
