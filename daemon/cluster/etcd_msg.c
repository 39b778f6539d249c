/* SPDX-License-Identifier: Apache-2.0 */
/* The texts that go to etcd's JSON gateway and come from it. Requests are put together from
 * numbers, hexadecimal digits and base64 only, so nothing in them has to be escaped. An answer is
 * parsed by jansson, and each field is looked up, checked for its type and its bounds, and copied.
 * A view has a head with its number, its term, its writer and a sum. If the head does not agree
 * with what etcd says of the key, somebody else has written there, and that is told apart from an
 * answer that makes no sense. */
#include "cluster/etcd_msg.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <assert.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VIEW_MAGIC 0x3157454956444853ull /* "SHDVIEW1" in memory order */

struct view_head { /* The view's bytes follow. */
	uint64_t magic, term, seq;
	uint8_t writer[MEMBER_UUID_BYTES];
	uint64_t sum; /* Of the head while it is zero, and the bytes. */
};
static_assert(sizeof(struct view_head) == 48, "frozen");

#define VALUE_MAX        (sizeof(struct view_head) + MEMBER_VIEW_MAX)
#define BASE64_BYTES(nr) (4 * (((nr) + 2) / 3) + 1)
#define HEX_BYTES        (2 * MEMBER_UUID_BYTES + 1)

/* --- texts --- */

static void to_base64(char *to, const void *from, size_t nr)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const uint8_t *b = from;

	for (size_t i = 0; i < nr; i += 3) {
		uint32_t left = nr - i < 3 ? (uint32_t)(nr - i) : 3;
		uint32_t v = (uint32_t)b[i] << 16 | (left > 1 ? (uint32_t)b[i + 1] << 8 : 0) |
			     (left > 2 ? b[i + 2] : 0);

		*to++ = digits[v >> 18];
		*to++ = digits[v >> 12 & 63];
		*to++ = left > 1 ? digits[v >> 6 & 63] : '=';
		*to++ = left > 2 ? digits[v & 63] : '=';
	}
	*to = 0;
}

static int digit(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* False: it is no base64, or more than max bytes. */
static bool from_base64(uint8_t *to, size_t max, size_t *nr, const char *from, size_t from_nr)
{
	size_t pad = from_nr > 0 && from[from_nr - 1] == '=';

	*nr = 0;
	if (from_nr % 4 != 0)
		return false;
	pad += pad > 0 && from[from_nr - 2] == '=';
	if (from_nr / 4 * 3 - pad > max)
		return false;
	for (size_t i = 0; i < from_nr; i += 4) {
		size_t out = i + 4 == from_nr ? 3 - pad : 3;
		uint32_t v = 0;

		for (size_t k = 0; k < 4; k++) {
			int d = k <= out ? digit(from[i + k]) : 0;

			if (d < 0)
				return false;
			v = v << 6 | (uint32_t)d;
		}
		for (size_t k = 0; k < out; k++)
			to[(*nr)++] = (uint8_t)(v >> (16 - 8 * k));
	}
	return true;
}

static void to_hex(char to[HEX_BYTES], const uint8_t uuid[MEMBER_UUID_BYTES])
{
	for (size_t i = 0; i < MEMBER_UUID_BYTES; i++)
		snprintf(to + 2 * i, 3, "%02x", uuid[i]);
}

static bool from_hex(uint8_t uuid[MEMBER_UUID_BYTES], const uint8_t *from)
{
	for (size_t i = 0; i < 2 * MEMBER_UUID_BYTES; i++) {
		int c = from[i];
		int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

		if (d < 0)
			return false;
		uuid[i / 2] = (uint8_t)(uuid[i / 2] << 4 | d);
	}
	return true;
}

__attribute__((format(printf, 1, 2))) static char *text(const char *fmt, ...)
{
	char *to = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&to, fmt, ap) < 0)
		to = NULL;
	va_end(ap);
	return to;
}

/* --- requests --- */

void etcd_keys(struct etcd_keys *k, const uint8_t cluster[MEMBER_UUID_BYTES])
{
	char hex[HEX_BYTES], key[64];
	int n;

	static_assert(BASE64_BYTES(sizeof(key)) <= sizeof(k->leader), "a key has room");
	to_hex(hex, cluster);
	n = snprintf(key, sizeof(key), "shardd/%s/leader", hex);
	to_base64(k->leader, key, (size_t)n);
	n = snprintf(key, sizeof(key), "shardd/%s/view", hex);
	to_base64(k->view, key, (size_t)n);
	n = snprintf(key, sizeof(key), "shardd/%s/", hex);
	to_base64(k->begin, key, (size_t)n);
	key[n - 1]++; /* The first key that does not begin like that. */
	to_base64(k->end, key, (size_t)n);
}

#define READ_BOTH                                                                                  \
	"{\"request_range\":{\"key\":\"%s\"}},"                                                    \
	"{\"request_range\":{\"key\":\"%s\"}}"

char *etcd_ask_state(const struct etcd_keys *k)
{
	return text("{\"success\":[" READ_BOTH "]}", k->leader, k->view);
}

char *etcd_ask_lead(const struct etcd_keys *k, const uint8_t self[MEMBER_UUID_BYTES],
		    uint64_t lease)
{
	char hex[HEX_BYTES], value[BASE64_BYTES(HEX_BYTES - 1)];

	to_hex(hex, self);
	to_base64(value, hex, HEX_BYTES - 1);
	return text("{\"compare\":[{\"target\":\"CREATE\",\"result\":\"EQUAL\",\"key\":\"%s\","
		    "\"create_revision\":\"0\"}],\"success\":[{\"request_put\":{\"key\":\"%s\","
		    "\"value\":\"%s\",\"lease\":\"%llu\"}}," READ_BOTH "],\"failure\":[" READ_BOTH
		    "]}",
		    k->leader, k->leader, value, (unsigned long long)lease, k->leader, k->view,
		    k->leader, k->view);
}

char *etcd_ask_change(const struct etcd_keys *k, uint64_t term, uint64_t seq,
		      const uint8_t writer[MEMBER_UUID_BYTES], const void *bytes, uint32_t bytes_nr)
{
	struct view_head h = {.magic = VIEW_MAGIC, .term = term, .seq = seq + 1};
	size_t nr = sizeof(h) + bytes_nr;
	uint8_t *value = malloc(nr);
	char *base64 = malloc(BASE64_BYTES(nr)), *out = NULL;

	CHECK(bytes_nr <= MEMBER_VIEW_MAX);
	if (value == NULL || base64 == NULL)
		goto out;
	memcpy(h.writer, writer, sizeof(h.writer));
	memcpy(value, &h, sizeof(h));
	if (bytes_nr > 0)
		memcpy(value + sizeof(h), bytes, bytes_nr);
	h.sum = xxh_sum(value, nr, VIEW_MAGIC);
	memcpy(value, &h, sizeof(h));
	to_base64(base64, value, nr);
	out = text("{\"compare\":["
		   "{\"target\":\"CREATE\",\"result\":\"EQUAL\",\"key\":\"%s\","
		   "\"create_revision\":\"%llu\"},"
		   "{\"target\":\"VERSION\",\"result\":\"EQUAL\",\"key\":\"%s\",\"version\":\"%"
		   "llu\"}],"
		   "\"success\":[{\"request_put\":{\"key\":\"%s\",\"value\":\"%s\"}}," READ_BOTH
		   "],\"failure\":[" READ_BOTH "]}",
		   k->leader, (unsigned long long)term, k->view, (unsigned long long)seq, k->view,
		   base64, k->leader, k->view, k->leader, k->view);
out:
	free(base64);
	free(value);
	return out;
}

char *etcd_ask_grant(uint64_t ttl_s)
{
	return text("{\"TTL\":\"%llu\"}", (unsigned long long)ttl_s);
}

char *etcd_ask_lease(uint64_t lease)
{
	return text("{\"ID\":\"%llu\"}", (unsigned long long)lease);
}

char *etcd_ask_watch(const struct etcd_keys *k, uint64_t from_revision)
{
	return text("{\"create_request\":{\"key\":\"%s\",\"range_end\":\"%s\","
		    "\"start_revision\":\"%llu\"}}",
		    k->begin, k->end, (unsigned long long)from_revision);
}

/* --- answers --- */

static json_t *parse(const char *from, size_t nr)
{
	json_t *j = from != NULL ? json_loadb(from, nr, JSON_REJECT_DUPLICATES, NULL) : NULL;

	if (j != NULL && !json_is_object(j)) {
		json_decref(j);
		j = NULL;
	}
	return j;
}

/* A number below 2^63. A field that is not there is 0. False: it is something else. */
static bool number(const json_t *of, const char *name, uint64_t *to)
{
	const json_t *j = json_object_get(of, name);
	const char *s = json_string_value(j);
	size_t nr = json_string_length(j);

	*to = 0;
	if (j == NULL)
		return true;
	if (s == NULL || nr == 0 || nr > 19)
		return false;
	for (size_t i = 0; i < nr; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		*to = *to * 10 + (uint64_t)(s[i] - '0');
	}
	return *to <= INT64_MAX;
}

/* A cluster's number has 64 bits. */
static bool cluster_number(const json_t *of, uint64_t *to)
{
	const json_t *j = json_object_get(of, "cluster_id");
	const char *s = json_string_value(j);
	size_t nr = json_string_length(j);

	*to = 0;
	if (s == NULL || nr == 0 || nr > 20)
		return false;
	for (size_t i = 0; i < nr; i++)
		if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(*to, (uint64_t)10, to) ||
		    __builtin_add_overflow(*to, (uint64_t)(s[i] - '0'), to))
			return false;
	return *to != 0;
}

static bool header(const json_t *of, uint64_t *cluster_id, uint64_t *revision)
{
	const json_t *h = json_object_get(of, "header");

	return json_is_object(h) && cluster_number(h, cluster_id) &&
	       number(h, "revision", revision);
}

/* The one key that a range was asked for. *kv is NULL if it does not exist. */
static bool one_key(const json_t *response, const json_t **kv)
{
	const json_t *range = json_object_get(response, "response_range");
	const json_t *kvs = json_object_get(range, "kvs");

	*kv = json_array_get(kvs, 0);
	if (!json_is_object(range) || (kvs != NULL && !json_is_array(kvs)) ||
	    json_array_size(kvs) > 1)
		return false;
	return *kv == NULL || json_is_object(*kv);
}

static bool value(const json_t *kv, uint8_t *to, size_t max, size_t *nr)
{
	const json_t *j = json_object_get(kv, "value");

	*nr = 0;
	if (j == NULL)
		return true;
	return json_is_string(j) &&
	       from_base64(to, max, nr, json_string_value(j), json_string_length(j));
}

static enum etcd_judged bad(struct err *e, const char *what)
{
	err_set(e, SHARD_PROTOCOL, "an answer of etcd makes no sense: %s", what);
	return ETCD_BAD;
}

static enum etcd_judged take_leader(struct etcd_state *st, const json_t *kv, struct err *e)
{
	uint8_t hex[HEX_BYTES - 1];
	size_t nr;

	st->term = 0;
	if (kv == NULL)
		return ETCD_GOOD;
	if (!number(kv, "create_revision", &st->term) || !number(kv, "lease", &st->lease) ||
	    st->term == 0 || st->term > st->revision || st->term > ETCD_TERM_MAX)
		return bad(e, "a number of the leader's key");
	if (!value(kv, hex, sizeof(hex), &nr) || nr != sizeof(hex) || !from_hex(st->leader, hex) ||
	    st->lease == 0) {
		err_set(e, SHARD_PROTOCOL,
			"the leader's key in etcd was not written by shardd: delete it");
		return ETCD_FOREIGN;
	}
	return ETCD_GOOD;
}

static enum etcd_judged take_view(struct etcd_state *st, const json_t *kv, uint8_t *buffer,
				  struct err *e)
{
	struct view_head h;
	uint64_t sum;
	size_t nr;

	st->seq = 0;
	if (kv == NULL)
		return ETCD_GOOD;
	if (!number(kv, "version", &st->seq) || st->seq == 0)
		return bad(e, "the version of the view");
	if (!value(kv, buffer, VALUE_MAX, &nr) || nr < sizeof(h))
		goto foreign;
	memcpy(&h, buffer, sizeof(h));
	sum = h.sum;
	h.sum = 0;
	memcpy(buffer, &h, sizeof(h));
	if (h.magic != VIEW_MAGIC || h.seq != st->seq || h.term == 0 || h.term > ETCD_TERM_MAX ||
	    xxh_sum(buffer, nr, VIEW_MAGIC) != sum)
		goto foreign;
	st->view_term = h.term;
	memcpy(st->writer, h.writer, sizeof(st->writer));
	st->bytes_nr = (uint32_t)(nr - sizeof(h));
	memcpy(st->bytes, buffer + sizeof(h), st->bytes_nr);
	return ETCD_GOOD;
foreign:
	err_set(e, SHARD_PROTOCOL,
		"the view in etcd is damaged, or something else than shardd has written there: "
		"what the members are is not known any more");
	return ETCD_FOREIGN;
}

/* The two ranges are the last responses of each transaction. */
static enum etcd_judged take_both(struct etcd_state *st, const json_t *j, struct err *e)
{
	const json_t *all = json_object_get(j, "responses"), *leader, *view;
	size_t nr = json_array_size(all);
	enum etcd_judged how;
	uint8_t *buffer;

	if (nr < 2 || nr > 3 || !one_key(json_array_get(all, nr - 2), &leader) ||
	    !one_key(json_array_get(all, nr - 1), &view))
		return bad(e, "the keys");
	how = take_leader(st, leader, e);
	if (how != ETCD_GOOD)
		return how;
	buffer = malloc(VALUE_MAX);
	if (buffer == NULL)
		return bad(e, "no memory for it");
	how = take_view(st, view, buffer, e);
	free(buffer);
	return how;
}

enum etcd_judged etcd_take_state(struct etcd_state *st, const char *from, size_t nr, struct err *e)
{
	json_t *j = parse(from, nr);
	enum etcd_judged how;

	st->succeeded = json_is_true(json_object_get(j, "succeeded"));
	if (j == NULL || !header(j, &st->cluster_id, &st->revision) || st->revision == 0)
		how = bad(e, "the header");
	else
		how = take_both(st, j, e);
	json_decref(j);
	return how;
}

const struct member_view *etcd_view(const struct etcd_state *st, struct member_view *v)
{
	if (st->seq == 0)
		return NULL;
	*v = (struct member_view){.term = st->term > st->view_term ? st->term : st->view_term,
				  .seq = st->seq,
				  .bytes_nr = st->bytes_nr,
				  .bytes = st->bytes};
	memcpy(v->writer, st->writer, sizeof(v->writer));
	return v;
}

enum etcd_judged etcd_take_lease(const char *from, size_t nr, uint64_t *cluster_id, uint64_t *lease,
				 uint64_t *ttl_s, struct err *e)
{
	json_t *j = parse(from, nr);
	const json_t *of = json_object_get(j, "result"); /* keepalive is a stream of one. */
	enum etcd_judged how = ETCD_GOOD;
	uint64_t revision;

	if (of == NULL)
		of = j;
	if (j == NULL || !header(of, cluster_id, &revision) || !number(of, "ID", lease) ||
	    !number(of, "TTL", ttl_s) || *lease == 0 || *ttl_s > UINT32_MAX)
		how = bad(e, "a lease");
	json_decref(j);
	return how;
}

enum etcd_line etcd_take_line(const char *line, size_t nr)
{
	json_t *j = parse(line, nr);
	const json_t *result = json_object_get(j, "result");
	enum etcd_line what = ETCD_LINE_NOTHING;

	if (!json_is_object(result) || json_is_true(json_object_get(result, "canceled")))
		what = ETCD_LINE_END;
	else if (json_array_size(json_object_get(result, "events")) > 0)
		what = ETCD_LINE_EVENTS;
	json_decref(j);
	return what;
}

enum etcd_refusal etcd_take_refusal(const char *from, size_t nr)
{
	json_t *j = parse(from, nr);
	const char *why = json_string_value(json_object_get(j, "error"));
	enum etcd_refusal what = ETCD_REFUSED;

	if (why == NULL) /* Not all releases of etcd have both. */
		why = json_string_value(json_object_get(j, "message"));
	if (why != NULL && strstr(why, "database space exceeded") != NULL)
		what = ETCD_NOSPACE;
	else if (why != NULL && strstr(why, "requested lease not found") != NULL)
		what = ETCD_NO_LEASE;
	json_decref(j);
	return what;
}
