/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading what a core must not forget (warm.h says what and why). */
#include "core/warm.h"

#include "core/inner.h"

size_t core_warm_bytes(const struct core_conf *conf)
{
	(void)conf;
	return 64;
}

bool core_warm_save(struct core *c, void *to)
{
	(void)c;
	(void)to;
	return false;
}

bool warm_load(struct core *c, const void *from, const struct core_view *view)
{
	(void)c;
	(void)from;
	(void)view;
	return false;
}

void warm_on_start(struct ctx *x, const struct core_event *e)
{
	(void)x;
	(void)e;
}
