/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_msg.h: what is asked of etcd and what it answers, as JSON. Nothing here does I/O. A cluster
 * has two keys, `shardd/CLUSTER/leader` and `shardd/CLUSTER/view`. The leader's key is bound to the
 * lease of the node that leads, and its create_revision is the term. The version of the view's key
 * is the seq, because etcd counts the writes of a key from 1. Every transaction also reads both
 * keys, so that its answer says what is current. Answers are checked before anything of them is
 * used: etcd's numbers are decimal strings, its bytes are base64, and zeros are left out. */
#ifndef SHARD_CLUSTER_ETCD_MSG_H
#define SHARD_CLUSTER_ETCD_MSG_H

#include "base/status.h"
#include "cluster/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ETCD_ANSWER_MAX (192u << 10) /* A view in base64, and what is around it. */
#define ETCD_LINE_MAX   4096u        /* Of a watch. A longer line has events. */
#define ETCD_TERM_MAX   (1ull << 62)

struct etcd_keys { /* Each as base64. */
	char leader[96], view[96], begin[96], end[96];
};
void etcd_keys(struct etcd_keys *k, const uint8_t cluster[MEMBER_UUID_BYTES]);

struct etcd_state {
	uint64_t cluster_id;
	uint64_t revision; /* At which both keys were read. */
	bool succeeded;    /* The comparisons of the transaction held. */
	uint64_t term;     /* 0: nobody leads, and the next two say nothing. */
	uint64_t lease;
	uint8_t leader[MEMBER_UUID_BYTES];
	uint64_t seq;       /* 0: there is no view, and the rest says nothing. */
	uint64_t view_term; /* Of the leader that wrote it. */
	uint8_t writer[MEMBER_UUID_BYTES];
	uint32_t bytes_nr;
	uint8_t *bytes; /* [MEMBER_VIEW_MAX] Given by the caller. */
};

/* NULL: there is no view. The term is the leader's, because that is the one in which it is known,
 * or without a leader that of the one who wrote it. */
const struct member_view *etcd_view(const struct etcd_state *st, struct member_view *v);

enum etcd_judged {
	ETCD_GOOD,
	ETCD_BAD,     /* No etcd that works answers that. */
	ETCD_FOREIGN, /* A key of ours has what no node of ours writes. */
};

/* Requests: texts that the caller frees. NULL: no memory. */
char *etcd_ask_state(const struct etcd_keys *k);
/* Make `self` the leader if nobody is. */
char *etcd_ask_lead(const struct etcd_keys *k, const uint8_t self[MEMBER_UUID_BYTES],
		    uint64_t lease);
/* Write a view if `term` still leads and the view's seq is `seq`. */
char *etcd_ask_change(const struct etcd_keys *k, uint64_t term, uint64_t seq,
		      const uint8_t writer[MEMBER_UUID_BYTES], const void *bytes,
		      uint32_t bytes_nr);
char *etcd_ask_grant(uint64_t ttl_s);
char *etcd_ask_lease(uint64_t lease); /* Of keepalive and of revoke. */
char *etcd_ask_watch(const struct etcd_keys *k, uint64_t from_revision);

/* The answer to each of the three transactions. e says what is wrong. st->bytes stays as it was
 * unless there is a view. */
enum etcd_judged etcd_take_state(struct etcd_state *st, const char *text, size_t nr, struct err *e);
/* The answer to grant and keepalive. ttl_s is 0 if there is no such lease any more. */
enum etcd_judged etcd_take_lease(const char *text, size_t nr, uint64_t *cluster_id, uint64_t *lease,
				 uint64_t *ttl_s, struct err *e);

enum etcd_line {
	ETCD_LINE_NOTHING, /* The watch is set up, or still lives. */
	ETCD_LINE_EVENTS,
	ETCD_LINE_END, /* An error, or the watch was cancelled: set it up again. */
};
enum etcd_line etcd_take_line(const char *line, size_t nr);

enum etcd_refusal {
	ETCD_REFUSED, /* For another reason. */
	ETCD_NOSPACE, /* Its quota is used up. It may have written all the same. */
	ETCD_NO_LEASE,
};
/* An answer whose HTTP status is not 200. */
enum etcd_refusal etcd_take_refusal(const char *text, size_t nr);

#endif
