// SPDX-License-Identifier: Apache-2.0
/* What is asked of etcd and what it answers (cluster/etcd_msg.h), without etcd: views of all sizes
 * come back as they were written, and answers that were cut, changed or made up are refused. The
 * clock of a lease (cluster/etcd_lease.h) and the options of etcd_http.h are here as well. */
#include "cluster/etcd_http.h"
#include "cluster/etcd_lease.h"
#include "cluster/etcd_msg.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const uint8_t cluster[MEMBER_UUID_BYTES] = {0xc1, 0x05};
static const uint8_t self[MEMBER_UUID_BYTES] = {0xee, 0x01, 0xff};
static const uint8_t writer[MEMBER_UUID_BYTES] = {7, 8, 9};

/* The first "value" of a request, which the caller frees. */
static char *value_of(const char *request)
{
	const char *from = strstr(request, "\"value\":\"");

	CHECK(from != NULL);
	from += 9;
	return strndup(from, strcspn(from, "\""));
}

static char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *fmt, ...)
{
	char *to = NULL;
	va_list ap;

	va_start(ap, fmt);
	CHECK(vasprintf(&to, fmt, ap) >= 0);
	va_end(ap);
	return to;
}

static char *answer(const char *header, const char *leader, const char *view)
{
	return format("{\"header\":{%s},\"succeeded\":true,\"responses\":["
		      "{\"response_range\":{%s}},{\"response_range\":{%s}}]}",
		      header, leader, view);
}

#define HEADER "\"cluster_id\":\"18446744073709551615\",\"revision\":\"90\""

static char *view_kv(const char *version, const char *value)
{
	return format("\"kvs\":[{\"version\":\"%s\",\"value\":\"%s\"}]", version, value);
}

/* Frees text. */
static enum etcd_judged take(struct etcd_state *st, char *text)
{
	uint8_t *bytes = st->bytes != NULL ? st->bytes : malloc(MEMBER_VIEW_MAX);
	struct err e = {0};
	enum etcd_judged how;

	CHECK(bytes != NULL);
	*st = (struct etcd_state){.bytes = bytes};
	how = etcd_take_state(st, text, strlen(text), &e);
	assert_true(how == ETCD_GOOD || e.text[0] != 0);
	free(text);
	return how;
}

static char *good_value(uint64_t seq, uint32_t bytes_nr)
{
	uint8_t *bytes = malloc(bytes_nr + 1);
	struct etcd_keys k;
	char *request, *value;

	CHECK(bytes != NULL);
	for (uint32_t i = 0; i < bytes_nr; i++)
		bytes[i] = (uint8_t)(i * 7);
	etcd_keys(&k, cluster);
	request = etcd_ask_change(&k, 40, seq - 1, writer, bytes, bytes_nr);
	CHECK(request != NULL);
	value = value_of(request);
	free(request);
	free(bytes);
	return value;
}

static void test_views(void **state)
{
	static const uint32_t sizes[] = {0, 1, 2, 3, 4, 100, 65534, MEMBER_VIEW_MAX};
	struct etcd_state st = {0};
	struct member_view v;

	(void)state;
	for (size_t i = 0; i < NR(sizes); i++) {
		char *value = good_value(5, sizes[i]), *kv = view_kv("5", value);

		assert_int_equal(take(&st, answer(HEADER, "", kv)), ETCD_GOOD);
		assert_true(st.succeeded);
		assert_true(st.cluster_id == UINT64_MAX && st.revision == 90);
		assert_true(st.term == 0 && st.seq == 5 && st.view_term == 40);
		assert_memory_equal(st.writer, writer, sizeof(writer));
		assert_int_equal(st.bytes_nr, sizes[i]);
		for (uint32_t at = 0; at < sizes[i]; at++)
			assert_true(st.bytes[at] == (uint8_t)(at * 7));
		assert_non_null(etcd_view(&st, &v));
		assert_true(v.term == 40 && v.seq == 5 && v.bytes_nr == sizes[i]);
		st.term = 50;
		assert_true(etcd_view(&st, &v)->term == 50);
		free(kv);
		free(value);
	}
	assert_int_equal(take(&st, answer(HEADER, "", "")), ETCD_GOOD);
	assert_null(etcd_view(&st, &v));
	free(st.bytes);
}

static void test_leader(void **state)
{
	struct etcd_state st = {0};
	struct etcd_keys k;
	char *request, *value, *kv;

	(void)state;
	etcd_keys(&k, cluster);
	request = etcd_ask_lead(&k, self, 77);
	value = value_of(request);
	assert_non_null(strstr(request, "\"lease\":\"77\""));
	kv = format("\"kvs\":[{\"create_revision\":\"60\",\"lease\":\"77\",\"value\":\"%s\"}]",
		    value);
	assert_int_equal(take(&st, answer(HEADER, kv, "")), ETCD_GOOD);
	assert_true(st.term == 60 && st.lease == 77 && st.seq == 0);
	assert_memory_equal(st.leader, self, sizeof(self));
	free(kv);
	kv = format("\"kvs\":[{\"create_revision\":\"60\",\"value\":\"%s\"}]", value);
	assert_int_equal(take(&st, answer(HEADER, kv, "")), ETCD_FOREIGN); /* Bound to no lease. */
	free(kv);
	kv = format("\"kvs\":[{\"create_revision\":\"91\",\"lease\":\"77\",\"value\":\"%s\"}]",
		    value);
	assert_int_equal(take(&st, answer(HEADER, kv, "")), ETCD_BAD); /* Of the future. */
	free(kv);
	memcpy(value, "enp6", 4); /* No hexadecimal digits. */
	kv = format("\"kvs\":[{\"create_revision\":\"60\",\"lease\":\"77\",\"value\":\"%s\"}]",
		    value);
	assert_int_equal(take(&st, answer(HEADER, kv, "")), ETCD_FOREIGN);
	free(kv);
	free(value);
	free(request);
	free(st.bytes);
}

/* Every digit of a view's value is changed, and every answer is cut at each byte. */
static void test_damage(void **state)
{
	struct etcd_state st = {0};
	char *value = good_value(5, 31), *kv, *whole;

	(void)state;
	for (size_t i = 0; i < strlen(value); i++)
		for (const char *c = "AZaz09+/=!\x01"; *c != 0; c++) {
			char was = value[i];

			if (*c == was || *c == 1)
				continue;
			value[i] = *c;
			kv = view_kv("5", value);
			/* The last digit of a padded value has bits that say nothing. */
			if (take(&st, answer(HEADER, "", kv)) == ETCD_GOOD)
				assert_true(value[i + 1] == '=');
			free(kv);
			value[i] = was;
		}
	kv = view_kv("6", value);
	assert_int_equal(take(&st, answer(HEADER, "", kv)), ETCD_FOREIGN);
	free(kv);
	kv = view_kv("5", value);
	whole = answer(HEADER, "", kv);
	for (size_t nr = 0; nr < strlen(whole); nr++)
		assert_int_equal(take(&st, strndup(whole, nr)), ETCD_BAD);
	assert_int_equal(take(&st, whole), ETCD_GOOD);
	free(kv);
	free(value);
	free(st.bytes);
}

static void test_headers(void **state)
{
	static const char *const wrong[] = {
		"",
		"\"cluster_id\":\"1\"",
		"\"revision\":\"9\"",
		"\"cluster_id\":\"\",\"revision\":\"9\"",
		"\"cluster_id\":\"0\",\"revision\":\"9\"",
		"\"cluster_id\":\"18446744073709551616\",\"revision\":\"9\"",
		"\"cluster_id\":\"1 \",\"revision\":\"9\"",
		"\"cluster_id\":1,\"revision\":\"9\"",
		"\"cluster_id\":\"1\",\"revision\":\"9223372036854775808\"",
		"\"cluster_id\":\"1\",\"revision\":\"-9\"",
		"\"cluster_id\":\"1\",\"revision\":\"+9\"",
		"\"cluster_id\":\"1\",\"revision\":9",
		"\"cluster_id\":\"1\",\"revision\":\"9\",\"revision\":\"9\"",
	};
	struct etcd_state st = {0};

	(void)state;
	for (size_t i = 0; i < NR(wrong); i++)
		assert_int_equal(take(&st, answer(wrong[i], "", "")), ETCD_BAD);
	free(st.bytes);
}

/* 50,000 answers with a few random bytes. They must not do harm. */
static void test_random(void **state)
{
	struct etcd_state st = {0};
	char *value = good_value(5, 31), *kv = view_kv("5", value);
	char *whole = answer(HEADER, kv, kv);
	uint64_t cluster_id, lease, ttl_s;
	struct rng random = {1};

	(void)state;
	for (int i = 0; i < 50000; i++) {
		char *text = strdup(whole);

		for (int k = 0; k <= i % 4; k++) {
			text[rng_below(&random, strlen(whole))] =
				(char)(1 + rng_below(&random, 255));
		}
		(void)etcd_take_lease(text, strlen(text), &cluster_id, &lease, &ttl_s, NULL);
		(void)etcd_take_line(text, strlen(text));
		(void)etcd_take_refusal(text, strlen(text));
		(void)take(&st, text);
	}
	free(whole);
	free(kv);
	free(value);
	free(st.bytes);
}

static enum etcd_judged lease_is(const char *text, uint64_t *id, uint64_t *ttl_s)
{
	uint64_t cluster_id;

	return etcd_take_lease(text, strlen(text), &cluster_id, id, ttl_s, NULL);
}

#define RESULT(fields) "{\"result\":{\"header\":{\"cluster_id\":\"1\"}," fields "}}"

static void test_leases(void **state)
{
	uint64_t id, ttl_s;

	(void)state;
	assert_int_equal(lease_is("{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"},"
				  "\"ID\":\"9\",\"TTL\":\"2\"}",
				  &id, &ttl_s),
			 ETCD_GOOD);
	assert_true(id == 9 && ttl_s == 2);
	assert_int_equal(lease_is(RESULT("\"ID\":\"9\",\"TTL\":\"3\""), &id, &ttl_s), ETCD_GOOD);
	assert_true(ttl_s == 3);
	/* It is gone: 200, without TTL. */
	assert_int_equal(lease_is(RESULT("\"ID\":\"9\""), &id, &ttl_s), ETCD_GOOD);
	assert_true(ttl_s == 0);
	assert_int_equal(lease_is(RESULT("\"TTL\":\"3\""), &id, &ttl_s), ETCD_BAD);
	assert_int_equal(lease_is(RESULT("\"ID\":\"9\",\"TTL\":\"-1\""), &id, &ttl_s), ETCD_BAD);
	assert_int_equal(lease_is(RESULT("\"ID\":\"9\",\"TTL\":\"4294967296\""), &id, &ttl_s),
			 ETCD_BAD);
	assert_int_equal(lease_is("", &id, &ttl_s), ETCD_BAD);
}

static enum etcd_line line_is(const char *text)
{
	return etcd_take_line(text, strlen(text));
}

static enum etcd_refusal refusal_is(const char *text)
{
	return etcd_take_refusal(text, strlen(text));
}

static void test_lines(void **state)
{
	(void)state;
	assert_int_equal(line_is("{\"result\":{\"created\":true}}"), ETCD_LINE_NOTHING);
	assert_int_equal(line_is("{\"result\":{\"events\":[{}]}}"), ETCD_LINE_EVENTS);
	assert_int_equal(line_is("{\"result\":{\"canceled\":true,\"compact_revision\":\"5\"}}"),
			 ETCD_LINE_END);
	assert_int_equal(line_is("{\"error\":{\"message\":\"transport is closing\"}}"),
			 ETCD_LINE_END);
	assert_int_equal(line_is(""), ETCD_LINE_END);
	assert_int_equal(line_is("[]"), ETCD_LINE_END);
	assert_int_equal(refusal_is("{\"error\":\"etcdserver: mvcc: database space exceeded\"}"),
			 ETCD_NOSPACE);
	assert_int_equal(refusal_is("{\"error\":\"etcdserver: requested lease not found\"}"),
			 ETCD_NO_LEASE);
	assert_int_equal(refusal_is("{\"error\":\"etcdserver: too many requests\",\"code\":8}"),
			 ETCD_REFUSED);
	/* As another release says it. */
	assert_int_equal(refusal_is("{\"code\":8, \"message\":"
				    "\"etcdserver: mvcc: database space exceeded\"}"),
			 ETCD_NOSPACE);
	assert_int_equal(refusal_is("{\"code\":5,\"message\":"
				    "\"etcdserver: requested lease not found\"}"),
			 ETCD_NO_LEASE);
	assert_int_equal(refusal_is("{\"message\":7}"), ETCD_REFUSED);
	assert_int_equal(refusal_is("{\"error\":7}"), ETCD_REFUSED);
	assert_int_equal(refusal_is("<html>"), ETCD_REFUSED);
}

static void test_clock(void **state)
{
	uint64_t now = etcd_lease_clock();
	struct etcd_lease l;

	(void)state;
	etcd_lease_init(&l, 36, NS_PER_SEC);
	assert_false(etcd_lease_lives(&l));
	etcd_lease_renew(&l, 5, 36, now);
	assert_true(etcd_lease_lives(&l) && l.id == 5 && l.every_ns == NS_PER_SEC);
	assert_true(l.until_boot_ns + l.margin_ns == now + 36 * NS_PER_SEC);
	assert_null(etcd_lease_look(&l, true));
	/* It ran out while the process ran: two looks in the margin. */
	etcd_lease_renew(&l, 5, 36, now - 30 * NS_PER_SEC);
	assert_false(etcd_lease_lives(&l));
	assert_null(etcd_lease_look(&l, false));
	assert_null(etcd_lease_look(&l, false));
	assert_non_null(strstr(etcd_lease_look(&l, true), "did not answer"));
	/* It was looked at a little too late. */
	l.looked_boot_ns = l.until_boot_ns - 1;
	assert_null(etcd_lease_look(&l, false));
	/* Nobody looked from before the end until after the margin. */
	etcd_lease_renew(&l, 5, 36, now - 37 * NS_PER_SEC);
	l.looked_boot_ns = l.until_boot_ns - 1;
	assert_non_null(strstr(etcd_lease_look(&l, false), "stood still"));
	assert_null(etcd_lease_look(&l, false));
	/* Nor for a whole lease after that. */
	etcd_lease_renew(&l, 5, 1, now - 37 * NS_PER_SEC);
	l.looked_boot_ns -= NS_PER_SEC;
	assert_non_null(strstr(etcd_lease_look(&l, false), "stood still"));
	/* A long beat is cut. */
	etcd_lease_renew(&l, 5, 2, now);
	assert_true(l.every_ns == NS_PER_SEC / 2);
}

static void opens_not(const char *endpoints, const char *text)
{
	struct etcd_options o = {.endpoints = endpoints};
	struct etcd_http *h = NULL;
	struct err e;
	uv_loop_t loop;

	CHECK(uv_loop_init(&loop) == 0);
	assert_int_equal(etcd_http_open(&h, &loop, &o, &e), SHARD_BAD_ARG);
	if (strstr(e.text, text) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", text, e.text);
	CHECK(uv_loop_close(&loop) == 0);
}

static void files_not(struct etcd_options *o, const char *why)
{
	struct etcd_http *h = NULL;
	struct err e;
	uv_loop_t loop;

	o->endpoints = "http://a:2379";
	CHECK(uv_loop_init(&loop) == 0);
	assert_int_equal(etcd_http_open(&h, &loop, o, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, why));
	CHECK(uv_loop_close(&loop) == 0);
}

static void test_endpoints(void **state)
{
	struct etcd_options o = {.endpoints = " http://a:1/ ,https://b:2,,http://[::1]:3",
				 .ca_file = "/dev/null",
				 .cert_file = "/dev/null",
				 .key_file = "/dev/null"};
	struct etcd_http *h = NULL;
	char many[20 * 16] = "";
	uv_loop_t loop;

	(void)state;
	opens_not("", "no endpoints");
	opens_not("a:2379", "does not begin with http://");
	opens_not("file:///etc/passwd", "does not begin with http://");
	opens_not("http://a\r\nb", "has a byte");
	for (int i = 0; i < 17; i++)
		strcat(many, "http://a:2379,");
	opens_not(many, "more than 16");
	files_not(&(struct etcd_options){.ca_file = "/nonexistent/ca.pem"},
		  "[cluster] etcd_ca = /nonexistent/ca.pem cannot be read: No such file");
	files_not(&(struct etcd_options){.ca_file = "/", .key_file = "/nonexistent/key"},
		  "etcd_key = /nonexistent/key");
	CHECK(uv_loop_init(&loop) == 0);
	assert_int_equal(etcd_http_open(&h, &loop, &o, NULL), SHARD_OK);
	etcd_http_close(&h, NULL, NULL);
	assert_null(h);
	CHECK(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_views),     cmocka_unit_test(test_leader),
		cmocka_unit_test(test_damage),    cmocka_unit_test(test_headers),
		cmocka_unit_test(test_random),    cmocka_unit_test(test_leases),
		cmocka_unit_test(test_lines),     cmocka_unit_test(test_clock),
		cmocka_unit_test(test_endpoints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
