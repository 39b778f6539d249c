# SPDX-License-Identifier: Apache-2.0
# `make vm`: RDMA on real verbs and the service under a real systemd, in emulated guests (tests/vm). Apart from `make check`; its parts are
# vm-a (one guest), vm-b (two on a wire), vm-c (a Debian root with systemd). ONLY="name ..." runs only these tests.
VM_PARTS := vm-a vm-b vm-c
# what needs verbs that are there: run in a guest, where it may not be skipped
VM_TESTS := $(filter $(B)/tests/%rdma_real $(B)/tests/proc/test_rdma%,$(UNIT))
VM_BENCH := $(filter $(B)/tests/bench/bench_rdma%,$(BENCH))
# what part c does inside its guest
VM_IN := $(patsubst %.c,$(B)/%,$(wildcard tests/vm/*.c))
$(VM_IN): $(B)/%: $(B)/%.o $(TEST_LIBS)
	$(link) $^ $(TEST_L)

.PHONY: vm $(VM_PARTS) vm-run deps-vm
deps-vm:
	@tests/lib/deps.sh vm
vm $(VM_PARTS): deps-vm
	@$(MAKE) --no-print-directory vm-run PARTS='$(if $(filter vm,$@),a b c,$(@:vm-%=%))'
vm-run: all $(DEMO) $(VM_TESTS) $(VM_BENCH) $(VM_IN)
	@MAKE='$(MAKE)' ONLY='$(ONLY)' VM_TESTS='$(VM_TESTS)' VM_BENCH='$(VM_BENCH)' tests/vm/run.sh $(B) $(PARTS)
