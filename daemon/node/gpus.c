// SPDX-License-Identifier: Apache-2.0
/* Which GPUs this node has. Happy path: at the start each of [daemon] gpu is opened, in the order
 * of the option or of the driver, and its line is logged. One that cannot be used is left out, with
 * a reason in the log, and the node starts without it. If the option names it, the node is ill. A
 * model with memory there then says what becomes of it (model/devices.c). A device that is lost
 * stays in the list until the daemon ends: models have chunks on it. */
#include "node/gpus.h"

#include "base/check.h"
#include "gpu/device.h"
#include "node/state.h"

#include <stdio.h>
#include <string.h>

/* Of one device, that are given and not done: of as many models as outlive a process
 * (warm/warm.h), each with 8 updates, 8 copies and 16 sums (store/tier_gpu.c), 4 copies of its
 * image (data/device_images.c), and 4 sums or copies of gradients (data/device_grads.c). */
#define JOBS_MAX (40u * 1024)

static void log_gpu(const struct server *s, const struct gpu *g)
{
	struct gpu_about about;
	char text[GPU_UUID_TEXT];

	gpu_tell(g, &about);
	log_line(s->log, LOG_LEVEL_INFO, "event=gpu uuid=%s name=%s memory=%lu limit=%lu host=%lu",
		 gpu_uuid_text(about.uuid, text), about.name, (unsigned long)about.total_bytes,
		 (unsigned long)about.limit_bytes, (unsigned long)about.host_bytes);
}

static enum shard_status open_one(struct server *s, const uint8_t *uuid, int ordinal, struct err *e)
{
	const struct gpu_conf conf = {.uuid = uuid,
				      .ordinal = ordinal,
				      .bytes = s->conf->gpu_memory,
				      .jobs_max = JOBS_MAX};
	struct gpu_about about;
	enum shard_status st;

	CHECK(s->gpus_nr < GPU_DEVICES_MAX);
	st = gpu_open(&s->gpu[s->gpus_nr], &conf, s->loop, e);
	if (st != SHARD_OK)
		return st;
	gpu_tell(s->gpu[s->gpus_nr], &about);
	budget_gpu(&s->budget, about.host_bytes);
	log_gpu(s, s->gpu[s->gpus_nr++]);
	return SHARD_OK;
}

/* All that there are, and can be used. */
static void open_all(struct server *s)
{
	struct err e;
	uint32_t nr;

	if (gpu_count(&nr, &e) != SHARD_OK) {
		log_line(s->log, LOG_LEVEL_INFO, "event=no_gpu why=%s", e.text);
		return;
	}
	s->gpus_missing.gone += nr == 0;
	for (uint32_t i = 0; i < nr && s->gpus_nr < GPU_DEVICES_MAX; i++)
		if (open_one(s, NULL, (int)i, &e) != SHARD_OK) {
			s->gpus_out++;
			log_line(s->log, LOG_LEVEL_WARN, "event=no_gpu device=%u why=%s", i,
				 e.text);
		}
}

/* It is expected to be there. What the driver does not show is gone, and so is what was in its
 * memory. Anything else may be over at the next start. */
static void left_out(struct server *s, const struct err *e)
{
	if (e->status == SHARD_NOT_FOUND)
		s->gpus_missing.gone++;
	else
		s->gpus_out++;
	if (s->gpus_missing.why[0] == 0)
		snprintf(s->gpus_missing.why, sizeof(s->gpus_missing.why), "%s", e->text);
	log_line(s->log, LOG_LEVEL_ERROR, "event=no_gpu why=%s", e->text);
}

void gpus_open(struct server *s)
{
	const char *p = s->conf->gpu;
	uint8_t uuid[GPU_UUID_BYTES];
	struct err e, why;

	if (p[0] == 0 || strcmp(p, "off") == 0)
		return;
	if (strcmp(p, "auto") == 0) {
		open_all(s);
		return;
	}
	for (; p; p = strchr(p, ','), p += p != NULL) {
		CHECK(gpu_uuid_parse(uuid, p, strcspn(p, ","))); /* The table has read it. */
		if (open_one(s, uuid, 0, &why) == SHARD_OK)
			continue;
		(void)err_wrap(&e, &why, "[daemon] gpu = %.*s: %s", (int)strcspn(p, ","), p,
			       why.text);
		left_out(s, &e);
	}
}

void gpus_beat(struct server *s)
{
	for (uint32_t i = 0; i < s->gpus_nr; i++) {
		const char *why;

		if ((s->gpus_lost & BIT(i)) || !gpu_lost(s->gpu[i], &why))
			continue;
		s->gpus_lost |= BIT(i);
		log_line(s->log, LOG_LEVEL_ERROR, "event=gpu_lost why=%s", why);
	}
}

void gpus_close(struct server *s, void (*closed)(void *arg), void *arg)
{
	while (s->gpus_nr > 0)
		gpu_close(&s->gpu[--s->gpus_nr], closed, arg);
}
