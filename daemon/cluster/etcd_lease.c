/* SPDX-License-Identifier: Apache-2.0 */
/* When a node's time at etcd is up. It counts from the moment at which etcd was asked, because etcd
 * began to count later than that, and ends a margin early. A process that stood still while its
 * time ran out is told apart from one that ran and heard nothing: the latter looks at the clock in
 * the margin. Nothing fails. */
#include "cluster/etcd_lease.h"

#include "base/check.h"
#include "base/clock.h"

#include <stddef.h>

uint64_t etcd_lease_clock(void)
{
	struct timespec ts;

	CHECK(clock_gettime(CLOCK_BOOTTIME, &ts) == 0);
	return (uint64_t)ts.tv_sec * NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static void set_ttl(struct etcd_lease *l, uint64_t ttl_s)
{
	l->ttl_ns = ttl_s * NS_PER_SEC;
	l->margin_ns = l->ttl_ns / 4;
	l->every_ns = l->beat_ns < l->ttl_ns / 4 ? l->beat_ns : l->ttl_ns / 4;
}

void etcd_lease_init(struct etcd_lease *l, uint64_t ttl_s, uint64_t beat_ns)
{
	*l = (struct etcd_lease){.beat_ns = beat_ns, .looked_boot_ns = etcd_lease_clock()};
	set_ttl(l, ttl_s);
}

void etcd_lease_renew(struct etcd_lease *l, uint64_t id, uint64_t ttl_s, uint64_t sent_boot_ns)
{
	CHECK(id != 0 && ttl_s > 0 && (!l->held || l->id == id));
	l->held = true;
	l->id = id;
	set_ttl(l, ttl_s);
	l->until_boot_ns = sent_boot_ns + l->ttl_ns - l->margin_ns;
}

bool etcd_lease_lives(const struct etcd_lease *l)
{
	return l->held && etcd_lease_clock() < l->until_boot_ns;
}

const char *etcd_lease_look(struct etcd_lease *l, bool strict)
{
	uint64_t now = etcd_lease_clock(), before = l->looked_boot_ns;
	uint64_t until = l->until_boot_ns;

	l->looked_boot_ns = now;
	if (now < until)
		return NULL;
	if (before < until ? now >= until + l->margin_ns : now - before >= l->ttl_ns)
		return "this process stood still when its lease was over";
	return strict ? "etcd did not answer until its lease was over" : NULL;
}
