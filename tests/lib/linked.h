/* SPDX-License-Identifier: Apache-2.0 */
/* linked.h: what a node says of its link to another, in its status. */
#ifndef SHARD_TESTS_LINKED_H
#define SHARD_TESTS_LINKED_H

#include "lib/inproc.h"

/* Returns a number, or -1 if it is not there. */
json_int_t linked_figure(struct inproc_node *from, const char *to, const char *key);
/* True: the text contains `part`. */
bool linked_says(struct inproc_node *from, const char *to, const char *key, const char *part);
/* Waits until it says so. The test fails after 20 s. */
void linked_await(struct inproc_node *from, const char *to, const char *key, const char *part);
/* Waits until every node sends to every other node by RDMA. */
void linked_by_rdma(struct inproc *c);

#endif
