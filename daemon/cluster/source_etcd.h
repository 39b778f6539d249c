/* SPDX-License-Identifier: Apache-2.0 */
/* source_etcd.h: what the membership source `etcd` reads beside member_config, and its row of
 * functions. In a build without libcurl the row is there, and its start says that it is not built.
 */
#ifndef SHARD_CLUSTER_SOURCE_ETCD_H
#define SHARD_CLUSTER_SOURCE_ETCD_H

#include "cluster/source.h"

/* member_config.more. All texts are copied.
 *
 * election_ms is the time of the lease, in whole seconds (rounded up), and never less than etcd
 * allows, which is 1.5 of its own election timeouts (2 s unless that was changed). A node asks
 * etcd at least every beat_ms, and one request takes at most a third of the lease. A view's term is
 * that of the leader in the same answer of etcd, or of the leader that wrote it if nobody leads.
 * The process has to ignore SIGPIPE. When the link to the leader ends, link() lets this node revoke
 * the leader's lease, so that the next one need not wait until it has run out.
 *
 * etcd has to compact its history by itself (auto-compaction). Otherwise it grows with each view
 * until its quota is used up. Then the leader leads on, but writes nothing, and no other node can
 * take its place. */
struct etcd_options {
	/* One to ETCD_ENDPOINTS_MAX addresses of the members of one etcd cluster, separated by
	 * commas or blanks: "http://10.0.0.1:2379,https://etcd-2:2379". */
	const char *endpoints;
	/* Files in PEM for https. NULL: the system's authorities; no certificate of our own. */
	const char *ca_file, *cert_file, *key_file;
	/* What a leader does that has run all the time, but has heard nothing from etcd for as long
	 * as its lease. false: it leads on, without new values, until etcd says that the lead is
	 * gone. So training goes on while etcd is down. If only this node cannot reach etcd, others
	 * elect a leader meanwhile, and promises to its higher term fence this one. true: it loses
	 * the lead at once. A process that was stopped always does. */
	bool strict;
};
#define ETCD_ENDPOINTS_MAX 16

extern const struct member_source_ops source_etcd;
/* Why the last request that etcd did not answer failed, with the server's address, for a status or
 * a log. "": none has failed. Valid until the loop goes on. */
const char *source_etcd_trouble(const struct member_source *s);
/* Has etcd not answered for as long as a lease? */
bool source_etcd_silent(const struct member_source *s);

#endif
