# SPDX-License-Identifier: Apache-2.0
# The computations of shardctl for unit tests. The command's objects are not in a library.
$(B)/tests/unit/test_plan: $(B)/client/ctl/memory.o $(B)/client/ctl/text.o
$(B)/tests/unit/test_history_read: $(B)/client/ctl/history_read.o
$(B)/tests/unit/test_figures $(B)/tests/unit/test_screen: $(addprefix $(B)/client/ctl/,screen.o figures.o palette.o json.o text.o)
$(B)/tests/unit/test_figures $(B)/tests/unit/test_screen: LDFLAGS += -Wl,-u,check_failed
$(B)/tests/unit/test_term: $(B)/client/ctl/term.o
$(B)/tests/unit/test_term: LDFLAGS += -Wl,-u,err_set # The objects above come after the libraries.

# The threads of `shardctl bench` fail where the test wants.
$(B)/tests/unit/test_bench_memory: $(B)/client/ctl/bench_memory.o
$(B)/tests/unit/test_bench_memory: LDFLAGS += -Wl,-u,err_set -Wl,-u,check_failed $(foreach c,pthread_create pthread_join sched_getaffinity,-Wl,--wrap=$(c))
