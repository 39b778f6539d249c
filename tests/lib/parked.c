/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of memory that a daemon has left, in a store of descriptors or as files below warm_dir.
 * Tests of tests/proc call it. A piece that is not there fails the test. */
#include "lib/parked.h"

#include "base/check.h"
#include "lib/fdstore.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct fdstore *store(struct warm *w)
{
	return w->how == CLUSTER_SYSTEMD ? w->cluster->node[0].store : NULL;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Lists the files below the folder by their path in it. */
static uint32_t list_files(const char *dir, parked_name *names)
{
	char command[1024], *out = NULL;
	uint32_t nr = 0;
	FILE *f;

	snprintf(command, sizeof(command), "find %s -type f -printf '%%P\\n'", dir);
	f = popen(command, "r");
	CHECK(f != NULL);
	for (size_t room = 0; getline(&out, &room, f) > 0;) {
		out[strcspn(out, "\n")] = 0;
		CHECK(nr < PARKED_MAX && strlen(out) < PARKED_NAME);
		strcpy(names[nr++], out);
	}
	free(out);
	CHECK(pclose(f) == 0);
	return nr;
}

uint32_t parked_list(struct warm *w, parked_name *names)
{
	uint32_t nr = 0;

	if (store(w) == NULL)
		nr = list_files(w->cluster->warm_dir, names);
	else
		for (uint32_t all = fdstore_count(store(w)); nr < all && nr < PARKED_MAX; nr++)
			fdstore_name(store(w), nr, names[nr]);
	qsort(names, nr, sizeof(*names), by_name);
	return nr;
}

static void path_of(struct warm *w, const char *name, char path[512])
{
	snprintf(path, 512, "%s/%s", w->cluster->warm_dir, name);
}

int parked_open(struct warm *w, const char *name)
{
	char path[512];
	int fd;

	path_of(w, name, path);
	fd = store(w) != NULL ? fdstore_fd(store(w), name) : open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail_msg("nothing is kept as \"%s\"", name);
	return fd;
}

size_t parked_bytes(struct warm *w, const char *name)
{
	int fd = parked_open(w, name);
	struct stat st;

	CHECK(fstat(fd, &st) == 0);
	close(fd);
	return (size_t)st.st_size;
}

void parked_remove(struct warm *w, const char *name)
{
	char path[512];

	path_of(w, name, path);
	if (store(w) != NULL)
		CHECK(fdstore_forget(store(w), name) > 0);
	else
		CHECK(unlink(path) == 0);
}

void parked_replace(struct warm *w, const char *name, size_t bytes)
{
	char path[512];
	int fd;

	path_of(w, name, path);
	parked_remove(w, name);
	fd = store(w) != NULL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
			      : open(path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	CHECK(store(w) == NULL ||
	      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	if (store(w) != NULL)
		fdstore_put(store(w), name, fd);
	else
		close(fd);
}

uint32_t parked_flip(struct warm *w, const char *name, const void *bytes, size_t nr)
{
	int fd = parked_open(w, name);
	size_t all = parked_bytes(w, name);
	unsigned char *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *at = p;
	uint32_t found = 0;

	CHECK(p != MAP_FAILED);
	while ((at = memmem(at, all - (size_t)(at - p), bytes, nr)) != NULL) {
		*at ^= 1;
		at += nr;
		found++;
	}
	munmap(p, all);
	close(fd);
	return found;
}
