/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_lease.h: the time that a node has at etcd, by the node's own clock. etcd lets a lease live a
 * little longer than it said, never shorter. The clock is CLOCK_BOOTTIME, which also counts while
 * the machine is suspended. */
#ifndef SHARD_CLUSTER_ETCD_LEASE_H
#define SHARD_CLUSTER_ETCD_LEASE_H

#include <stdbool.h>
#include <stdint.h>

struct etcd_lease { /* The owner reads held, id, ttl_ns, margin_ns and every_ns. */
	bool held;
	uint64_t id;
	uint64_t ttl_ns;         /* As etcd granted it. Until then, as it is asked for. */
	uint64_t every_ns;       /* So often etcd is asked. */
	uint64_t margin_ns;      /* The node's time is up so much earlier. */
	uint64_t beat_ns;        /* every_ns is not longer than that. */
	uint64_t until_boot_ns;  /* When the time is up. */
	uint64_t looked_boot_ns; /* When this process looked at the clock last. */
};

uint64_t etcd_lease_clock(void); /* Nanoseconds of CLOCK_BOOTTIME. */
void etcd_lease_init(struct etcd_lease *l, uint64_t ttl_s, uint64_t beat_ns);
/* etcd has granted the lease `id`, or more time for it. sent_boot_ns: when it was asked. */
void etcd_lease_renew(struct etcd_lease *l, uint64_t id, uint64_t ttl_s, uint64_t sent_boot_ns);
/* Is there time left? */
bool etcd_lease_lives(const struct etcd_lease *l);
/* Looks at the clock. NULL, or why a node that leads must stop to lead. strict: as in
 * etcd_options. If it is not, a node that looks several times in margin_ns goes on. */
const char *etcd_lease_look(struct etcd_lease *l, bool strict);

#endif
