/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the newest checkpoint of a model after a start of the coordinator, so that status and
 * metrics name it although nobody has saved or restored since, and what was not copied is.
 * ckpt_start() calls. A job looks in the folder of the last save for the newest complete checkpoint
 * of this model's own run. On the loop its figures become ckpt.last, unless a save or restore has
 * set newer ones. How long that checkpoint took to write is not known any more. If there is no such
 * checkpoint or no memory, ckpt.last stays empty and nothing is logged. */
#include "base/check.h"
#include "ckpt/auto.h"
#include "ckpt/copying.h"
#include "ckpt/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct known {
	struct job job;
	struct server *server;
	uint32_t model;
	char name[65];
	struct ckpt_run run;
	struct ckpt_place place; /* The folder of the last save. */
	struct ckpt_last last;   /* path empty: none was found. */
};

static void look(struct known *k, const char *dir)
{
	struct checkpoint_found *found = NULL;
	uint32_t nr = 0, i = 0;

	if (checkpoint_list(dir, k->name, &found, &nr, NULL) != SHARD_OK)
		return;
	while (i < nr && !(found[i].complete && ckpt_own(&k->run, &found[i].run, found[i].step)))
		i++;
	if (i < nr && checkpoint_path(k->last.path, k->place.dir, found[i].tag, NULL) == SHARD_OK) {
		k->last.step = found[i].step;
		k->last.at = ckpt_time(found[i].created);
		k->last.bytes = found[i].bytes;
	}
	free(found);
}

static void run(struct job *j)
{
	struct known *k = list_of(j, struct known, job);

	if (ckpt_place_open(&k->place, false, NULL) != SHARD_OK)
		return;
	look(k, k->place.at);
	ckpt_place_close(&k->place, NULL);
}

static void found(struct job *j)
{
	struct known *k = list_of(j, struct known, job);
	struct model *m = model_find(k->server, k->model);

	CHECK(k->server->persists > 0);
	k->server->persists--;
	if (m != NULL && m->ckpt->last.path[0] == 0)
		m->ckpt->last = k->last;
	if (m != NULL)
		copying_begin(m); /* What an earlier start has left. */
	free(k);
}

void ckpt_known(struct model *m)
{
	struct known *k = calloc(1, sizeof(*k));

	CHECK(server_leads(m->server));
	if (k == NULL)
		return;
	k->server = m->server;
	k->model = m->id;
	k->run = m->ckpt->run;
	snprintf(k->name, sizeof(k->name), "%s", m->name);
	if (ckpt_place_set(&k->place, k->server, m->ckpt->dir, true, 0, NULL) != SHARD_OK) {
		free(k);
		return;
	}
	k->server->persists++;
	job_begin(&k->job, k->server, JOB_FILES, run, found);
}
