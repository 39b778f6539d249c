// SPDX-License-Identifier: Apache-2.0
/* What has come from other nodes and waits for the register: no change of a link is lost, and
 * messages come out as they were put in, in order, as long as there is room.
 */
#include "cluster/source_inbox.h"

#include <stddef.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_links_of_inbox(void **state)
{
	uint8_t uuid[MEMBER_UUID_BYTES] = {1}, out[MEMBER_UUID_BYTES];
	enum quorum_event_type type;
	struct inbox b;

	(void)state;
	assert_true(inbox_init(&b));
	inbox_link(&b, uuid, false);
	assert_false(inbox_take_link(&b, &type, out));
	inbox_link(&b, uuid, true);
	inbox_link(&b, uuid, false);
	assert_false(inbox_take_link(&b, &type, out)); /* Nobody has to hear of that. */
	inbox_link(&b, uuid, true);
	assert_true(inbox_is_up(&b, uuid));
	assert_true(inbox_take_link(&b, &type, out) && type == QUORUM_EV_UP);
	inbox_link(&b, uuid, false);
	inbox_link(&b, uuid, true);
	assert_true(inbox_take_link(&b, &type, out) && type == QUORUM_EV_DOWN);
	assert_true(inbox_take_link(&b, &type, out) && type == QUORUM_EV_UP);
	assert_memory_equal(out, uuid, sizeof(out));
	assert_false(inbox_take_link(&b, &type, out));
	inbox_link(&b, uuid, false);
	assert_false(inbox_is_up(&b, uuid));
	assert_true(inbox_take_link(&b, &type, out) && type == QUORUM_EV_DOWN);
	/* Each place is used again, and one too many is left out. */
	for (int i = 0; i < MEMBER_LINKS_MAX + 1; i++) {
		uuid[0] = (uint8_t)(i + 1);
		inbox_link(&b, uuid, true);
	}
	assert_false(inbox_is_up(&b, uuid));
	for (int i = 0; i < MEMBER_LINKS_MAX; i++)
		assert_true(inbox_take_link(&b, &type, out) && type == QUORUM_EV_UP);
	assert_false(inbox_take_link(&b, &type, out));
	inbox_deinit(&b);
}

static void test_messages_of_inbox(void **state)
{
	static unsigned char msg[SOURCE_MSG_MAX];
	uint32_t put = 0, took = 0, nr;
	struct inbox b;

	(void)state;
	assert_true(inbox_init(&b));
	assert_null(inbox_take_msg(&b, &nr));
	for (int round = 0; round < 200; round++) {
		for (int i = 0; i < 3; i++, put++) {
			msg[0] = (unsigned char)put;
			inbox_put(&b, msg, 1 + put * 7919 % 20000);
		}
		for (int i = 0; i < 3; i++, took++) {
			const unsigned char *at = inbox_take_msg(&b, &nr);

			assert_non_null(at);
			assert_int_equal(*at, (unsigned char)took);
			assert_int_equal(nr, 1 + took * 7919 % 20000);
		}
	}
	for (int i = 0; i < 20; i++)
		inbox_put(&b, msg, sizeof(msg));
	for (took = 0; inbox_take_msg(&b, &nr) != NULL; took++)
		assert_int_equal(nr, sizeof(msg));
	assert_int_equal(took, 7); /* Eight fit, but for their lengths. */
	inbox_deinit(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_links_of_inbox),
		cmocka_unit_test(test_messages_of_inbox),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
