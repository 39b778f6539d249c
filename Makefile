# SPDX-License-Identifier: Apache-2.0
# shardd: `make demo` and `make check` are the two commands to know; `make help` lists the rest.
.DEFAULT_GOAL := all
MAKEFLAGS += --no-builtin-rules
SHELL    := /bin/bash
CC       := $(if $(filter default,$(origin CC)),gcc,$(CC))
CFLAGS   ?= $(if $(SAN),-O1,-O3) -g1
OBJCOPY  ?= objcopy
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
DESTDIR  ?=
SAN      ?=
comma    := ,
B        := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
VERSION  := 0.1.0

# --- flags: the baseline instruction set, except for kernel files, whose names say what they need
# ---
WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-align -Wwrite-strings \
          -Wundef -Wvla -Wformat=2 -Wswitch-enum $(if $(WERROR),-Werror)
# These make a mistake in memory harder to exploit. Sanitizer builds do without them, because they
# check memory themselves. FORTIFY needs optimization.
X86    := $(filter x86_64,$(firstword $(subst -, ,$(shell $(CC) -dumpmachine))))
HARDEN := $(if $(SAN),,-fstack-protector-strong $(if $(X86),-fcf-protection) $(if $(filter-out -O0,$(filter -O%,$(CFLAGS))),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2))
HARDEN_LD := -Wl,-z,relro,-z,now,-z,noexecstack
STD    := -std=c11 -D_GNU_SOURCE -DSHARD_RELEASE='"$(VERSION)"' -ffp-contract=off $(if $(SAN),,-fno-strict-overflow) -fPIC -fvisibility=hidden -pthread
# These keep libshard small. What it does not call is left out, only what loops over elements is
# unrolled, and the client is built for size. But its copies are long ones, for which the C library
# has something better than `rep movsb`. Unwind tables are left out, because debuggers have their
# own.
SECTIONS := -ffunction-sections -fdata-sections
LOOPS   := client/adds.c client/ctl/% client/examples/% proto/wire/dtype%
COPIES  := -mmemcpy-strategy=libcall:-1:noalign -mmemset-strategy=libcall:-1:noalign
SIZE    := -Os -fno-asynchronous-unwind-tables $(shell $(CC) $(COPIES) -E -x c /dev/null >/dev/null 2>&1 && echo '$(COPIES)')
# Tests are most of the code, and what they compute is little, but for some that try all cases.
ALL_CASES := $(addprefix tests/unit/test_,verdict.c quorum%.c core_plan.c)
# What a connection does once is built for size, too.
ONCE    := $(addprefix proto/net/,address.c auth.c prove.c secret_file.c stream_plain.c tls.c openssl.c)
quick   = $(if $(filter-out $(ALL_CASES),$(filter tests/unit/% tests/proc/% tests/lib/%,$1)),$(if $(SAN),-O0,-O1))
small   = $(if $(SAN),,$(if $(filter-out $(LOOPS),$(filter client/% $(ONCE),$1)),$(SIZE),$(if $(filter-out $(LOOPS),$(filter proto/%,$1)),-O2)))
# A null pointer ends in a signal anyway, and to look for it takes a quarter of the compiler's time.
SANF   := $(if $(SAN),-fsanitize=$(SAN) $(if $(findstring undefined,$(SAN)),-fno-sanitize=null) -fno-omit-frame-pointer -DSHARD_DEBUG)
DEBUGF := $(if $(DEBUG),-DSHARD_DEBUG)
INC    := -Iinclude -Iproto -I$(B)/gen
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
isa     = $(if $(filter tests/%,$1),,$(if $(filter %_avx512.c,$1),$(ISA_avx512),$(if $(filter %_avx2.c,$1),$(ISA_avx2))))
Q      := $(if $(V),,@)
say     = @$(if $(V),:,echo '  $1' $2)
compile = $(Q)$(CC) $(STD) $(HARDEN) $(WARN) $(SANF) $(DEBUGF) $(INC) $(call inc,$<) $(CPPFLAGS) $(CFLAGS) $(SECTIONS) $(call small,$<) $(call quick,$<) $(call isa,$<) -MMD -MP -c $< -o $@
# daemon/ and client/ never see each other's headers. Tests see all of them.
inc     = $(if $(filter daemon/%,$1),-Idaemon)$(if $(filter client/%,$1),-Iclient)$(if $(filter tests/%,$1),-I. -Idaemon -Iclient -Itests)
LIBS_PROTO  := -lprotobuf-c
# A program that does not use the source etcd does not load libcurl.
CURL       = $(if $(HAVE_ETCD),-Wl$(comma)--push-state$(comma)--as-needed -lcurl -Wl$(comma)--pop-state)
URING_L    = $(if $(HAVE_URING),-Wl$(comma)--push-state$(comma)--as-needed -luring -Wl$(comma)--pop-state)
LIBS_DAEMON = -luv -linih -ljansson -lmicrohttpd -lgnutls $(CURL) $(URING_L) $(if $(HAVE_SYSTEMD),-lsystemd) $(if $(HAVE_RDMA),-libverbs) -ldl -lm
LIBS_CLIENT := -lprotobuf-c

# --- sources: found, not listed ---
objs      = $(patsubst %.c,$(B)/%.o,$1)
PB       := $(B)/gen/shard.pb-c.c
RDMA ?= $(if $(wildcard /usr/include/infiniband/verbs.h),found,)
HAVE_RDMA := $(filter-out 0,$(RDMA))
RDMA_C   := $(filter-out proto/net/rdma_none.c,$(wildcard proto/net/rdma*.c))
# libcurl's headers are where the compiler says.
ETCD ?= $(shell echo '\#include <curl/curl.h>' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo found)
HAVE_ETCD := $(filter-out 0,$(ETCD))
ETCD_C   := $(filter-out daemon/cluster/source_etcd_none.c,$(wildcard daemon/cluster/etcd*.c daemon/cluster/source_etcd*.c))
URING ?= $(shell echo '\#include <liburing.h>' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo found)
HAVE_URING := $(filter-out 0,$(URING))
NOT_X86  := $(if $(X86),,%_avx2.c %_avx512.c) # Kernels for wide registers.
PROTO_C  := $(filter-out $(NOT_X86) $(if $(HAVE_RDMA),proto/net/rdma_none.c,$(RDMA_C)),$(wildcard proto/base/*.c proto/cuda/*.c proto/wire/*.c proto/net/*.c proto/ckpt/*.c))
DAEMON_C := $(filter-out $(NOT_X86) daemon/main.c daemon/store/ring_uring$(if $(HAVE_URING),_none).c $(if $(HAVE_ETCD),daemon/cluster/source_etcd_none.c,$(ETCD_C)),$(wildcard daemon/*.c daemon/*/*.c))
CLIENT_C := $(wildcard client/*.c client/spawn/*.c)
# libshard has TLS in a library of its own, which it loads when a trainer asks for TLS.
TLS_LOAD_C := client/tls/load.c
TLS_C    := client/tls/library.c
CTL_C    := $(wildcard client/ctl/*.c)
# gpt and gpt-cuda have the rest of these in common, but only gpt-cuda has what needs a GPU.
GPT_CUDA_C := $(addprefix client/examples/,gpt_cuda.c device.c transformer_cuda.c)
GPT_C    := $(filter-out client/examples/gpt.c $(GPT_CUDA_C),$(wildcard client/examples/*.c))
TESTLIB_C:= $(wildcard tests/lib/*.c) $(addprefix tests/ref/,refcode.c refmath.c refschedule.c refsettings.c)
SIM_C    := $(wildcard tests/sim/*.c)
UNIT_C   := $(wildcard tests/unit/test_*.c tests/kernel/test_*.c tests/proc/test_*.c)
UNIT_C   := $(if $(HAVE_RDMA),$(UNIT_C),$(filter-out tests/unit/test_rdma% tests/proc/test_rdma%,$(UNIT_C)))
UNIT_C   := $(if $(HAVE_ETCD),$(UNIT_C),$(filter-out tests/unit/test_etcd% tests/proc/test_source_etcd% tests/proc/test_elected_etcd%,$(UNIT_C)))
FAKE_C   := $(if $(HAVE_RDMA),$(wildcard tests/rdma/fake*.c))
# libcuda.so.1 is loaded when a trainer asks for it, or the option gpu, so building needs nothing of
# CUDA.
CUDA ?= found
HAVE_CUDA := $(filter-out 0,$(CUDA))
CUDA_C   := $(wildcard client/cuda/*.c)
UNIT_C   := $(if $(HAVE_CUDA),$(UNIT_C),$(filter-out $(foreach k,cuda gpu,tests/unit/test_$k% tests/proc/test_$k%),$(UNIT_C)))
# The kernels of GPUs are compiled where nvcc is: one that make nvcc has fetched, or the toolkit's. A
# daemon that was built without it takes no GPU. Sanitizer builds never have the kernels: their tests
# use a driver without a GPU.
NVCC ?= $(firstword $(wildcard build/nvcc/nvidia/cu13/bin/nvcc) $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
HAVE_NVCC := $(if $(SAN),,$(if $(HAVE_CUDA),$(filter-out 0,$(NVCC))))
LEASE    := $(if $(HAVE_CUDA),$(B)/tests/gpu/lease $(B)/tests/gpu/lease_gpt) # For a real GPU.
VERBS_C  := $(if $(HAVE_RDMA),$(filter-out tests/rdma/fake%,$(wildcard tests/rdma/*.c)))
BENCH_C  := $(filter-out $(if $(HAVE_RDMA),,tests/bench/bench_rdma.c),$(wildcard tests/bench/bench_*.c))
REF_C    := $(wildcard tests/ref/*.c)
UNIT     := $(patsubst %.c,$(B)/%,$(UNIT_C))
BENCH    := $(patsubst %.c,$(B)/%,$(BENCH_C))

PROTO_A := $(B)/libshardproto.a
DAEMON_A:= $(B)/libshardd.a
CLIENT_A:= $(B)/libshard.a
CUDA_A  := $(if $(HAVE_CUDA),$(B)/libshard-cuda.a)
GPT_A   := $(B)/libgpt.a
TEST_A  := $(B)/libtest.a
BINS    := $(B)/shardd $(B)/shardctl $(B)/gpt
RELEASES := $(B)/tests/older/shardd $(B)/tests/newer/shardd $(B)/tests/before/shardd
HAVE_MAIN := $(wildcard daemon/main.c)

# --- what is optional: found or not, said, and never needed ---
SYSTEMD ?= $(if $(wildcard /usr/include/systemd/sd-daemon.h),found,)
HAVE_SYSTEMD := $(filter-out 0,$(SYSTEMD))
all: parts
parts:
	@echo 'rdma: $(if $(HAVE_RDMA),yes (libibverbs),no ($(if $(RDMA),RDMA=0,libibverbs is not here)))'
	@echo 'etcd: $(if $(HAVE_ETCD),yes (libcurl),no ($(if $(ETCD),ETCD=0,libcurl is not here)))'
	@echo 'uring: $(if $(HAVE_URING),yes (liburing),no ($(if $(URING),URING=0,liburing is not here)$(comma) so files are read and written by threads))'
	@echo 'cuda: $(if $(HAVE_CUDA),yes (libshard-cuda$(comma) which loads libcuda.so.1 at run time),no (CUDA=0))'
	@echo 'nvcc: $(if $(HAVE_NVCC),yes (kernels of GPUs: $(FATBIN)),no ($(if $(HAVE_CUDA),$(if $(SAN),a build with sanitizers,$(if $(NVCC),NVCC=0,nvcc is not here: make nvcc fetches it))$(comma) so the daemon takes no GPU,CUDA=0)))'
	@echo 'systemd: $(if $(HAVE_SYSTEMD),yes (notify$(comma) watchdog$(comma) journal),no ($(if $(SYSTEMD),SYSTEMD=0,libsystemd is not here)))'

# Three files know of libsystemd. They are made anew when it is installed or removed.
SYSTEMD_O := $(patsubst %,$(B)/%.o,daemon/notify daemon/journal daemon/warm/place tests/proc/test_notify tests/unit/test_fdstore)
$(SYSTEMD_O): CPPFLAGS += $(if $(HAVE_SYSTEMD),-DSHARD_SYSTEMD)
$(SYSTEMD_O): $(B)/with-systemd
$(B)/with-systemd: systemd-look # It is always looked at, but only newer if it differs.
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(if $(HAVE_SYSTEMD),yes,no)' ] || echo '$(if $(HAVE_SYSTEMD),yes,no)' >$@
.PHONY: systemd-look
systemd-look:

# The programs and the library are made anew if the flags above change.
$(call objs,$(DAEMON_C) daemon/main.c $(CLIENT_C) $(TLS_LOAD_C) $(TLS_C) $(CUDA_C) $(CTL_C) $(GPT_C) client/examples/gpt.c $(if $(HAVE_CUDA),$(GPT_CUDA_C)) $(PROTO_C)) $(B)/gen/shard.pb-c.o: $(B)/hardening
$(B)/hardening: systemd-look
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(HARDEN)' ] || echo '$(HARDEN)' >$@

# What rdma.h is made of changes when libibverbs is installed or removed.
$(B)/with-rdma: systemd-look
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(if $(HAVE_RDMA),yes,no)' ] || echo '$(if $(HAVE_RDMA),yes,no)' >$@
$(B)/libshardproto.a: $(B)/with-rdma
# So does what the source etcd is made of, with libcurl.
$(B)/with-etcd: systemd-look
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(if $(HAVE_ETCD),yes,no)' ] || echo '$(if $(HAVE_ETCD),yes,no)' >$@
$(B)/libshardd.a: $(B)/with-etcd
$(B)/with-uring: systemd-look
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(if $(HAVE_URING),yes,no)' ] || echo '$(if $(HAVE_URING),yes,no)' >$@
$(B)/libshardd.a: $(B)/with-uring
$(B)/with-cuda: systemd-look
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(if $(HAVE_CUDA),yes,no)' ] || echo '$(if $(HAVE_CUDA),yes,no)' >$@
$(B)/with-nvcc: systemd-look
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(or $(HAVE_NVCC),no)' ] || echo '$(or $(HAVE_NVCC),no)' >$@
parts: $(B)/with-cuda $(B)/with-nvcc

# Every operation of the kernels rounds once (daemon/optim/ops.h), and these say it again. Chips
# that come later compile the PTX themselves.
GPU_ARCHS  := 80 90 100 120
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -ftz=true -prec-div=true -prec-sqrt=true
FATBIN     := $(B)/daemon/gpu/kernels.fatbin $(B)/client/examples/gpt_kernels.fatbin
nvcc_run    = $(Q)$(HAVE_NVCC) $(NVCC_FLAGS) -Iinclude -Iproto $(if $(filter client/%,$<),-Iclient,-Idaemon -Itests)
$(B)/%.fatbin: %.cu $(B)/with-nvcc
	@mkdir -p $(@D)
	$(call say,nvcc,$<)
	$(nvcc_run) --compress-mode=size $(foreach a,$(GPU_ARCHS),-gencode arch=compute_$a$(comma)code=sm_$a) \
	  -gencode arch=compute_80,code=compute_80 -fatbin -MD -MF $(@:.fatbin=.d) -o $@ $<
$(B)/%.ptx: %.cu $(B)/with-nvcc
	@mkdir -p $(@D)
	$(call say,nvcc,$<)
	$(nvcc_run) -arch=compute_80 -ptx -MD -MF $@.d -o $@ $<
all: $(if $(HAVE_NVCC),$(FATBIN))
fatbin: $(FATBIN)
ifneq ($(HAVE_NVCC),)
$(B)/daemon/gpu/fatbin.o: CPPFLAGS += -DSHARD_FATBIN='"$(B)/daemon/gpu/kernels.fatbin"'
$(B)/daemon/gpu/fatbin.o: $(B)/daemon/gpu/kernels.fatbin # .incbin: no compiler sees this
endif
$(B)/daemon/gpu/fatbin.o: $(B)/with-nvcc

all: $(if $(HAVE_MAIN),$(B)/shardd) $(if $(CTL_C),$(B)/shardctl) $(if $(wildcard client/examples/gpt.c),$(B)/gpt) $(if $(CLIENT_C),$(B)/libshard.so.0 $(B)/libshard-tls.so.0 $(B)/libshard-whole.a) $(if $(HAVE_CUDA),$(B)/libshard-cuda.so.0 $(B)/libshard-cuda-whole.a $(B)/gpt-cuda)

$(B)/gen/shard.pb-c.h: $(PB) ;
$(PB): proto/wire/shard.proto
	@mkdir -p $(@D)
	$(call say,protoc-c,$<)
	$(Q)protoc-c --proto_path=proto/wire --c_out=$(B)/gen shard.proto

$(B)/gen/%.o: $(B)/gen/%.c
	$(call say,cc,$<)
	$(Q)$(CC) $(STD) $(HARDEN) $(SANF) -Wno-undef $(INC) $(CPPFLAGS) $(CFLAGS) -Os $(SECTIONS) -c $< -o $@
$(B)/%.o: %.c | $(PB)
	@mkdir -p $(@D)
	$(call say,cc,$<)
	$(compile)

$(B)/daemon/obs/page.o: daemon/obs/page.html # .incbin: no compiler sees this
# The Content-Security-Policy of the page allows its one script, by the hash of the bytes between
# the tags.
$(B)/daemon/obs/http.o: $(B)/gen/page_hash.h
$(B)/gen/page_hash.h: daemon/obs/page.html
	@mkdir -p $(@D)
	$(Q)hex=$$({ echo; sed -n '/^<script>$$/,/^<\/script>$$/{//!p}' $<; } | sha256sum | cut -c1-64); \
	  printf '#define PAGE_SCRIPT_HASH "sha256-%s"\n' "$$(printf "$$(sed 's/../\\x&/g' <<<"$$hex")" | base64)" >$@
$(B)/client/spawn/spawn.o: CPPFLAGS += -DSHARD_PREFIX='"$(PREFIX)"' # Where it looks for shardd.

ar = @mkdir -p $(@D); rm -f $@; $(AR) rcs $@ $(filter %.o,$^)
$(PROTO_A): $(call objs,$(PROTO_C)) $(B)/gen/shard.pb-c.o
	$(ar)
$(DAEMON_A): $(call objs,$(DAEMON_C))
	$(ar)
$(CLIENT_A): $(call objs,$(CLIENT_C))
	$(ar)
$(B)/libshard-cuda.a: $(call objs,$(CUDA_C))
	$(ar)
$(GPT_A): $(call objs,$(GPT_C))
	$(ar)
$(TEST_A): $(call objs,$(TESTLIB_C))
	$(ar)

# gold takes a third of the time for tests, of which there are hundreds, and for the large programs
# of instrumented code. It does not know all options of the libraries.
GOLD := $(if $(X86),$(shell command -v ld.gold >/dev/null && echo -fuse-ld=gold))
fast = $(if $(or $(SAN),$(filter $(B)/tests/%,$@)),$(GOLD))
link = $(if $(V),,@echo '  link' $@;) $(CC) -pthread $(HARDEN_LD) $(SANF) $(if $(findstring .so,$@),,$(fast)) $(LDFLAGS) -o $@
$(B)/shardd: $(B)/daemon/main.o $(DAEMON_A) $(PROTO_A)
	$(link) -pie $^ $(LIBS_DAEMON) $(LIBS_PROTO)
$(B)/shardctl: $(call objs,$(CTL_C)) $(CLIENT_A) $(PROTO_A)
	$(link) -pie $^ $(LIBS_CLIENT) -ljansson -linih -lm
$(B)/gpt: $(B)/client/examples/gpt.o $(GPT_A) $(CLIENT_A) $(PROTO_A)
	$(link) -pie $^ $(LIBS_CLIENT) -lm
$(B)/gpt-cuda: $(call objs,$(GPT_CUDA_C)) $(GPT_A) $(B)/libshard-cuda.a $(CLIENT_A) $(PROTO_A)
	$(link) -pie $^ $(LIBS_CLIENT) -ldl -lm
$(B)/libshard.so.0: client/libshard.map $(call objs,$(CLIENT_C) $(TLS_LOAD_C)) $(PROTO_A)
	$(link) -shared -Wl,-soname,libshard.so.0 -Wl,--version-script,$< -Wl,--no-undefined -Wl,--gc-sections -Wl,-z,noseparate-code \
	  $(filter-out $<,$^) $(LIBS_CLIENT)

$(B)/libshard-tls.so.0: client/tls/libshard-tls.map $(call objs,$(TLS_C)) $(PROTO_A)
	$(link) -shared -Wl,-soname,libshard-tls.so.0 -Wl,--version-script,$< -Wl,--no-undefined -Wl,--gc-sections -Wl,-z,noseparate-code \
	  $(filter-out $<,$^)

$(B)/libshard-cuda.so.0: client/cuda/libshard-cuda.map $(call objs,$(CUDA_C)) $(PROTO_A) $(B)/libshard.so.0
	$(link) -shared -Wl,-soname,libshard-cuda.so.0 -Wl,--version-script,$< -Wl,--no-undefined -Wl,--gc-sections -Wl,-z,noseparate-code \
	  $(filter-out $<,$^) -ldl

# For static linking: the client and what it needs of proto/ are one object, whose only global names
# are those of shard.h.
$(B)/libshard-whole.a: $(call objs,$(CLIENT_C) $(TLS_LOAD_C)) $(PROTO_A)
	$(Q)$(CC) -r -nostdlib -o $(@:.a=.o) $^
	$(Q)$(OBJCOPY) --localize-hidden $(@:.a=.o)
	@rm -f $@; $(AR) rcs $@ $(@:.a=.o)

# The one with CUDA takes the functions of shard.h from libshard.a or libshard.so.
$(B)/libshard-cuda-whole.a: $(call objs,$(CUDA_C) proto/cuda/driver.c proto/base/status.c proto/base/check.c)
	$(Q)$(CC) -r -nostdlib -o $(@:.a=.o) $^
	$(Q)$(OBJCOPY) --localize-hidden $(@:.a=.o)
	@rm -f $@; $(AR) rcs $@ $(@:.a=.o)

# Tests, benchmarks and the simulator may use everything.
TEST_LIBS := $(TEST_A) $(GPT_A) $(CUDA_A) $(CLIENT_A) $(DAEMON_A) $(PROTO_A)
# Certificates of tests are made by libcrypto.
CRYPTO    = -Wl$(comma)--push-state$(comma)--as-needed -lcrypto -Wl$(comma)--pop-state
TEST_L    = -lcmocka $(LIBS_DAEMON) $(LIBS_CLIENT) $(CRYPTO)
$(UNIT) $(BENCH): $(B)/%: $(B)/%.o $(TEST_LIBS)
	$(link) $(filter %.o,$^) $(filter %.a,$^) $(TEST_L)
# test_rdma* use verbs of their own, in one process (tests/rdma/fake.h). The programs of tests/rdma
# are for a real device.
FAKE_A   := $(B)/libfakeverbs.a
FAKED    := $(filter $(B)/tests/unit/test_rdma% $(B)/tests/proc/test_rdma%,$(UNIT))
VERBS    := $(patsubst %.c,$(B)/%,$(VERBS_C))
$(FAKE_A): $(call objs,$(FAKE_C))
	$(ar)
$(FAKED): $(FAKE_A)
$(FAKED): TEST_L = $(FAKE_A) -lcmocka $(LIBS_DAEMON) $(LIBS_CLIENT)
$(VERBS): $(B)/%: $(B)/%.o $(TEST_LIBS)
	$(link) $^ $(TEST_L)
# These load a driver library of their own, as programs of a user load the real one.
CUDA_TESTS := $(filter $(B)/tests/proc/test_cuda% $(B)/tests/unit/test_gpu% $(B)/tests/proc/test_gpu% $(B)/tests/proc/test_rdma_gpu%,$(UNIT))
FAKE_CUDA  := $(B)/tests/cuda/libcuda.so.1
OLD_CUDA   := $(B)/tests/cuda/old/libcuda.so.1
$(CUDA_TESTS): $(FAKE_CUDA)
$(B)/tests/unit/test_gpu_misuse: $(OLD_CUDA)
$(OLD_CUDA): tests/cuda/old.map
$(FAKE_CUDA) $(OLD_CUDA): $(call objs,$(wildcard tests/cuda/fake*.c)) $(B)/libshim.a $(PROTO_A)
	@mkdir -p $(@D)
	$(link) -shared -Wl,-soname,libcuda.so.1 -Wl,--no-undefined $(addprefix -Wl$(comma)--version-script=,$(filter %.map,$^)) $(filter-out %.map,$^) -lm
# Daemons of other releases, as far as their HELLO says: the fields that an older one does not know
# are missing, or nothing of the wire is the same. An older one also refuses newer uses of HELD. The
# one before has images on GPUs, and no gradients.
$(B)/tests/older/hello.o: CPPFLAGS += -DWIRE_MINOR=0u
$(B)/tests/newer/hello.o: CPPFLAGS += -DWIRE_VERSION=2u
$(B)/tests/before/hello.o: CPPFLAGS += -DWIRE_MINOR=11u
$(RELEASES:shardd=hello.o): daemon/link/hello.c | $(PB)
	@mkdir -p $(@D)
	$(call say,cc,$<)
	$(compile)
$(B)/tests/older/shardd: $(B)/tests/older/held.o
$(B)/tests/older/shardd: LDFLAGS += -Wl,--wrap=have_held
$(RELEASES): $(B)/tests/%/shardd: $(B)/tests/%/hello.o $(B)/daemon/main.o $(DAEMON_A) $(PROTO_A)
	$(link) -pie $^ $(LIBS_DAEMON) $(LIBS_PROTO)
$(B)/tests/proc/test_releases $(B)/tests/proc/test_gpu_grads $(B)/tests/proc/test_shares $(B)/tests/proc/test_save_client $(B)/tests/proc/test_own_dtypes $(B)/tests/proc/test_values $(B)/tests/proc/test_set_hyper: $(RELEASES)
# A daemon whose memory or processor is bad, when a file says so.
ODD_WRAP := -Wl,--wrap=grad_copied,--wrap=grad_reduced,--wrap=apply_stage
$(B)/tests/odd/shardd: $(B)/tests/odd/lies.o $(B)/daemon/main.o $(DAEMON_A) $(PROTO_A)
	$(link) -pie $(ODD_WRAP) $^ $(LIBS_DAEMON) $(LIBS_PROTO)
$(B)/tests/proc/test_odd: $(B)/tests/odd/shardd
$(B)/sim: $(call objs,$(SIM_C)) $(TEST_LIBS)
	$(link) $^ $(TEST_L)
$(B)/reference: $(call objs,$(REF_C)) $(GPT_A) $(DAEMON_A) $(PROTO_A)
	$(link) $^ -lm


# --- install ---
$(B)/libshard.pc: parts # It is always made, because it depends on PREFIX and LIBDIR.
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$${prefix}/include' '' 'Name: libshard' \
	  'Description: push gradients to, and pull parameters from, shardd' 'Version: $(VERSION)' \
	  'Libs: -L$${libdir} -lshard' 'Libs.private: -lprotobuf-c -pthread' 'Cflags: -I$${includedir}' >$@
$(B)/libshard-cuda.pc: parts
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$${prefix}/include' '' 'Name: libshard-cuda' \
	  'Description: push gradients from, and pull parameters to, a GPU with shardd' 'Version: $(VERSION)' 'Requires: libshard' \
	  'Libs: -L$${libdir} -lshard-cuda' 'Libs.private: -ldl -pthread' 'Cflags: -I$${includedir}' >$@
install: all $(B)/libshard.pc $(if $(HAVE_CUDA),install-cuda)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/share/shardd
	install -m 755 $(B)/shardd $(B)/shardctl $(DESTDIR)$(PREFIX)/bin
	install -m 644 include/shard.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(B)/libshard-whole.a $(DESTDIR)$(LIBDIR)/libshard.a
	install -m 755 $(B)/libshard.so.0 $(B)/libshard-tls.so.0 $(DESTDIR)$(LIBDIR)
	ln -sf libshard.so.0 $(DESTDIR)$(LIBDIR)/libshard.so
	install -m 644 $(B)/libshard.pc $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 deploy/shardd.conf deploy/alerts.yml deploy/grafana.json $(DESTDIR)$(PREFIX)/share/shardd
install-cuda: all $(B)/libshard-cuda.pc
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 include/shard_cuda.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(B)/libshard-cuda-whole.a $(DESTDIR)$(LIBDIR)/libshard-cuda.a
	install -m 755 $(B)/libshard-cuda.so.0 $(DESTDIR)$(LIBDIR)
	ln -sf libshard-cuda.so.0 $(DESTDIR)$(LIBDIR)/libshard-cuda.so
	install -m 644 $(B)/libshard-cuda.pc $(DESTDIR)$(LIBDIR)/pkgconfig
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/include/shard_cuda.h $(addprefix $(DESTDIR)$(LIBDIR)/,libshard-cuda.a libshard-cuda.so libshard-cuda.so.0 pkgconfig/libshard-cuda.pc)
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/shardd bin/shardctl include/shard.h share/shardd/shardd.conf share/shardd/alerts.yml share/shardd/grafana.json)
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libshard.a libshard.so libshard.so.0 libshard-tls.so.0 pkgconfig/libshard.pc)
	-rmdir $(DESTDIR)$(PREFIX)/share/shardd 2>/dev/null

# --- what people type ---
deps:
	@tests/lib/deps.sh
# A second make, so that nothing is built, and no wildcard looked at, before what it needs is there.
check: deps
	@$(MAKE) --no-print-directory check-run WERROR=1
check-run:
	@MAKE='$(MAKE)' tests/lib/check.sh $(B)
check-all: deps
	@$(MAKE) --no-print-directory check-all-run WERROR=1
check-all-run:
	@MAKE='$(MAKE)' tests/lib/check.sh $(B) all
nightly: export FULL := 1
nightly: export CI ?= yes
nightly: check-all
tests: all $(LEASE) $(UNIT) $(BENCH) $(VERBS) $(if $(SIM_C),$(B)/sim) $(if $(REF_C),$(B)/reference)
unit: $(UNIT)
	@rm -rf $(B)/results*; tests/lib/run.sh $(B)/results $(UNIT)
tidy:
	@tests/lib/tidy.sh
tidy-ratchet:
	@tests/lib/tidy.sh ratchet
format:
	@tests/lib/tidy.sh format
help:
	@printf '  %-26s %s\n' \
	  'make' 'build shardd, shardctl, libshard and the example trainer into build/' \
	  'make demo' 'install what is missing, train a small GPT through two daemons, compare with one process; CODEC=int8 or int4, TIER=nvme, mixed or gpu' \
	  'make demo-kill' 'the same while trainers and daemons die at random moments: KILLS=n SEED=k; the replayed history must agree' \
	  'make demo-elastic' 'three nodes, two copies: the one that coordinates dies for good, another one joins' \
	  'make check' 'install what is missing, build, run the tests: a quarter of an hour on two cores' \
	  'make check-all' 'all tests: the long ones, fuzzers, mutants and sanitizer builds, too' \
	  'make nightly' 'the same as CI runs it, with what CI runs only a part of: all mutants' \
	  'make check-python' 'the Python package with torch, which is installed below build/: PYTEST="-k name"' \
	  'make check-python-frameworks' 'the same with Lightning and Ray, which are installed below build/: not part of CI' \
	  'make check-deepspeed' 'unit tests of DeepSpeed itself against the stand-in: DEEPSPEED_SRC=checkout FILES="..."; not part of CI' \
	  'make wheel' 'the wheel with library and daemon inside, into build/dist; check-wheel trains with it' \
	  'make check-arm' 'the unit tests for aarch64, under qemu-user; installs a cross compiler' \
	  'make unit' 'build and run unit, kernel and process tests only' \
	  'make sim SEEDS=n SEED=k' 'the simulated cluster with seeds k to k+n-1' \
	  'make sim-mutants' 'planted mistakes, each of which a checker must find' \
	  'make nvme-kill NVME_KILLS=n' 'kills a process whose state is on a disk n times (1000), and compares every chunk' \
	  'make nvme-power NVME_LOSSES=n' 'takes the power n times (1000) from a disk that forgets what was not synced, and from several nodes, and compares every chunk' \
	  'make chaos SECONDS=n SEED=k' 'real daemons and trainers under faults, a replay, and figures; CLUSTER=static, quorum or etcd alone; FAULTS="a b"' \
	  'make fuzz SECONDS=n' 'each fuzzer for n seconds; fuzz-replay: the corpora; fuzz-coverage: what they reach' \
	  'make hostile SECONDS=n' 'peers that lie in every role, against sanitizer builds: SEED=k ONLY=name; each known attack first' \
	  'make bench' 'figures beside what the machine can do' \
	  'make codec-loss' 'losses and bytes with and without codecs, from five seeds, as a plot' \
	  'make zero' 'what stages of ZeRO need by shardctl plan, and the same measured on 100 million parameters' \
  'make bench-growth' 'a step with more parameters, trainers and daemons, as plots' \
	  'make bench-python' 'a step of torch with shardd, DDP, FSDP2 and DeepSpeed, in turn: RANKS="2,4" SIZES="21,100" ROUNDS=n' \
	  'make growth' 'what one coordinator bears: 8 to 2,048 simulated nodes on measured costs, as a plot' \
	  'make promtool' 'fetch the program that tests the alert rules into build/promtool' \
	  'make page' 'the page of a running daemon in a headless browser; skipped without chromium' \
	  'make page-shots' 'pictures of it in every state, into build/page-shots, and axe-core; skipped without chromium' \
	  'make vm' 'RDMA and the service in QEMU guests, up to 25 min: vm-a one guest, vm-b two, vm-c systemd; ONLY=name' \
	  'make tidy' 'include rules, sizes, links, format; format: formats; tidy-ratchet: records sizes that shrank' \
	  'make config-readme' 'writes daemon/config/README.md from the tables of options and settings' \
	  'make install' 'DESTDIR, PREFIX, LIBDIR, MANDIR; and uninstall; man: the manual alone, into build/man' \
	  'make deb' 'Debian packages into build/deb, read by lintian; installs what that needs' \
	  'make nvcc' 'fetch the compiler for the kernels of GPUs into build/nvcc; make fatbin compiles them' \
	  'make deps' 'install missing Debian packages; NO_APT=1 only lists them' \
	  'SAN=address,undefined' 'or SAN=thread: with sanitizers, into build/san-...' \
	  'DEBUG=1 WERROR=1 V=1' 'debug counters; warnings are errors; whole command lines' \
	  'RDMA=0 CUDA=0 SYSTEMD=0 ETCD=0 URING=0' 'leave optional parts out'

.PHONY: all parts install install-cuda uninstall deps check check-run check-all check-all-run nightly tests unit tidy tidy-ratchet format help clean
clean:
	rm -rf build
.PHONY: fatbin
-include $(shell find $(B) -type f -name '*.d' 2>/dev/null)
-include tests/*.mk deploy/*.mk
