# SPDX-License-Identifier: Apache-2.0
# Tests of checkpoints. The calls that change a file system go through the test, which stops them
# where it wants.
ckpt_calls := fsync rename renameat renameat2 unlink unlinkat rmdir mkdir ftruncate fallocate write pwrite
$(B)/tests/unit/test_ckpt_client: LDFLAGS += -Wl,--wrap=write
$(B)/tests/unit/test_ckpt_folder $(B)/tests/unit/test_ckpt_beside: LDFLAGS += $(foreach c,$(ckpt_calls),-Wl,--wrap=$(c))
# Parts of files are shared where no file system of the machine need do it (lib/reflink.h).
$(B)/tests/unit/test_part_older $(B)/tests/proc/test_save_shared: LDFLAGS += -Wl,--wrap=ioctl
# A program that outlives signals, as one whose storage hangs, and what writes for ever.
$(B)/tests/unit/test_hook: LDFLAGS += -Wl,--wrap=kill -Wl,--wrap=read
