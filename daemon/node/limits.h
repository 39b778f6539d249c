/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: the kernel's limits of this process: descriptors, address space, threads. They are
 * checked once at the start, where too little is an error with a remedy. The number of descriptors
 * is checked again whenever a connection or model takes one, so that some are left for the daemon's
 * own files. */
#ifndef SHARD_LIMITS_H
#define SHARD_LIMITS_H

#include "base/log.h"
#include "config/config.h"

#include <stdbool.h>
#include <uv.h>

/* Threads of libuv's pool. At most half of them resolve host names, JOB_FILES_MAX work on
 * checkpoints, JOB_MEMORY_MAX and JOB_SMALL_MAX make memory, and JOB_HISTORY_MAX keeps histories.
 * So at least one is left to write views. */
#define LIMITS_THREADS 14

/* Raises the limit of descriptors as far as allowed, logs how many there are and how many are
 * needed, and checks that the threads of libuv's pool can start. Call it before anything else in
 * the process. */
enum shard_status limits_open(const struct config *conf, struct log *log, struct err *e);
/* Starts the threads of libuv's pool. pool is an empty work item, which must live until the loop
 * has run it. */
void limits_start_pool(uv_loop_t *loop, uv_work_t *pool);

/* True: after the new descriptor fd, `more` are still free beside those that are reserved for the
 * daemon's own files. */
bool limits_spare(int fd, uint32_t more);
uint64_t limits_files(void);                      /* How many may be open at a time. */
uint32_t limits_links(const struct config *conf); /* Descriptors of links to other nodes. */

#endif
