# SPDX-License-Identifier: Apache-2.0
# shardd: `make demo` and `make check` are the two commands to know; `make help` lists the rest.
.DEFAULT_GOAL := all
MAKEFLAGS += --no-builtin-rules
SHELL    := /bin/bash
CC       := $(if $(filter default,$(origin CC)),gcc,$(CC))
CFLAGS   ?= -O3 -g
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
DESTDIR  ?=
SAN      ?=
comma    := ,
B        := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
VERSION  := 0.1.0

# --- flags: the baseline instruction set everywhere; a kernel file that needs more says so in its name ---
WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-align -Wwrite-strings \
          -Wundef -Wvla -Wformat=2 -Wswitch-enum $(if $(WERROR),-Werror)
STD    := -std=c11 -D_GNU_SOURCE -DSHARD_RELEASE='"$(VERSION)"' -ffp-contract=off -fno-strict-overflow -fPIC -fvisibility=hidden -pthread
SANF   := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -DSHARD_DEBUG)
DEBUGF := $(if $(DEBUG),-DSHARD_DEBUG)
INC    := -Iinclude -Iproto -I$(B)/gen
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
isa     = $(if $(filter %_avx512.c,$1),$(ISA_avx512),$(if $(filter %_avx2.c,$1),$(ISA_avx2)))
compile = $(CC) $(STD) $(WARN) $(SANF) $(DEBUGF) $(INC) $(call inc,$<) $(CPPFLAGS) $(CFLAGS) $(call isa,$<) -MMD -MP -c $< -o $@
# daemon/ and client/ never see each other's headers; tests see all
inc     = $(if $(filter daemon/%,$1),-Idaemon)$(if $(filter client/%,$1),-Iclient)$(if $(filter tests/%,$1),-I. -Idaemon -Iclient -Itests)
LIBS_PROTO  := -lprotobuf-c
LIBS_DAEMON := -luv -linih -ljansson -lm
LIBS_CLIENT := -lprotobuf-c

# --- sources: found, not listed ---
objs      = $(patsubst %.c,$(B)/%.o,$1)
PB       := $(B)/gen/shard.pb-c.c
PROTO_C  := $(wildcard proto/base/*.c proto/wire/*.c proto/net/*.c)
DAEMON_C := $(filter-out daemon/main.c,$(wildcard daemon/*.c daemon/*/*.c))
CLIENT_C := $(wildcard client/*.c)
CTL_C    := $(wildcard client/ctl/*.c)
GPT_C    := $(filter-out client/examples/gpt.c,$(wildcard client/examples/*.c))
TESTLIB_C:= $(wildcard tests/lib/*.c)
SIM_C    := $(wildcard tests/sim/*.c)
UNIT_C   := $(wildcard tests/unit/test_*.c tests/kernel/test_*.c tests/proc/test_*.c)
BENCH_C  := $(wildcard tests/bench/bench_*.c)
REF_C    := $(wildcard tests/ref/*.c)
UNIT     := $(patsubst %.c,$(B)/%,$(UNIT_C))
BENCH    := $(patsubst %.c,$(B)/%,$(BENCH_C))

PROTO_A := $(B)/libshardproto.a
DAEMON_A:= $(B)/libshardd.a
CLIENT_A:= $(B)/libshard.a
GPT_A   := $(B)/libgpt.a
TEST_A  := $(B)/libtest.a
BINS    := $(B)/shardd $(B)/shardctl $(B)/gpt
HAVE_MAIN := $(wildcard daemon/main.c)

all: $(if $(HAVE_MAIN),$(B)/shardd) $(if $(CTL_C),$(B)/shardctl) $(if $(wildcard client/examples/gpt.c),$(B)/gpt) $(if $(CLIENT_C),$(B)/libshard.so.0)

$(B)/gen/shard.pb-c.h: $(PB)
$(PB): proto/wire/shard.proto
	@mkdir -p $(@D)
	protoc-c --proto_path=proto/wire --c_out=$(B)/gen shard.proto

$(B)/gen/%.o: $(B)/gen/%.c
	$(CC) $(STD) $(SANF) -Wno-undef $(INC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(B)/%.o: %.c | $(PB)
	@mkdir -p $(@D)
	$(compile)

ar = @mkdir -p $(@D); rm -f $@; $(AR) rcs $@ $^
$(PROTO_A): $(call objs,$(PROTO_C)) $(B)/gen/shard.pb-c.o
	$(ar)
$(DAEMON_A): $(call objs,$(DAEMON_C))
	$(ar)
$(CLIENT_A): $(call objs,$(CLIENT_C))
	$(ar)
$(GPT_A): $(call objs,$(GPT_C))
	$(ar)
$(TEST_A): $(call objs,$(TESTLIB_C))
	$(ar)

link = $(CC) -pthread $(SANF) $(LDFLAGS) -o $@
$(B)/shardd: $(B)/daemon/main.o $(DAEMON_A) $(PROTO_A)
	$(link) $^ $(LIBS_DAEMON) $(LIBS_PROTO)
$(B)/shardctl: $(call objs,$(CTL_C)) $(CLIENT_A) $(PROTO_A)
	$(link) $^ $(LIBS_CLIENT) -ljansson -linih -lm
$(B)/gpt: $(B)/client/examples/gpt.o $(GPT_A) $(CLIENT_A) $(PROTO_A)
	$(link) $^ $(LIBS_CLIENT) -lm
$(B)/libshard.so.0: $(call objs,$(CLIENT_C)) $(PROTO_A)
	$(link) -shared -Wl,-soname,libshard.so.0 -Wl,--exclude-libs,ALL $^ $(LIBS_CLIENT)

# every test, bench and the simulator may use everything
TEST_LIBS := $(TEST_A) $(GPT_A) $(CLIENT_A) $(DAEMON_A) $(PROTO_A)
TEST_L    := -lcmocka $(LIBS_DAEMON) $(LIBS_CLIENT)
$(UNIT) $(BENCH): $(B)/%: $(B)/%.o $(TEST_LIBS)
	$(link) $^ $(TEST_L)
$(B)/sim: $(call objs,$(SIM_C)) $(TEST_LIBS)
	$(link) $^ $(TEST_L)
$(B)/reference: $(call objs,$(REF_C)) $(GPT_A) $(DAEMON_A) $(PROTO_A)
	$(link) $^ -lm

.PHONY: all clean
clean:
	rm -rf build
.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
-include tests/*.mk deploy/*.mk
