// SPDX-License-Identifier: Apache-2.0
/* The structs and numbers of shard.h as programs know them that were compiled against ABI 0.
 * library.sh compiles this file and links nothing. A field that moves, changes its size or loses
 * its name is an error here, and so is a status with another number. A struct may grow at its end,
 * because it carries its size. Add the new field here with a larger IS(). */
#include <assert.h>
#include <shard.h>

#define IS(s, bytes) static_assert(sizeof(struct s) == (bytes), #s)
#define AT(s, f, at, bytes)                                                                        \
	static_assert(offsetof(struct s, f) == (at) && sizeof(((struct s *)0)->f) == (bytes),      \
		      #s "." #f)
#define NUMBER(name, n) static_assert((int)(name) == (n), #name)

IS(shard_connect_opts, 64);
AT(shard_connect_opts, size, 0, 8);
AT(shard_connect_opts, address, 8, 8);
AT(shard_connect_opts, secret, 16, 8);
AT(shard_connect_opts, timeout_ms, 24, 8);
AT(shard_connect_opts, log, 32, 8);
AT(shard_connect_opts, log_arg, 40, 8);
AT(shard_connect_opts, look_ms, 48, 8);
AT(shard_connect_opts, tls, 56, 8);

IS(shard_tensor, 120);
AT(shard_tensor, name, 0, 8);
AT(shard_tensor, ndim, 8, 4);
AT(shard_tensor, group, 12, 4);
AT(shard_tensor, flags, 16, 4);
AT(shard_tensor, shape, 24, 64);
AT(shard_tensor, reserved, 88, 24);
AT(shard_tensor, image, 112, 4);
AT(shard_tensor, reserved_32, 116, 4);

IS(shard_group, 16);
AT(shard_group, name, 0, 8);
AT(shard_group, settings, 8, 8);

IS(shard_spec, 72);
AT(shard_spec, size, 0, 8);
AT(shard_spec, name, 8, 8);
AT(shard_spec, tensors, 16, 8);
AT(shard_spec, tensors_nr, 24, 4);
AT(shard_spec, groups, 32, 8);
AT(shard_spec, groups_nr, 40, 4);
AT(shard_spec, image, 44, 4);
AT(shard_spec, grad, 48, 4);
AT(shard_spec, settings, 56, 8);
AT(shard_spec, wait_ms, 64, 8);

IS(shard_info, 136);
AT(shard_info, size, 0, 8);
AT(shard_info, name, 8, 8);
AT(shard_info, offset, 16, 8);
AT(shard_info, numel, 24, 8);
AT(shard_info, group, 32, 4);
AT(shard_info, flags, 36, 4);
AT(shard_info, ndim, 40, 4);
AT(shard_info, shape, 48, 64);
AT(shard_info, image, 112, 4);
AT(shard_info, grad, 116, 4);
AT(shard_info, image_offset, 120, 8);
AT(shard_info, mapped, 128, 8);

IS(shard_world, 56);
AT(shard_world, size, 0, 8);
AT(shard_world, rank, 8, 4);
AT(shard_world, world_size, 12, 4);
AT(shard_world, local_rank, 16, 4);
AT(shard_world, local_size, 20, 4);
AT(shard_world, term, 24, 8);
AT(shard_world, seq, 32, 8);
AT(shard_world, step, 40, 8);
AT(shard_world, why, 48, 8);

IS(shard_begin_opts, 32);
AT(shard_begin_opts, size, 0, 8);
AT(shard_begin_opts, weight, 8, 8);
AT(shard_begin_opts, micro_steps, 16, 4);
AT(shard_begin_opts, lr, 24, 8);

IS(shard_step, 40);
AT(shard_step, size, 0, 8);
AT(shard_step, step, 8, 8);
AT(shard_step, attempt, 16, 8);
AT(shard_step, rank, 24, 4);
AT(shard_step, world_size, 28, 4);
AT(shard_step, loss_scale, 32, 8);

IS(shard_fault_range, 24);
AT(shard_fault_range, base, 0, 8);
AT(shard_fault_range, bytes, 8, 8);
AT(shard_fault_range, text, 16, 8);

IS(shard_faults, 24);
AT(shard_faults, size, 0, 8);
AT(shard_faults, ranges, 8, 8);
AT(shard_faults, ranges_nr, 16, 8);

IS(shard_save_opts, 32);
AT(shard_save_opts, size, 0, 8);
AT(shard_save_opts, dir, 8, 8);
AT(shard_save_opts, tag, 16, 8);
AT(shard_save_opts, client, 24, 8);

IS(shard_kept, 40);
AT(shard_kept, size, 0, 8);
AT(shard_kept, base, 8, 8);
AT(shard_kept, bytes, 16, 8);
AT(shard_kept, step, 24, 8);
AT(shard_kept, mixed, 32, 4);

IS(shard_commit_opts, 40);
AT(shard_commit_opts, size, 0, 8);
AT(shard_commit_opts, lr, 8, 8);
AT(shard_commit_opts, values, 16, 8);
AT(shard_commit_opts, values_nr, 24, 4);
AT(shard_commit_opts, clip, 32, 8);

IS(shard_result, 288);
AT(shard_result, size, 0, 8);
AT(shard_result, outcome, 8, 4);
AT(shard_result, step, 16, 8);
AT(shard_result, applied, 24, 8);
AT(shard_result, attempts, 32, 8);
AT(shard_result, skipped_in_row, 40, 8);
AT(shard_result, grad_norm, 48, 8);
AT(shard_result, clip_factor, 56, 8);
AT(shard_result, weight_sum, 64, 8);
AT(shard_result, loss_scale, 72, 8);
AT(shard_result, next_loss_scale, 80, 8);
AT(shard_result, lr, 88, 8);
AT(shard_result, bad_tensor, 96, 8);
AT(shard_result, bad_rank, 104, 4);
AT(shard_result, wait_ns, 112, 8);
AT(shard_result, reduce_ns, 120, 8);
AT(shard_result, apply_ns, 128, 8);
AT(shard_result, pushed_bytes, 136, 8);
AT(shard_result, pulled_bytes, 144, 8);
AT(shard_result, world_size, 152, 4);
AT(shard_result, slowest_rank, 156, 4);
AT(shard_result, values, 160, 128);

NUMBER(SHARD_OK, 0);
NUMBER(SHARD_AGAIN, 1);
NUMBER(SHARD_TIMEOUT, 2);
NUMBER(SHARD_INTERRUPTED, 3);
NUMBER(SHARD_WORLD_CHANGED, 10);
NUMBER(SHARD_ROLLED_BACK, 11);
NUMBER(SHARD_BAD_ARG, 20);
NUMBER(SHARD_BAD_STATE, 21);
NUMBER(SHARD_RANGE, 22);
NUMBER(SHARD_DUPLICATE, 23);
NUMBER(SHARD_DTYPE, 24);
NUMBER(SHARD_MISSING, 25);
NUMBER(SHARD_STALE, 26);
NUMBER(SHARD_MISMATCH, 27);
NUMBER(SHARD_BUDGET, 28);
NUMBER(SHARD_DENIED, 29);
NUMBER(SHARD_NOT_FOUND, 30);
NUMBER(SHARD_EXISTS, 31);
NUMBER(SHARD_BUSY, 32);
NUMBER(SHARD_UNSUPPORTED, 33);
NUMBER(SHARD_SYSTEM, 34);
NUMBER(SHARD_DIVERGED, 35);
NUMBER(SHARD_UNREACHABLE, 60);
NUMBER(SHARD_CLOSED, 61);
NUMBER(SHARD_VERSION, 62);
NUMBER(SHARD_PROTOCOL, 63);
NUMBER(SHARD_LOST, 64);
NUMBER(SHARD_FORKED, 65);
NUMBER(SHARD_F32, 1);
NUMBER(SHARD_BF16, 2);
NUMBER(SHARD_F16, 3);
NUMBER(SHARD_IMAGE, 1);
NUMBER(SHARD_MASTER, 2);
NUMBER(SHARD_EXP_AVG, 3);
NUMBER(SHARD_EXP_AVG_SQ, 4);
NUMBER(SHARD_MOMENTUM, 5);
NUMBER(SHARD_GRAD, 6);
NUMBER(SHARD_FROZEN, 1);
NUMBER(SHARD_APPLIED, 1);
NUMBER(SHARD_SKIPPED_NONFINITE, 2);
NUMBER(SHARD_SKIPPED_VOTE, 3);
NUMBER(SHARD_ADD, 1);
NUMBER(SHARD_CAST, 2);
NUMBER(SHARD_SHARE, 4);
NUMBER(SHARD_DEFAULT, -1);
