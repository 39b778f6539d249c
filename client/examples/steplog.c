// SPDX-License-Identifier: Apache-2.0
/* steplog.c: prints the step lines of gpt and of the in-process reference. Each line is flushed at
 * once, so that a reader sees it. It fails where the file system does. */
#include "examples/steplog.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum shard_status steplog_open(FILE **f, const char *path, struct err *e)
{
	*f = path ? fopen(path, "we") : stdout;
	return *f ? SHARD_OK : err_set(e, SHARD_SYSTEM, "log file %s: %s", path, strerror(errno));
}

static const char *outcome(enum shard_outcome o)
{
	return o == SHARD_APPLIED             ? "applied"
	       : o == SHARD_SKIPPED_NONFINITE ? "skipped_nonfinite"
					      : "skipped_vote";
}

enum shard_status steplog_write(FILE *f, const struct steplog_line *l, struct err *e)
{
	const struct shard_result *r = &l->result;

	fprintf(f,
		"step=%" PRIu64 " rank=%u world=%u samples=%" PRIu64
		" loss=%.6f outcome=%s applied=%" PRIu64,
		l->step, l->rank, l->world, l->samples, l->loss, outcome(r->outcome), r->applied);
	fprintf(f, " norm=%.17g clip=%.17g scale=%.17g lr=%.17g attempts=%" PRIu64, r->grad_norm,
		r->clip_factor, r->loss_scale, r->lr, r->attempts);
	fprintf(f, " pushed=%" PRIu64 " pulled=%" PRIu64 " ns=%" PRIu64 "\n", r->pushed_bytes,
		r->pulled_bytes, l->ns);
	return fflush(f) == 0 && !ferror(f)
		       ? SHARD_OK
		       : err_set(e, SHARD_SYSTEM, "step log: %s", strerror(errno));
}

void steplog_close(FILE **f)
{
	if (*f && *f != stdout)
		fclose(*f);
	*f = NULL;
}
