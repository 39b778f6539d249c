// SPDX-License-Identifier: Apache-2.0
/* Tests lists of networks: what is one, and which addresses are in it. */
#include "base/check.h"
#include "net/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static bool has(const char *list, const char *address)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	struct network_list l;

	assert_true(network_parse(&l, list));
	if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
		return network_has(&l, (struct sockaddr *)&v4);
	assert_int_equal(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
	return network_has(&l, (struct sockaddr *)&v6);
}

static void members(void **state)
{
	(void)state;
	assert_true(has("10.0.0.0/8", "10.255.255.255"));
	assert_false(has("10.0.0.0/8", "11.0.0.0"));
	assert_true(has("10.1.2.3", "10.1.2.3"));
	assert_false(has("10.1.2.3", "10.1.2.2"));
	assert_true(has("10.1.2.128/25", "10.1.2.200"));
	assert_false(has("10.1.2.128/25", "10.1.2.127"));
	assert_true(has("10.1.2.2/31", "10.1.2.3"));
	assert_false(has("10.1.2.2/31", "10.1.2.4"));
	assert_true(has("0.0.0.0/0", "203.0.113.7"));
	assert_false(has("0.0.0.0/0", "2001:db8::1"));
	assert_true(has("::/0", "2001:db8::1"));
	assert_true(has("fd00::/8", "fdff::1"));
	assert_false(has("fd00::/8", "fe80::1"));
	assert_true(has("192.168.0.0/16, fd00::/8,::1", "::1"));
	assert_true(has(" 192.168.0.0/16 , fd00::/8", "192.168.3.4"));
	/* A socket for both families shows IPv4 addresses like this. */
	assert_true(has("10.0.0.0/8", "::ffff:10.1.1.1"));
	assert_false(has("10.0.0.0/8", "::10.1.1.1"));
}

static void others(void **state)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct network_list l;

	(void)state;
	assert_true(network_parse(&l, "0.0.0.0/0, ::/0"));
	assert_false(network_has(&l, (struct sockaddr *)&un));
}

static void wrong(void **state)
{
	static const char *const lists[] = {
		"",
		",",
		"10.0.0.0/8,",
		",10.0.0.0/8",
		"10.0.0.0/33",
		"10.0.0.0/",
		"10.0.0.0/-1",
		"10.0.0.0/8x",
		"10.0.0.1/8",
		"10.0.0/8",
		"fd00::/129",
		"fd01::/8",
		"name",
		"10.0.0.0/8 10.1.0.0/16",
		"10.0.0.0/0008",
	};
	char many[NETWORK_MAX * 9 + 20] = "1.1.1.1";
	struct network_list l;

	(void)state;
	for (size_t i = 0; i < NR(lists); i++)
		if (network_parse(&l, lists[i]))
			fail_msg("\"%s\" is taken", lists[i]);
	for (int i = 1; i < NETWORK_MAX; i++)
		strcat(many, ",1.1.1.1");
	assert_true(network_parse(&l, many));
	assert_int_equal(l.nr, NETWORK_MAX);
	strcat(many, ",1.1.1.1");
	assert_false(network_parse(&l, many));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members),
		cmocka_unit_test(others),
		cmocka_unit_test(wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
