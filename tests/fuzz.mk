# SPDX-License-Identifier: Apache-2.0
# `make fuzz SECONDS=n` runs each fuzzer for n seconds. `make fuzz-replay` runs the committed
# corpora. `make fuzz-coverage` tells how much of each parser its corpus alone reaches. A fuzzer is
# tests/fuzz/fuzz_X.c with a corpus in tests/fuzz/corpus/X. Its comment lines name the sources that
# it tests ("// covers: a.c b.c", measured) and what else it links outside proto/ ("// needs: c.c").
CLANG    ?= clang
FUZZ_B   := build/fuzz
FUZZ_C   := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ     := $(patsubst tests/fuzz/%.c,%,$(FUZZ_C))
FUZZ_STD := $(STD) $(filter-out -Werror,$(WARN)) -DSHARD_DEBUG -Wno-cast-align -Wno-format-nonliteral $(INC)
SECONDS  ?= 20
fuzz_src  = $(filter-out daemon/cluster/source_etcd$(if $(HAVE_ETCD),_none).c $(if $(HAVE_ETCD),,daemon/cluster/etcd_http.c) daemon/store/ring_uring$(if $(HAVE_URING),_none).c,$(wildcard $(shell sed -n 's|^// covers:||p; s|^// needs:||p' tests/fuzz/$1.c)))
fuzz_obj  = $(patsubst %.c,$(FUZZ_B)/%.o,$1)
FUZZ_PROTO := $(PROTO_C) $(PB)

# One build finds faults and counts lines.
FUZZ_CFLAGS := -O1 -gline-tables-only -fsanitize=fuzzer-no-link,address,undefined \
	       -fno-sanitize-recover=undefined -fno-sanitize=null -fno-omit-frame-pointer \
	       -fprofile-instr-generate -fcoverage-mapping
FUZZ_LINK   := -fsanitize=fuzzer,address,undefined -fprofile-instr-generate

$(FUZZ_B)/%.o: %.c | $(PB)
	@mkdir -p $(@D)
	@$(CLANG) $(FUZZ_STD) $(call inc,$<) $(CPPFLAGS) $(FUZZ_CFLAGS) $(call isa,$<) -MMD -MP -c $< -o $@
$(FUZZ_B)/libproto.a: $(call fuzz_obj,$(FUZZ_PROTO))
	@rm -f $@; $(AR) rcs $@ $^
define fuzz_program
$(FUZZ_B)/$1: $$(call fuzz_obj,tests/fuzz/$1.c $$(call fuzz_src,$1)) $(FUZZ_B)/libproto.a
	@$(CLANG) -pthread $(FUZZ_LINK) -o $$@ $$^ $(LIBS_DAEMON) $(LIBS_PROTO)
endef
$(foreach f,$(FUZZ),$(eval $(call fuzz_program,$f)))

.PHONY: fuzz fuzz-replay fuzz-coverage fuzz-build
fuzz fuzz-replay: export LLVM_PROFILE_FILE := /dev/null
fuzz-build: $(patsubst %,$(FUZZ_B)/%,$(FUZZ))
fuzz: fuzz-build
	@for f in $(FUZZ); do mkdir -p $(FUZZ_B)/found/$$f; \
	  $(FUZZ_B)/$$f -max_total_time=$(SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ_B)/found/$$f- $(FUZZ_B)/found/$$f tests/fuzz/corpus/$${f#fuzz_} >$(FUZZ_B)/found/$$f.log 2>&1 \
	  || { cat $(FUZZ_B)/found/$$f.log; exit 1; }; \
	  sed -n "s/^stat::number_of_executed_units: */fuzz: $$f: $(SECONDS) s, inputs: /p" $(FUZZ_B)/found/$$f.log; done
fuzz-replay: fuzz-build
	@for f in $(FUZZ); do $(FUZZ_B)/$$f -runs=0 -verbosity=0 tests/fuzz/corpus/$${f#fuzz_} >$(FUZZ_B)/replay.log 2>&1 \
	  || { cat $(FUZZ_B)/replay.log; exit 1; }; echo "fuzz: $$f: $$(ls tests/fuzz/corpus/$${f#fuzz_} | wc -l) inputs replayed"; done
fuzz-coverage: fuzz-build
	@tests/fuzz/coverage.sh $(FUZZ_B) 90 $(FUZZ)
-include $(shell find $(FUZZ_B) -name '*.d' 2>/dev/null)
