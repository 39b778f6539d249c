/* SPDX-License-Identifier: Apache-2.0 */
/* enrol.h: how this node gets into the list of nodes of a running cluster ([cluster] join). It
 * comes before everything else of a start, and only until this node's state folder has the list. */
#ifndef SHARD_ENROL_H
#define SHARD_ENROL_H

#include "base/log.h"
#include "config/cluster.h"

#include <uv.h>

/* conf->joins. Runs the loop until it has ended. text: what config_args.cluster gets then, which is
 * to be kept in the state folder. SHARD_TIMEOUT: the cluster did not take this node in within a
 * minute, and e says what it waits for. Any other failure: it never will. */
enum shard_status enrol(const struct config *conf, struct log *log, uv_loop_t *loop,
			char text[CONFIG_CLUSTER_BYTES], struct err *e);

#endif
