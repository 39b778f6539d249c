/* SPDX-License-Identifier: Apache-2.0 */
/* When a node's time at etcd is up. It counts from the moment at which etcd was asked, because etcd
 * began to count later than that, and ends a margin early. A process that stood still is told apart
 * from one that ran, but heard nothing, by how long ago it looked at the clock. Nothing fails. */
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
	l->margin_ns = l->ttl_ns / 8;
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
	uint64_t now = etcd_lease_clock(), gap = now - l->looked_boot_ns;

	l->looked_boot_ns = now;
	if (now < l->until_boot_ns)
		return NULL;
	if (gap > l->margin_ns)
		return "this process stood still until its lease was over";
	return strict ? "etcd did not answer until its lease was over" : NULL;
}
