/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h: a model's settings as rows of the table engine, and the meaning of one value. Private to
 * settings.c, keys.c and manual.c. */
#ifndef SHARD_CONFIG_KEYS_H
#define SHARD_CONFIG_KEYS_H

#include "config/table.h"
#include "core/schedule.h"
#include "optim/optim.h"

#define SETTINGS_VALUE_BYTES 256
#define SETTINGS_KEYS_MAX    80

/* What is special about a row. */
enum settings_role {
	SETTINGS_PLAIN,     /* Nothing: it has a field, and the table engine does the rest. */
	SETTINGS_CODEC,     /* As plain, and of no effect while there is no codec. */
	SETTINGS_TIER,      /* The same, while the tier is memory. */
	SETTINGS_NVME,      /* The same, while it is not nvme. */
	SETTINGS_GPU,       /* The same, while it is not gpu. */
	SETTINGS_STALENESS, /* The same, while max_staleness is 0. */
	SETTINGS_DURABLE,   /* The same, while nothing outlives a loss of power. */
	SETTINGS_HYPER,     /* A hyper-parameter: the row's index is its enum optim_hyper. */
	SETTINGS_PARAM,     /* A parameter of the schedule: the index is its enum schedule_param. */
	SETTINGS_OPTIMIZER, /* It decides which hyper-parameters there are. */
	SETTINGS_LR_FACTOR, /* Each group has its own. */
	SETTINGS_SCALE,     /* A number, or dynamic. */
	SETTINGS_SCALE_POWER, /* It only counts for a dynamic scale. */
	SETTINGS_BETAS,       /* It stands for beta1 and beta2. */
	SETTINGS_PINNED,      /* Names of other keys. */
};

/* The rows have the order of the canonical string: by name, but for the optimizer, which is first.
 */
const struct table *settings_table(void);
/* CHECKs that there is a key of this name. */
const struct table_row *settings_row(const char *name);
const struct table_row *settings_param(enum schedule_param param);
/* NULL, and an error with the nearest name, if there is no such key or it cannot stand there. */
const struct table_row *settings_find(const char *name, bool group, struct err *e);
/* e says "key = value: what to choose". */
enum shard_status settings_value(const struct table_row *row, const char *text,
				 struct table_value *v, struct err *e);
/* Is a number within the range that this optimizer has for the hyper-parameter? */
enum shard_status settings_hyper(const struct optim_row *optim, const struct table_row *row,
				 const char *text, double number, struct err *e);

#endif
