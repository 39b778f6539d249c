// SPDX-License-Identifier: Apache-2.0
/* Saves and restores in tests. tests/proc calls it. Each call uses a connection of its own. Where
 * the name says "must" a failure fails the test with the daemon's sentence. keep_flip() and
 * keep_cut() damage files. */
#include "lib/keep.h"

#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "lib/pace.h"
#include "lib/rmtree.h"

#include <fcntl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void keep_init(struct keep *k)
{
	snprintf(k->dir, sizeof(k->dir), "/tmp/shardd-keep.XXXXXX");
	CHECK(mkdtemp(k->dir) != NULL);
}

void keep_free(struct keep *k)
{
	rmtree(k->dir);
}

static shard_client *connect_to(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = NULL;

	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.timeout_ms = pace_ms(10000);
	if (shard_connect(&c, &o) != SHARD_OK)
		fail_msg("%s: %s", address, shard_error());
	return c;
}

enum shard_status keep_save(const char *address, const char *model, const char *dir,
			    const char *tag)
{
	shard_client *c = connect_to(address);
	shard_model *m = NULL;
	shard_ticket ticket;
	enum shard_status rc = shard_attach(c, model, &m);
	int error;

	if (rc == SHARD_OK)
		rc = shard_save(m, dir, tag, &ticket);
	if (rc == SHARD_OK)
		rc = shard_wait(m, ticket, pace_ms(20000));
	error = errno; /* The errno of the disk's error. */
	shard_disconnect(&c);
	errno = error;
	return rc;
}

enum shard_status keep_restore(const char *address, const char *dir, const char *tag,
			       const char *name)
{
	shard_client *c = connect_to(address);
	shard_model *m = NULL;
	enum shard_status rc = shard_restore(c, dir, tag, name, &m);

	shard_disconnect(&c);
	return rc;
}

void keep_must_save(const char *address, const char *model, const char *dir, const char *tag)
{
	enum shard_status rc = keep_save(address, model, dir, tag);

	if (rc != SHARD_OK)
		fail_msg("save: %s: %s", shard_name(rc), shard_error());
}

void keep_must_restore(const char *address, const char *dir, const char *tag, const char *name)
{
	enum shard_status rc = keep_restore(address, dir, tag, name);

	if (rc != SHARD_OK)
		fail_msg("restore: %s: %s", shard_name(rc), shard_error());
}

uint64_t keep_newest(const char *dir, char tag[65])
{
	uint64_t step = 0;
	struct err e;

	if (checkpoint_newest(dir, NULL, UINT64_MAX, tag, &step, &e) != SHARD_OK)
		fail_msg("no checkpoint in %s: %s", dir, e.text);
	return step;
}

uint32_t keep_count(const char *dir)
{
	struct checkpoint_found *found = NULL;
	uint32_t nr = 0, complete = 0;
	struct err e;

	if (checkpoint_list(dir, NULL, &found, &nr, &e) != SHARD_OK)
		return 0;
	for (uint32_t i = 0; i < nr; i++)
		complete += found[i].complete;
	free(found);
	return complete;
}

static int open_file(const char *dir, const char *tag, const char *file, long *bytes)
{
	char path[512];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/%s/%s", dir, tag, file);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) != 0)
		fail_msg("%s cannot be opened", path);
	*bytes = (long)st.st_size;
	return fd;
}

void keep_flip(const char *dir, const char *tag, const char *file, long at)
{
	long bytes;
	int fd = open_file(dir, tag, file, &bytes);
	uint8_t b;

	at = at < 0 ? bytes + at : at;
	CHECK(pread(fd, &b, 1, at) == 1);
	b ^= 0x10;
	CHECK(pwrite(fd, &b, 1, at) == 1);
	close(fd);
}

void keep_cut(const char *dir, const char *tag, const char *file, long less)
{
	char path[512];
	long bytes;
	int fd = open_file(dir, tag, file, &bytes);

	snprintf(path, sizeof(path), "%s/%s/%s", dir, tag, file);
	CHECK(less < 0 ? unlink(path) == 0 : ftruncate(fd, bytes - less) == 0);
	close(fd);
}
