/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl verify` asks the daemons to compare all copies of each chunk of a model, weights and
 * moments, as of one step. Training is held while they are hashed, and goes on. A chunk whose
 * copies differ is printed with its nodes and with the one that is odd, and the exit code is 1. A
 * model that cannot be compared (a node is missing, one copy, no weights) is refused in the
 * daemon's words, and the other models that were named are compared all the same. --timeout bounds
 * the time without progress. */
#include "ctl/json.h"
#include "base/clock.h"
#include "ctl/saves.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

/* --- what people read --- */

static bool is_odd(const json_t *copy)
{
	return json_is_true(json_object_get(copy, "odd"));
}

static size_t odd_nr(const json_t *copies, bool odd)
{
	size_t i, nr = 0;
	json_t *c;

	json_array_foreach(copies, i, c)
		nr += is_odd(c) == odd;
	return nr;
}

/* "a, b and c", of the copies that are odd or of the others. */
static void print_nodes(const json_t *copies, bool odd)
{
	size_t i, at = 0, nr = odd_nr(copies, odd);
	json_t *c;

	json_array_foreach(copies, i, c) {
		if (is_odd(c) != odd)
			continue;
		printf("%s%s", at == 0 ? "" : at + 1 == nr ? " and " : ", ", ctl_text(c, "node"));
		at++;
	}
}

static void print_differs(const json_t *d)
{
	const json_t *copies = json_object_get(d, "copies");
	bool one = odd_nr(copies, true) == 1;

	printf("  chunk %lld differs: ", ctl_whole(d, "chunk"));
	if (!json_is_true(json_object_get(d, "majority"))) {
		printf("the copies of nodes ");
		print_nodes(copies, false);
		printf(", of which no majority is equal\n");
		return;
	}
	printf("the cop%s of node%s ", one ? "y" : "ies", one ? "" : "s");
	print_nodes(copies, true);
	printf(" %s odd, those of ", one ? "is" : "are");
	print_nodes(copies, false);
	printf(" are equal\n");
}

static void print_names(const char *what, const json_t *names)
{
	size_t i;
	json_t *n;

	json_array_foreach(names, i, n)
		printf("%s%s", i == 0 ? what : ", ", json_string_value(n));
}

static void print(const json_t *m)
{
	long long chunks = ctl_whole(m, "chunks"), differ = ctl_whole(m, "differ"),
		  alone = ctl_whole(m, "alone");
	const json_t *differs = json_object_get(m, "differs");
	char bytes[CTL_NUMBER_BYTES];
	json_t *d;
	size_t i;

	printf("\"%s\": step %lld: %lld chunk%s, %lld copies", ctl_text(m, "name"),
	       ctl_whole(m, "step"), chunks, chunks == 1 ? "" : "s", ctl_whole(m, "copies"));
	print_names(" on nodes ", json_object_get(m, "nodes"));
	if (differ > 0)
		printf(": %lld chunk%s", differ, differ == 1 ? " differs" : "s differ");
	else if (ctl_whole(m, "copies") > 0)
		printf(": all equal");
	printf("; %s hashed, training was held for %.3f s\n",
	       ctl_bytes(bytes, (double)ctl_whole(m, "bytes")),
	       json_number_value(json_object_get(m, "hold_seconds")));
	json_array_foreach(differs, i, d)
		print_differs(d);
	if ((size_t)differ > json_array_size(differs))
		printf("  and %lld more\n", differ - (long long)json_array_size(differs));
	if (alone == 0)
		return;
	printf("  %lld chunk%s with one copy, which was compared with nothing", alone,
	       alone == 1 ? "" : "s");
	print_names(": away or catching up: ", json_object_get(m, "without"));
	printf("\n");
}

/* --- one model after the other --- */

/* Returns what the daemon found, or why it did not look. */
static json_t *verify(const struct ctl_options *o, shard_client *c, const char *name,
		      enum ctl_exit *exit)
{
	struct ctl_options text_only = *o;
	struct bar bar;
	struct ckpt_ask a = {.name = name,
			     .timeout_ms = saves_silence_ms(o),
			     .progress = o->json ? NULL : saves_progress,
			     .arg = &bar};
	Shard__Attach q = SHARD__ATTACH__INIT;
	json_t *found = NULL;
	enum shard_status rc;

	q.name = (char *)(uintptr_t)name; /* Packing only reads. */

	bar_init(&bar, "verify", 0, isatty(STDERR_FILENO) == 1);
	pthread_mutex_lock(&c->lock);
	rc = saves_ask_json(c, OP_VERIFY, &q.base, &a, &found);
	pthread_mutex_unlock(&c->lock);
	bar_done(&bar);
	*exit = CTL_OK;
	if (rc == SHARD_OK && ctl_whole(found, "differ") > 0)
		*exit = CTL_FAILED;
	if (rc == SHARD_OK)
		return found;
	json_decref(found);
	found = json_pack("{s:s, s:s, s:s}", "name", name, "error", shard_error(), "status",
			  shard_name(rc));
	text_only.json = false; /* The error of one model is in its place in the list. */
	*exit = ctl_fail_as(&text_only, rc, "verify", shard_error());
	return found;
}

enum ctl_exit ctl_verify(const struct ctl_options *o)
{
	json_t *models = json_array();
	shard_client *c = NULL;
	enum ctl_exit exit = saves_connect(o, &c);

	for (int i = 0; i < o->words_nr && c != NULL; i++) {
		enum ctl_exit one;
		json_t *m = verify(o, c, o->words[i], &one);

		if (exit == CTL_OK || one == CTL_FAILED) /* A difference counts most. */
			exit = one;
		if (!o->json && json_object_get(m, "error") == NULL)
			print(m);
		json_array_append_new(models, m);
	}
	if (c != NULL && o->json && ctl_print(json_pack("{s:O}", "models", models)) != CTL_OK)
		exit = exit == CTL_OK ? CTL_FAILED : exit;
	json_decref(models);
	shard_disconnect(&c);
	return exit;
}
