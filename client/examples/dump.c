// SPDX-License-Identifier: Apache-2.0
/* dump.c: writes the tensors with which a run ended into files, for a comparison byte by byte. gpt
 * and the in-process reference call it after their last step. It fails where the file system does.
 * A file that could not be written in full is an error. */
#include "examples/dump.h"
#include "base/check.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char *dump_kind(enum shard_kind kind)
{
	static const char *const names[] = {
		[SHARD_IMAGE] = "image",       [SHARD_MASTER] = "master",
		[SHARD_EXP_AVG] = "exp_avg",   [SHARD_EXP_AVG_SQ] = "exp_avg_sq",
		[SHARD_MOMENTUM] = "momentum", [SHARD_GRAD] = "grad",
	};

	CHECK(kind >= SHARD_IMAGE && kind <= SHARD_GRAD);
	return names[kind];
}

enum shard_status dump_open(const char *dir, struct err *e)
{
	struct stat st;

	if (mkdir(dir, 0777) != 0 && errno != EEXIST)
		return err_set(e, SHARD_SYSTEM, "dump folder %s: %s", dir, strerror(errno));
	if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
		return err_set(e, SHARD_SYSTEM, "dump folder %s: not a folder", dir);
	return SHARD_OK;
}

enum shard_status dump_tensor(const char *dir, const char *tensor, enum shard_kind kind,
			      const float *values, uint64_t n, struct err *e)
{
	char path[4096];
	FILE *f;
	uint64_t done = 0;

	if (snprintf(path, sizeof(path), "%s/%s.%s.bin", dir, tensor, dump_kind(kind)) >=
	    (int)sizeof(path))
		return err_set(e, SHARD_SYSTEM, "dump folder %.80s...: the path is too long", dir);
	f = fopen(path, "wbe");
	if (f)
		done = fwrite(values, sizeof(float), n, f);
	if (!f || (fclose(f) != 0) || done != n)
		return err_set(e, SHARD_SYSTEM, "dump file %s: %s", path, strerror(errno));
	return SHARD_OK;
}
