// SPDX-License-Identifier: Apache-2.0
/* Tests that the text about an address in use says who has it, or what command does. */
#include "net/holder.h"

#include "base/check.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static struct sockaddr_in v4(uint32_t host, uint16_t port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(host), .sin_port = htons(port)};
}

static int listener(struct sockaddr_in *at)
{
	socklen_t bytes = sizeof(*at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)at, bytes) == 0 && listen(fd, 1) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)at, &bytes) == 0);
	return fd;
}

static const char *ask(const struct sockaddr_in *at)
{
	static char out[HOLDER_BYTES];

	return holder_of((const struct sockaddr *)at, out);
}

static void test_named(void **state)
{
	struct sockaddr_in at = v4(INADDR_LOOPBACK, 0), other;
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	int fd = listener(&at);
	char mine[64], root[64], out[HOLDER_BYTES];

	(void)state;
	CHECK(prctl(PR_SET_NAME, "a\x1b[31m(b") == 0); /* A terminal must not see the escape. */
	snprintf(mine, sizeof(mine), " by pid %d (a?[31m(b)", (int)getpid());
	snprintf(root, sizeof(root), "`ss -tanp sport = :%u`", ntohs(at.sin_port));
	assert_string_equal(ask(&at), mine);
	other = v4(INADDR_ANY, ntohs(at.sin_port)); /* It is in the way of all addresses. */
	assert_string_equal(ask(&other), mine);
	v6.sin6_port = at.sin_port;
	assert_string_equal(holder_of((struct sockaddr *)&v6, out), mine);
	other = v4(INADDR_LOOPBACK + 1, ntohs(at.sin_port)); /* It is in nobody's way. */
	assert_null(strstr(ask(&other), "by pid"));
	assert_non_null(strstr(ask(&other), root));
	close(fd);
	assert_null(strstr(ask(&at), "by pid"));
}

static void test_of_another_user(void **state)
{
	struct sockaddr_in at = v4(INADDR_LOOPBACK, 0);
	int fd = listener(&at), status;

	(void)state;
	if (geteuid() != 0)
		skip();
	if (fork() == 0) {
		close(fd);
		CHECK(setuid(65534) == 0);
		_exit(strstr(ask(&at), " by a process of uid 0, which root sees in `ss ") == NULL);
	}
	CHECK(wait(&status) > 0);
	assert_int_equal(status, 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_named),
		cmocka_unit_test(test_of_another_user),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
