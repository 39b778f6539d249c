/* SPDX-License-Identifier: Apache-2.0 */
/* memory_overhead: the memory that a daemon with a model of 64 Mi parameters really uses after some
 * steps with two trainers, beside the budget that it printed. Private memory counts as far as it is
 * resident. A shared memfd counts once, with all its pages, whoever touched them. --quick: 4 Mi
 * parameters, where the program itself weighs more, so its ratio says little. */
#include "bench/daemons.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Resident private and file-backed memory, which is all but shared memory. */
static double resident_bytes(pid_t pid)
{
	char path[64], line[256];
	double kib = 0, value;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "r");
	if (f == NULL)
		bench_fail("cannot read %s", path);
	while (fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "RssAnon: %lf", &value) == 1 ||
		    sscanf(line, "RssFile: %lf", &value) == 1)
			kib += value;
	fclose(f);
	return kib * 1024;
}

static double shared_bytes(pid_t pid) /* Bytes of the memfds that it holds. */
{
	char path[320], to[64];
	struct dirent *entry;
	double bytes = 0;
	struct stat st;
	ssize_t n;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (dir == NULL)
		bench_fail("cannot read %s", path);
	while ((entry = readdir(dir)) != NULL) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%.200s", (int)pid, entry->d_name);
		n = readlink(path, to, sizeof(to));
		if (n > 7 && memcmp(to, "/memfd:", 7) == 0 && stat(path, &st) == 0)
			bytes += (double)st.st_blocks * 512;
	}
	closedir(dir);
	return bytes;
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	struct fleet_spec spec = {
		.name = "bench",
		.settings = "optimizer=adamw lr=1e-3 clip=1.0 min_world=2 local_world=2",
		.tensors_nr = quick ? 4 : 64,
		.numel = 1 << 20,
		.dtype = SHARD_BF16,
		.trainers = 2};
	double budget, used;
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;

	daemons_start(&d, argv[0], 1, 0);
	f = fleet_begin(&d, &spec);
	for (int i = 0; i < 10; i++)
		fleet_step(f, &t);
	budget = daemons_figure(&d, 0, "/budget.used");
	used = resident_bytes(d.pid[0]) + shared_bytes(d.pid[0]);
	fleet_end(&f);
	daemons_stop(&d);
	printf("bench: memory_overhead %.1f MiB limit %.1f ratio %.4f\n", used / 1048576,
	       budget / 1048576, used / budget);
	return 0;
}
