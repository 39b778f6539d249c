/* SPDX-License-Identifier: Apache-2.0 */
/* The newest checkpoint of a model that was there before this start: status and metrics name it again, though nobody has saved or restored
 * since. ckpt_start() calls, on the coordinator. Happy path: a job reads the manifest that `latest` names in the folder of the last
 * save, else of the newest complete one; on the loop its figures become ckpt.last, unless there are newer ones. How long it took to
 * write is not known any more. Without such a file, or memory, nothing is known and nothing is said. */
#include "base/check.h"
#include "ckpt/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct known {
	uv_work_t work;
	struct server *server;
	uint32_t model;
	char name[65], dir[CHECKPOINT_PATH_MAX];
	struct ckpt_last last; /* path empty: none was found */
};

static void run(uv_work_t *w)
{
	struct known *k = w->data;
	char tag[CHECKPOINT_TAG_MAX + 1];
	struct manifest *m = NULL;
	uint64_t step;

	if ((checkpoint_latest(k->dir, tag, NULL) != SHARD_OK || checkpoint_open(k->dir, tag, k->name, &m, NULL) != SHARD_OK) &&
	    (checkpoint_newest(k->dir, k->name, UINT64_MAX, tag, &step, NULL) != SHARD_OK ||
	     checkpoint_open(k->dir, tag, k->name, &m, NULL) != SHARD_OK))
		return;
	if (checkpoint_path(k->last.path, k->dir, tag, NULL) == SHARD_OK) {
		k->last.step = m->step;
		k->last.at = ckpt_time(m->created);
		for (uint32_t i = 0; i < m->files_nr; i++)
			k->last.bytes += m->files[i].bytes;
	}
	manifest_free(&m);
}

static void found(uv_work_t *w, int status)
{
	struct known *k = w->data;
	struct model *m = model_find(k->server, k->model);

	(void)status; /* nobody cancels it */
	CHECK(k->server->persists > 0);
	k->server->persists--;
	if (m != NULL && m->ckpt.last.path[0] == 0)
		m->ckpt.last = k->last;
	free(k);
}

void ckpt_known(struct model *m)
{
	struct known *k = calloc(1, sizeof(*k));

	if (k == NULL)
		return;
	k->server = m->server;
	k->model = m->id;
	k->work.data = k;
	snprintf(k->name, sizeof(k->name), "%s", m->name);
	snprintf(k->dir, sizeof(k->dir), "%s", m->ckpt.dir);
	k->server->persists++;
	CHECK(uv_queue_work(k->server->loop, &k->work, run, found) == 0);
}
