/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: what the kernel lets this process have: descriptors, address space, threads. Looked at
 * once at the start, where too little is an error with a remedy; and whenever a descriptor is given
 * to somebody else, so that some are left for the daemon's own files. */
#ifndef SHARD_LIMITS_H
#define SHARD_LIMITS_H

#include "base/log.h"
#include "config/config.h"

#include <stdbool.h>
#include <uv.h>

/* Of libuv's pool: half of them may look up names, JOB_FILES_MAX are those of checkpoints,
 * JOB_MEMORY_MAX and JOB_SMALL_MAX make memory, so that one is left for views. */
#define LIMITS_THREADS 12

/* Raises the limit of descriptors as far as it goes, says what is needed and what there is, and
 * starts the threads of libuv's pool, which could only abort later. Before anything else of the
 * process. pool: work that does nothing, until the loop runs. */
enum shard_status limits_open(const struct config *conf, struct log *log, struct err *e);
void limits_start_pool(uv_loop_t *loop, uv_work_t *pool);

/* A descriptor that was made just now: are there `more` left beside those that are kept for the
 * daemon's own files? */
bool limits_spare(int fd, uint32_t more);
uint64_t limits_files(void);                      /* that may be open at a time */
uint32_t limits_links(const struct config *conf); /* descriptors of links to other nodes */

#endif
