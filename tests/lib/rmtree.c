// SPDX-License-Identifier: Apache-2.0
/* Removes folders by walking them in this process. Tests and the other files of tests/lib call it.
 * The happy path: nftw() names what is in a folder before the folder, and remove() takes each away.
 * What cannot be removed ends the process with the name of it. */
#include "lib/rmtree.h"

#include "base/check.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { OPEN_MAX_NR = 8 }; /* So many folders may be open at a time. */

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
	(void)info, (void)type, (void)at;
	if (remove(path) == 0 || errno == ENOENT)
		return 0;
	fprintf(stderr, "%s cannot be removed: %s\n", path, strerror(errno));
	return -1;
}

void rmtree(const char *path)
{
	struct stat info;

	if (lstat(path, &info) != 0 && errno == ENOENT)
		return;
	CHECK(nftw(path, remove_one, OPEN_MAX_NR, FTW_DEPTH | FTW_PHYS) == 0);
}
