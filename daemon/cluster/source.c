/* SPDX-License-Identifier: Apache-2.0 */
/* The membership sources by name. */
#include "cluster/source.h"
#include "cluster/source_etcd.h"

#include "base/check.h"

#include <string.h>

const struct member_source_ops *member_source_find(const char *name)
{
	static const struct member_source_ops *const rows[] = {&source_static, &source_quorum,
							       &source_etcd};

	for (size_t i = 0; i < NR(rows); i++)
		if (strcmp(rows[i]->name, name) == 0)
			return rows[i];
	return NULL;
}
