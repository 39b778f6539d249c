/* SPDX-License-Identifier: Apache-2.0 */
/* The membership source `etcd` in a build without libcurl (ETCD=0, or no headers). Its start says
 * so. No other function is ever called, because nobody has a source. */
#include "cluster/source_etcd.h"

static enum shard_status start(struct member_source **out, const struct member_config *c,
			       const struct member_events *ev, struct err *e)
{
	(void)out;
	(void)c;
	(void)ev;
	return err_set(e, SHARD_UNSUPPORTED,
		       "the membership source etcd is not in this build: libcurl was not there");
}

const char *source_etcd_trouble(const struct member_source *s)
{
	(void)s;
	return "";
}

const struct member_source_ops source_etcd = {.name = "etcd", .start = start};

bool source_etcd_silent(const struct member_source *s)
{
	(void)s;
	return false;
}
