# What shardctl computes, for its unit tests: the command's objects are in no library.
$(B)/tests/unit/test_plan: $(B)/client/ctl/memory.o $(B)/client/ctl/text.o
