/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for bytes in the memory of a process through /proc/PID/mem. Tests call it with bytes that
 * are in few places, such as some moments of a model that nobody trains just now. */
#include "lib/poke.h"

#include "base/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory that cannot be read, as of a device, is passed over. */
static uint32_t flip_in(int mem, uint64_t at, uint64_t end, const void *bytes, size_t n, int bit)
{
	size_t room = end - at;
	char *copy = malloc(room), *hit;
	ssize_t got = copy != NULL ? pread(mem, copy, room, (off_t)at) : -1;
	uint32_t nr = 0;

	for (hit = copy;
	     got > 0 && (hit = memmem(hit, (size_t)(copy + got - hit), bytes, n)) != NULL; hit++) {
		unsigned char byte = (unsigned char)(*hit ^ 1 << bit);

		CHECK(pwrite(mem, &byte, 1, (off_t)(at + (uint64_t)(hit - copy))) == 1);
		nr++;
	}
	free(copy);
	return nr;
}

uint32_t poke_flip(pid_t pid, const void *bytes, size_t n, int bit)
{
	char path[64], line[512];
	uint32_t nr = 0;
	FILE *maps;
	int mem;

	CHECK(n > 0 && bit >= 0 && bit < 8);
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	CHECK((mem = open(path, O_RDWR | O_CLOEXEC)) >= 0);
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	CHECK((maps = fopen(path, "re")) != NULL);
	while (fgets(line, sizeof(line), maps) != NULL) {
		char *dash, *rights;
		uint64_t at = strtoull(line, &dash, 16), end = strtoull(dash + 1, &rights, 16);

		if (strncmp(rights, " rw", 3) == 0)
			nr += flip_in(mem, at, end, bytes, n, bit);
	}
	fclose(maps);
	close(mem);
	return nr;
}
