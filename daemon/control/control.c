/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees struct model_control with its model. model/watch.c calls it. server.c lists
 * control_watch last, so that the other rows of this folder are done with the struct when it is
 * freed. It fails only if there is no memory. */
#include "control/control.h"
#include "control/define.h"

#include "base/check.h"
#include "model/watch.h"

#include <stdlib.h>

static enum shard_status made(struct model *m, struct err *e)
{
	CHECK(m->control == NULL);
	m->control = calloc(1, sizeof(*m->control));
	if (m->control == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the requests of a model");
	m->control->model = m;
	list_init(&m->control->requesters);
	list_init(&m->control->reads);
	list_init(&m->control->manage.waiting);
	list_init(&m->control->blob.asks);
	list_init(&m->control->blob.waiters);
	return SHARD_OK;
}

static void going(struct model *m)
{
	if (m->control != NULL) {
		round_end(&m->control->written, m->server);
		round_end(&m->control->told, m->server);
	}
	free(m->control);
	m->control = NULL;
}

const struct model_watch control_watch = {
	.made = made, .going = going, .coordinator = define_coordinator};
