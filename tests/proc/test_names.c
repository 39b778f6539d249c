// SPDX-License-Identifier: Apache-2.0
/* Gives one table of names to both ends: to the library, and to a daemon whose client does not use
 * the library. Both must accept the same names of models and tensors. Otherwise a definition that
 * the library accepts would be refused by the daemon, or would end the connection. */
#include "base/check.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/trainer.h"
#include "wire/layout.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define X8   "xxxxxxxx"
#define X64  X8 X8 X8 X8 X8 X8 X8 X8
#define X255 X64 X64 X64 X8 X8 X8 X8 X8 X8 X8 "xxxxxxx"

static const struct row {
	const char *name;
	bool of_model, of_tensor; /* Whether a model and a tensor may be called that. */
} rows[] = {
	{"", false, false},
	{"a", true, true},
	{"h.0.attn_w-2", true, true},
	{"7", true, true},
	{"-a", false, true},
	{"a-", true, true},
	{"Gpt", false, true},
	{"a/b", false, true},
	{"a:b+c", false, true},
	{"a b", false, false},
	{" a", false, false},
	{"a\"b", false, false},
	{"a'b\\", false, true},
	{"a\tb", false, false},
	{"a\nb", false, false},
	{"a\x01", false, false},
	{"a\x7f", false, false},
	{"\xc3\xa9t\xc3\xa9", false, true}, /* UTF-8. */
	{"\xe9t\xe9", false, false},        /* Latin-1. */
	{"a\xc0\x80", false, false},        /* An overlong form. */
	{"\xed\xa0\x80", false, false},     /* Half of a surrogate pair. */
	{X64, true, true},
	{X64 "y", false, true},
	{X255, false, true},
	{X255 "y", false, false},
};

/* The models of each row have names of their own, so that all definitions are new. */
static struct shard_spec spec_of(const struct row *row, bool of_model, struct shard_tensor *t,
				 char *model, size_t bytes)
{
	struct shard_spec s = SHARD_INIT(struct shard_spec);

	snprintf(model, bytes, "m%zu", (size_t)(row - rows));
	*t = (struct shard_tensor){.name = of_model ? "w" : row->name, .ndim = 1, .shape = {64}};
	s.name = of_model ? row->name : model;
	s.tensors = t;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd chunk_elems=1024 max_world=1";
	return s;
}

/* Defines without the library. */
static bool daemon_takes(const char *address, const struct shard_spec *s)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Tensor t, *list[2];
	Shard__Define d;
	Shard__Spec w;
	uint64_t shape;
	struct evil v;
	bool taken;

	evil_open(&v, address, EVIL_GREETED);
	evil_spec(&d, &w, &t, list, &shape);
	w.name = (char *)(uintptr_t)s->name;
	w.settings = (char *)(uintptr_t)s->settings;
	w.image = s->image;
	w.grad = s->grad;
	t.name = (char *)(uintptr_t)s->tensors[0].name;
	shape = s->tensors[0].shape[0];
	raw_send(&v.r, &h, &d.base);
	taken = raw_recv(&v.r) && v.r.head.op == OP_DEFINE;
	raw_close(&v.r);
	return taken;
}

static bool library_takes(const char *address, const struct shard_spec *s)
{
	enum shard_status rc;
	struct trainer t;

	trainer_connect(&t, address);
	rc = shard_define(t.client, s, &t.model, &t.created);
	if (rc != SHARD_OK && rc != SHARD_BAD_ARG)
		fail_msg("%s: %s", shard_name(rc), shard_error());
	trainer_end(&t);
	return rc == SHARD_OK;
}

static void test_names(void **state)
{
	const struct inproc_conf conf = {.nodes = 1};
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	for (size_t i = 0; i < 2 * NR(rows); i++) {
		const struct row *row = &rows[i / 2];
		bool of_model = i % 2 == 0, want = of_model ? row->of_model : row->of_tensor;
		struct shard_tensor t;
		char model[16];
		struct shard_spec s = spec_of(row, of_model, &t, model, sizeof(model));

		if (library_takes(c.node[0].unix_address, &s) != want)
			fail_msg("library: %s \"%s\"", of_model ? "model" : "tensor", row->name);
		if (daemon_takes(c.node[0].unix_address, &s) != want)
			fail_msg("daemon: %s \"%s\"", of_model ? "model" : "tensor", row->name);
	}
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
