// SPDX-License-Identifier: Apache-2.0
/* Tests the cluster's secret: its file, and the keyed hashes against vectors that another
 * implementation made. It also tests what must not pass for a proof: a flipped bit, the other
 * side's proof, a recorded exchange, and a HELLO that was changed on the way. */
#include "base/check.h"
#include "net/prove.h"
#include "wire/frame.h"
#include "wire/ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define KEY_1 "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define SEVEN "0102030405060701020304050607010203040506070102030405060701020304"
#define KEY_2 "ffeeddccbbaa99887766554433221100FFEEDDCCBBAA99887766554433221100"
#define KEY_3 "00112233445566778899aabbccddeeff102132435465768798a9bacbdcedfe0f"

static char file[64];

static int make_folder(void **state)
{
	char *dir;

	(void)state;
	strcpy(file, "/tmp/test_auth.XXXXXX");
	dir = mkdtemp(file);
	strcat(file, "/s");
	return dir != NULL ? 0 : 1;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(file);
	file[strlen(file) - 2] = 0;
	return rmdir(file);
}

static void put(const char *text, mode_t mode)
{
	int fd;

	unlink(file); /* The file of the case before may be read-only. */
	fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static struct auth *keys(const char *text)
{
	struct auth *a;
	struct err e;

	put(text, 0600);
	if (auth_open(&a, file, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return a;
}

static void refused(const char *text, mode_t mode, const char *part)
{
	struct auth *a = (struct auth *)1;
	struct err e;

	put(text, mode);
	assert_int_equal(auth_open(&a, file, &e), SHARD_BAD_ARG);
	assert_null(a);
	if (strstr(e.text, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, e.text);
	assert_null(strstr(e.text, "20212223")); /* The error does not repeat the secret. */
}

/* A file of secrets is refused if others may use it, if it is malformed, or if a secret in it is
 * weak or there twice. The text says in which line. */
static void test_file(void **state)
{
	struct auth *a = NULL;
	char text[2 * AUTH_BYTES + 2];
	struct err e;

	(void)state;
	refused("", 0600, "there is none in it");
	refused("\n\n", 0600, "there is none in it");
	refused(KEY_1 "0\n", 0600, ":1: not a secret of 64 hex digits");
	refused(KEY_1 "\n202122\n", 0600, ":2: not a secret of 64 hex digits");
	refused("g" KEY_1 "\n", 0600, ":1: not");
	refused(" " KEY_1 "\n", 0600, ":1: not");
	refused(KEY_1 "\n" KEY_2 "\n\n" KEY_3 "\n", 0600, ":4: more than 2 secrets");
	refused(KEY_1 "\n", 0640,
		"its mode is 0640, so that others may read or change it: chmod 600");
	refused(KEY_1 "\n", 0604, "its mode is 0604");
	refused(KEY_1 "\n", 0620, "its mode is 0620");
	refused(ZEROS "\n", 0600, ":1: fewer than 8 different bytes");
	refused(KEY_1 "\n" SEVEN "\n", 0600, ":2: fewer than 8 different bytes");
	refused(KEY_1 "\n\n" KEY_1 "\n", 0600, ":3: the same secret twice");
	if (geteuid() == 0) {
		put(KEY_1 "\n", 0600);
		assert_int_equal(chown(file, 12345, 0), 0);
		assert_int_equal(auth_open(&a, file, &e), SHARD_BAD_ARG);
		assert_non_null(strstr(e.text, "it belongs to user 12345"));
		assert_int_equal(chown(file, 0, 0), 0);
	}
	a = keys(KEY_1);
	assert_int_equal(auth_keys(a), 1);
	auth_close(&a);
	assert_null(a);
	a = keys(KEY_1 "\r\n\r\n" KEY_2 "\r\n");
	assert_int_equal(auth_keys(a), 2);
	auth_close(&a);
	assert_int_equal(auth_open(&a, "/nowhere/s", &e), SHARD_SYSTEM);
	assert_string_equal(e.text,
			    "secret /nowhere/s: cannot be opened: No such file or directory");
	assert_int_equal(auth_open(&a, "/tmp", &e), SHARD_BAD_ARG);
	assert_int_equal(auth_new_secret(text, &e), SHARD_OK);
	assert_int_equal(strlen(text), 65);
	a = keys(text);
	auth_close(&a);
}

/* A file below systemd's CREDENTIALS_DIRECTORY may be readable for its group, and no other file
 * may. */
static void test_credentials(void **state)
{
	char folder[64];
	struct auth *a;
	struct err e;

	(void)state;
	unsetenv("CREDENTIALS_DIRECTORY");
	assert_int_equal(auth_open(&a, "${CREDENTIALS_DIRECTORY}/s", &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "CREDENTIALS_DIRECTORY is not set"));
	snprintf(folder, sizeof(folder), "%.*s", (int)strlen(file) - 2, file);
	setenv("CREDENTIALS_DIRECTORY", folder, 1);
	/* systemd makes credentials readable for a group that only the unit has. */
	put(KEY_1 "\n", 0440);
	assert_int_equal(auth_open(&a, "${CREDENTIALS_DIRECTORY}/s", &e), SHARD_OK);
	auth_close(&a);
	refused(KEY_1 "\n", 0444, "its mode is 0444");
	/* This is a prefix of the path, but no folder that holds the file. */
	setenv("CREDENTIALS_DIRECTORY", "/tmp/test_au", 1);
	refused(KEY_1 "\n", 0440, "its mode is 0440");
	unsetenv("CREDENTIALS_DIRECTORY");
}

/* --- the hashes --- */

static struct auth_talk talk_of(const struct auth *a)
{
	struct auth_talk t = {.key = 0};

	memset(t.nonce[AUTH_DIALLER], 1, AUTH_BYTES);
	memset(t.nonce[AUTH_LISTENER], 2, AUTH_BYTES);
	assert_true(auth_said(a, &t, AUTH_DIALLER, "hello", 5));
	assert_true(auth_said(a, &t, AUTH_LISTENER, "reply", 5));
	return t;
}

/* The proofs equal those in proto/wire/README.md, which another implementation computed. */
static void test_vectors(void **state)
{
	FILE *f = fopen("proto/wire/README.md", "re");
	struct auth *a = keys(KEY_1 "\n");
	struct auth_talk t = talk_of(a);
	char line[512], what[16], name[16], digits[80];
	int seen = 0;

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f) && strncmp(line, "<!-- example proof -->", 22) != 0)
		;
	while (seen < 4 && fgets(line, sizeof(line), f)) {
		unsigned char proof[AUTH_BYTES];
		char mine[2 * AUTH_BYTES + 1];
		enum auth_side side;

		if (sscanf(line, " %15s %15s %79[0-9a-f]", what, name, digits) != 3)
			continue;
		t.what = strcmp(what, "node") == 0 ? AUTH_FOR_NODE : AUTH_FOR_CLIENT;
		side = strcmp(name, "dialler") == 0 ? AUTH_DIALLER : AUTH_LISTENER;
		assert_true(auth_prove(a, &t, side, side == AUTH_DIALLER ? "whole c" : "whole d", 7,
				       proof));
		for (int i = 0; i < AUTH_BYTES; i++)
			snprintf(mine + 2 * i, 3, "%02x", proof[i]);
		assert_string_equal(mine, digits);
		seen++;
	}
	fclose(f);
	assert_int_equal(seen, 4);
	auth_close(&a);
}

/* A proof is refused if one bit of it, of its message, or of the nonces and HELLOs has changed, and
 * if it is shorter or missing. */
static void test_flipped(void **state)
{
	struct auth *a = keys(KEY_1 "\n");
	struct auth_talk t = talk_of(a);
	unsigned char proof[2][AUTH_BYTES];
	char whole[] = "whole";

	(void)state;
	for (int side = 0; side < 2; side++) {
		assert_true(auth_prove(a, &t, (enum auth_side)side, whole, 5, proof[side]));
		assert_true(
			auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side], AUTH_BYTES));
		for (int bit = 0; bit < 8 * AUTH_BYTES; bit++) {
			proof[side][bit / 8] ^= (unsigned char)(1 << bit % 8);
			assert_false(auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side],
						AUTH_BYTES));
			proof[side][bit / 8] ^= (unsigned char)(1 << bit % 8);
		}
		/* The message that the proof covers. */
		for (int bit = 0; bit < 8 * 5; bit++) {
			whole[bit / 8] = (char)(whole[bit / 8] ^ (1 << bit % 8));
			assert_false(auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side],
						AUTH_BYTES));
			whole[bit / 8] = (char)(whole[bit / 8] ^ (1 << bit % 8));
		}
		/* The nonces and the hashes of the HELLOs of both sides. */
		for (size_t bit = 0; bit < 8 * 4 * AUTH_BYTES; bit++) {
			unsigned char *at = (unsigned char *)t.nonce;

			at[bit / 8] ^= (unsigned char)(1 << bit % 8);
			assert_false(auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side],
						AUTH_BYTES));
			at[bit / 8] ^= (unsigned char)(1 << bit % 8);
		}
		assert_false(
			auth_right(a, &t, (enum auth_side)side, whole, 4, proof[side], AUTH_BYTES));
		assert_false(auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side],
					AUTH_BYTES - 1));
		assert_false(auth_right(a, &t, (enum auth_side)side, whole, 5, NULL, 0));
	}
	/* With the same key, a proof for a client is none for a node, and the other way round. */
	for (int side = 0; side < 2; side++)
		for (int what = 0; what < AUTH_FOR_NR; what++) {
			t.what = (enum auth_for)what;
			assert_true(auth_prove(a, &t, (enum auth_side)side, whole, 5, proof[side]));
			assert_true(auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side],
					       AUTH_BYTES));
			t.what = (enum auth_for)(1 - what);
			assert_false(auth_right(a, &t, (enum auth_side)side, whole, 5, proof[side],
						AUTH_BYTES));
		}
	/* A side does not take its own proof for that of the other side. */
	for (int side = 0; side < 2; side++)
		assert_true(auth_prove(a, &t, (enum auth_side)side, whole, 5, proof[side]));
	assert_true(auth_right(a, &t, AUTH_DIALLER, whole, 5, proof[AUTH_DIALLER], AUTH_BYTES));
	assert_false(auth_right(a, &t, AUTH_DIALLER, whole, 5, proof[AUTH_LISTENER], AUTH_BYTES));
	assert_false(auth_right(a, &t, AUTH_LISTENER, whole, 5, proof[AUTH_DIALLER], AUTH_BYTES));
	auth_close(&a);
}

/* While a secret is replaced, a file holds two. Both are accepted, but a dialler proves with the
 * first one, so every listener needs the new secret before a dialler puts it first. */
static void test_rotation(void **state)
{
	struct auth *old = keys(KEY_1 "\n"), *both = keys(KEY_2 "\n" KEY_1 "\n"),
		    *new = keys(KEY_2 "\n"), *other = keys(KEY_3 "\n");
	struct auth *const dialler[] = {old, both, new, other}, *const listener[] = {old, both, new,
										     other};
	static const bool meet[4][4] = {{1, 1, 0, 0}, {0, 1, 1, 0}, {0, 1, 1, 0}, {0, 0, 0, 1}};

	(void)state;
	for (int d = 0; d < 4; d++)
		for (int l = 0; l < 4; l++) {
			struct auth_talk t = talk_of(old), u = t;
			unsigned char proof[AUTH_BYTES];

			assert_true(auth_prove(dialler[d], &t, AUTH_DIALLER, "c", 1, proof));
			assert_int_equal(auth_right(listener[l], &u, AUTH_DIALLER, "c", 1, proof,
						    AUTH_BYTES),
					 meet[d][l]);
			if (!meet[d][l])
				continue;
			/* The listener answers with the key that the dialler used. */
			assert_true(auth_prove(listener[l], &u, AUTH_LISTENER, "d", 1, proof));
			assert_true(auth_right(dialler[d], &t, AUTH_LISTENER, "d", 1, proof,
					       AUTH_BYTES));
		}
	auth_close(&old);
	auth_close(&both);
	auth_close(&new);
	auth_close(&other);
}

/* --- the messages --- */

struct end {
	struct prove p;
	Shard__Hello whole, brief, heard;
	Shard__Auth auth;
	unsigned char body[512];
	size_t bytes;
};

static void end_begin(struct end *n, enum auth_side side)
{
	memset(n, 0, sizeof(*n));
	shard__hello__init(&n->whole);
	n->whole.wire_min = n->whole.wire_max = WIRE_VERSION;
	n->whole.features = FEATURE_BODY_SUM;
	n->whole.role = side == AUTH_DIALLER ? ROLE_TRAINER : ROLE_NODE;
	n->whole.run_id = (char *)(uintptr_t) "private";
	n->whole.node = (char *)(uintptr_t) "a";
	prove_begin(&n->p, side, AUTH_FOR_CLIENT);
}

static void say(struct end *n, const struct auth *a)
{
	struct err e;

	assert_int_equal(prove_brief(&n->p, a, &n->whole, &n->brief, &e), SHARD_OK);
	n->bytes = shard__hello__pack(&n->brief, n->body);
	assert_true(n->bytes <= sizeof(n->body));
	/* The brief HELLO leaves it out. */
	assert_string_equal(n->brief.run_id, "");
}

static enum shard_status hear(struct end *n, const struct auth *a, const struct end *from)
{
	struct err e;

	return prove_heard(&n->p, a, &from->brief, from->body, (uint32_t)from->bytes, &e);
}

static void open_both(struct end *c, struct end *d, const struct auth *a)
{
	struct err e;

	end_begin(c, AUTH_DIALLER);
	end_begin(d, AUTH_LISTENER);
	say(c, a);
	assert_int_equal(hear(d, a, c), SHARD_OK);
	say(d, a);
	assert_int_equal(hear(c, a, d), SHARD_OK);
	assert_int_equal(prove_own(&c->p, a, &c->whole, &c->auth, &e), SHARD_OK);
}

/* Two sides with one secret accept each other. A replayed exchange and a changed HELLO fail. */
static void test_exchange(void **state)
{
	struct auth *a = keys(KEY_1 "\n");
	struct end c, d, again, changed;
	struct err e;

	(void)state;
	open_both(&c, &d, a);
	assert_true(prove_theirs(&d.p, a, &c.auth));
	assert_int_equal(prove_own(&d.p, a, &d.whole, &d.auth, &e), SHARD_OK);
	assert_true(prove_theirs(&c.p, a, &d.auth));
	assert_false(prove_theirs(&c.p, a, &c.auth)); /* Its own proof, sent back. */

	/* A recorded exchange does not work again, because the listener takes a new nonce. */
	end_begin(&again, AUTH_LISTENER);
	assert_int_equal(hear(&again, a, &c), SHARD_OK);
	say(&again, a);
	assert_memory_not_equal(again.p.talk.nonce[AUTH_LISTENER], d.p.talk.nonce[AUTH_LISTENER],
				AUTH_BYTES);
	assert_false(prove_theirs(&again.p, a, &c.auth));
	prove_end(&again.p);

	/* One bit in each byte of the dialler's HELLO is changed on its way to the listener. */
	for (size_t i = 0; i < c.bytes; i++) {
		changed = c;
		changed.body[i] ^= 1;
		end_begin(&again, AUTH_LISTENER);
		assert_int_equal(hear(&again, a, &changed), SHARD_OK);
		again.p.talk = (struct auth_talk){.key = 0};
		/* In the worst case the nonces are those of the recorded exchange. */
		memcpy(again.p.talk.nonce, d.p.talk.nonce, sizeof(again.p.talk.nonce));
		memcpy(again.p.talk.said, d.p.talk.said, sizeof(again.p.talk.said));
		assert_true(prove_theirs(&again.p, a, &c.auth));
		assert_true(auth_said(a, &again.p.talk, AUTH_DIALLER, changed.body, changed.bytes));
		assert_false(prove_theirs(&again.p, a, &c.auth));
	}
	prove_end(&c.p);
	prove_end(&d.p);
	auth_close(&a);
}

/* A proof that was made for one channel of TLS does not hold in another, nor without one. */
static void test_channel(void **state)
{
	struct auth *a = keys(KEY_1 "\n");
	struct end c, d;
	struct err e;

	(void)state;
	end_begin(&c, AUTH_DIALLER);
	end_begin(&d, AUTH_LISTENER);
	say(&c, a);
	assert_int_equal(hear(&d, a, &c), SHARD_OK);
	say(&d, a);
	assert_int_equal(hear(&c, a, &d), SHARD_OK);
	c.p.talk.bound = d.p.talk.bound = true;
	memset(c.p.talk.channel, 7, AUTH_BYTES);
	assert_int_equal(prove_own(&c.p, a, &c.whole, &c.auth, &e), SHARD_OK);
	assert_false(prove_theirs(&d.p, a, &c.auth));
	d.p.talk.bound = false;
	assert_false(prove_theirs(&d.p, a, &c.auth));
	d.p.talk.bound = true;
	memset(d.p.talk.channel, 7, AUTH_BYTES);
	assert_true(prove_theirs(&d.p, a, &c.auth));
	prove_end(&c.p);
	prove_end(&d.p);
	auth_close(&a);
}

/* A nonce of a wrong length breaks the protocol. A dialler that does not offer to prove itself is
 * denied. */
static void test_malformed(void **state)
{
	struct auth *a = keys(KEY_1 "\n");
	struct end c, d;

	(void)state;
	end_begin(&c, AUTH_DIALLER);
	say(&c, a);
	for (size_t bytes = 0; bytes < 40; bytes++) {
		end_begin(&d, AUTH_LISTENER);
		c.brief.nonce.len = bytes;
		c.brief.nonce.data = c.body;
		assert_int_equal(hear(&d, a, &c), bytes == AUTH_BYTES ? SHARD_OK : SHARD_PROTOCOL);
		assert_int_equal(d.p.asked, bytes == AUTH_BYTES);
	}
	c.brief.features &= ~FEATURE_AUTH;
	end_begin(&d, AUTH_LISTENER);
	assert_int_equal(hear(&d, a, &c), SHARD_DENIED);
	prove_end(&c.p);
	auth_close(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_file),     cmocka_unit_test(test_credentials),
		cmocka_unit_test(test_vectors),  cmocka_unit_test(test_flipped),
		cmocka_unit_test(test_rotation), cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_channel),  cmocka_unit_test(test_malformed),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
