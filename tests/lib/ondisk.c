/* SPDX-License-Identifier: Apache-2.0 */
/* See ondisk.h. Tests of tier = nvme call it. */
#include "lib/ondisk.h"

#include "base/check.h"
#include "lib/rmtree.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

void ondisk_make(struct ondisk *d)
{
	char name[] = "build/nvme-test-XXXXXX";

	CHECK(mkdtemp(name) != NULL);
	CHECK(realpath(name, d->folder) != NULL);
}

void ondisk_begin(struct ondisk *d, int nodes_nr, const char *settings)
{
	char extra[512], model[512];

	snprintf(extra, sizeof(extra), "[daemon]\nnvme_dir = %.400s\n", d->folder);
	snprintf(model, sizeof(model), "checkpoint_dir = %.400s/saves\n", d->folder);
	d->crew = calloc(1, sizeof(*d->crew));
	CHECK(d->crew != NULL);
	crew_init(d->crew, "m");
	crew_larger(d->crew, CREW_SCALE_MAX);
	d->crew->extra = settings;
	d->crew->pause_us = 1000;
	d->cluster = cluster_make(nodes_nr, model, extra);
	cluster_warm(d->cluster, CLUSTER_TMPFS);
	cluster_up(d->cluster);
	for (int i = 0; i < 2; i++)
		crew_add(d->crew, d->cluster->node[0].unix_address, 0)->reconnects = true;
	crew_start(d->crew, UINT64_MAX);
	crew_wait_step(d->crew, 3);
}

uint32_t ondisk_files(const struct ondisk *d)
{
	DIR *dir = opendir(d->folder);
	struct dirent *e;
	uint32_t nr = 0;

	CHECK(dir != NULL);
	while ((e = readdir(dir)) != NULL)
		nr += e->d_name[0] != '.';
	(void)closedir(dir);
	return nr;
}

void ondisk_put_away(struct ondisk *d)
{
	cluster_put_away(&d->cluster);
	free(d->crew);
	d->crew = NULL;
	rmtree(d->folder);
}
