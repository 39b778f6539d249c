/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_seen.h: the newest that this node has seen in etcd, in memory and in the file of
 * source_file.h. An etcd that was wiped, restored from a backup or exchanged for another one would
 * give terms that are lower than those that members have promised to heed, so it has to be noticed.
 * What is on the disk may be a little older than what is in memory. */
#ifndef SHARD_CLUSTER_ETCD_SEEN_H
#define SHARD_CLUSTER_ETCD_SEEN_H

#include "cluster/etcd_msg.h"
#include "cluster/source.h"

#include <stdbool.h>
#include <stdint.h>

struct etcd_seen; /* Opaque. */

enum etcd_order {
	ETCD_NEWEST,    /* Nothing newer was seen. It counts as seen now. */
	ETCD_OVERTAKEN, /* Another answer has come before this one. */
	ETCD_FORGOT,    /* etcd knows less than it has said. e says what. */
};

/* Errors are those of source_file_open(). saved is called after each write, with e if the disk
 * failed, and the source has to end then. */
enum shard_status etcd_seen_open(struct etcd_seen **out, const struct member_config *c,
				 void (*saved)(void *arg, const struct err *e), void *arg,
				 struct err *e);
void etcd_seen_close(struct etcd_seen **x); /* Only while nothing is being saved. */
/* False: it is not the cluster that was seen before, and e says so. */
bool etcd_seen_cluster(struct etcd_seen *x, uint64_t cluster_id, struct err *e);
/* floor: etcd_seen_revision() when the request was sent. */
enum etcd_order etcd_seen_judge(struct etcd_seen *x, const struct etcd_state *st, uint64_t floor,
				struct err *e);
uint64_t etcd_seen_revision(const struct etcd_seen *x);
uint64_t etcd_seen_term(const struct etcd_seen *x); /* The highest one. */
/* The number of the cluster is on the disk. Nobody may lead before. */
bool etcd_seen_durable(const struct etcd_seen *x);
bool etcd_seen_saving(const struct etcd_seen *x);
/* Saves what is new. Returns when to call it again at the latest, UINT64_MAX: not before `saved` or
 * something new. */
uint64_t etcd_seen_save(struct etcd_seen *x, uint64_t now_ns);

#endif
