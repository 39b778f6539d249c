/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the page that says who wrote memory which outlives a process, and for which models.
 * Private to warm.c, which writes it, and to kept.c, which reads those of other nodes. What is read
 * from one may be of another release or of somebody else. */
#ifndef SHARD_WARM_PAGE_H
#define SHARD_WARM_PAGE_H

#include "warm/warm.h"

#include <assert.h>
#include <stdatomic.h>

#define WARM_MAGIC 0x6b726170646873ull /* "shdpark" */
/* Format of everything that is kept. It grows with each change of any part, also of the core's
 * memory. All releases from format 4 on can read the page itself. */
#define WARM_FORMAT        11
#define WARM_MEMBERS_BYTES 400

struct warm_row {
	_Atomic uint32_t kept; /* 1: the row counts. 0: it is free. Else it is damaged. */
	uint32_t model;
	_Atomic uint32_t tries;   /* Starts in a row that died while they took it up. */
	_Atomic uint32_t dropped; /* 1: its file is being removed or is gone. */
	/* Size of each region without its room. 0: there is none. 1: it is room alone. */
	uint64_t bytes[WARM_REGIONS];
};

struct warm_page {
	_Atomic uint64_t magic; /* Set last. */
	uint32_t format, rows;
	char boot[STATIC_BOOT_BYTES];
	uint8_t uuid[STATIC_UUID_BYTES];
	uint64_t nodes, incarnation;
	char members[WARM_MEMBERS_BYTES]; /* The list that nodes is the sum of, as text. */
	_Atomic uint64_t start, warm_starts;
	struct warm_row row[WARM_MODELS_MAX];
	/* The fields below are zeros if an older release wrote the page, which ended it here. */
	_Atomic uint64_t pid;          /* Process ID of the last daemon that had it. */
	char state[STATIC_ROOT_BYTES]; /* Path of its state folder; "": not known. */
};
static_assert(sizeof(struct warm_page) <= 15 * 4096, "no page is larger than those before");

#endif
