/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what the membership source `etcd` takes from etcd. Byte 0 says what the rest is: 0 the
 * answer to a transaction, 1 of a lease, 2 a line of a watch, 3 a refusal; 4 a view, which is
 * written, put into an answer and must come back; 5 a leader's key, whose uuid and lease are taken
 * from the bytes, in the same way. */
// covers: daemon/cluster/etcd_msg.c
#include "base/check.h"
#include "cluster/etcd_msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t id[MEMBER_UUID_BYTES] = {0xc1, 0xab};
static uint8_t bytes[MEMBER_VIEW_MAX];

static enum etcd_judged take(struct etcd_state *st, const char *text, size_t nr)
{
	struct err e = {.text = ""};
	struct member_view v;
	enum etcd_judged how;

	*st = (struct etcd_state){.bytes = bytes};
	how = etcd_take_state(st, text, nr, &e);
	CHECK(how == ETCD_GOOD || strlen(e.text) > 0);
	if (how != ETCD_GOOD)
		return how;
	CHECK(st->cluster_id != 0 && st->revision != 0 && st->bytes_nr <= MEMBER_VIEW_MAX);
	CHECK(st->term <= st->revision && st->term <= ETCD_TERM_MAX);
	CHECK((etcd_view(st, &v) != NULL) == (st->seq != 0));
	return how;
}

/* Puts the value of a request into an answer, and takes that. Frees the request. */
static void come_back(struct etcd_state *st, char *request, const char *fmt)
{
	const char *value = request != NULL ? strstr(request, "\"value\":\"") : NULL;
	char *answer = NULL;

	CHECK(value != NULL);
	value += 9;
	CHECK(asprintf(&answer, fmt, (int)strcspn(value, "\""), value) > 0);
	CHECK(take(st, answer, strlen(answer)) == ETCD_GOOD);
	free(answer);
	free(request);
}

static void view(const uint8_t *data, size_t size)
{
	uint32_t nr = size < MEMBER_VIEW_MAX ? (uint32_t)size : MEMBER_VIEW_MAX;
	struct etcd_state st;
	struct etcd_keys k;

	etcd_keys(&k, id);
	come_back(&st, etcd_ask_change(&k, 3, 6, id, data, nr),
		  "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"9\"},\"responses\":["
		  "{\"response_range\":{}},{\"response_range\":{\"kvs\":[{\"version\":\"7\","
		  "\"value\":\"%.*s\"}]}}]}");
	CHECK(st.seq == 7 && st.view_term == 3 && st.bytes_nr == nr);
	CHECK(nr == 0 || memcmp(st.bytes, data, nr) == 0);
}

static void leader(const uint8_t *data, size_t size)
{
	uint8_t uuid[MEMBER_UUID_BYTES] = {0};
	struct etcd_state st;
	struct etcd_keys k;

	memcpy(uuid, data, size < sizeof(uuid) ? size : sizeof(uuid));
	etcd_keys(&k, uuid);
	come_back(&st, etcd_ask_lead(&k, uuid, 5),
		  "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"9\"},\"responses\":["
		  "{\"response_range\":{\"kvs\":[{\"create_revision\":\"8\",\"lease\":\"5\","
		  "\"value\":\"%.*s\"}]}},{\"response_range\":{}}]}");
	CHECK(st.term == 8 && st.lease == 5 && memcmp(st.leader, uuid, sizeof(uuid)) == 0);
	free(etcd_ask_state(&k));
	free(etcd_ask_grant(size));
	free(etcd_ask_lease(size));
	free(etcd_ask_watch(&k, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t cluster_id, lease, ttl_s;
	struct etcd_state st;
	char *text;

	if (size == 0)
		return 0;
	text = malloc(size); /* Of the exact size, so that a byte too far is seen. */
	CHECK(text != NULL);
	memcpy(text, data + 1, size - 1);
	switch (data[0] % 6) {
	case 0:
		(void)take(&st, text, size - 1);
		break;
	case 1:
		if (etcd_take_lease(text, size - 1, &cluster_id, &lease, &ttl_s, NULL) == ETCD_GOOD)
			CHECK(cluster_id != 0 && lease != 0 && ttl_s <= UINT32_MAX);
		break;
	case 2:
		(void)etcd_take_line(text, size - 1);
		break;
	case 3:
		(void)etcd_take_refusal(text, size - 1);
		break;
	case 4:
		view(data + 1, size - 1);
		break;
	default:
		leader(data + 1, size - 1);
		break;
	}
	free(text);
	return 0;
}
