/* SPDX-License-Identifier: Apache-2.0 */
/* linked.h: what a node says of its link to another, in its status. */
#ifndef SHARD_TESTS_LINKED_H
#define SHARD_TESTS_LINKED_H

#include "lib/inproc.h"

json_int_t linked_figure(struct inproc_node *from, const char *to,
			 const char *key); /* -1: it is not there */
bool linked_says(struct inproc_node *from, const char *to, const char *key,
		 const char *part); /* the text has it */
void linked_await(struct inproc_node *from, const char *to, const char *key,
		  const char *part);   /* 20 s, then the test fails */
void linked_by_rdma(struct inproc *c); /* every node to every other */

#endif
