/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl model` manages models. list and show print the daemon's own JSON in a readable form.
 * drop, set, pause, resume and kick are one request each. Their answer comes from the coordinator
 * once the change holds on every node. Subcommands are rows of a table. It fails with the daemon's
 * sentence and the exit code for its status (ctl_exit_of), which is 5 for what the daemon
 * refuses. */
#include "ctl/ctl.h"
#include "ctl/json.h"

#include "base/check.h"
#include "base/clock.h"
#include "manage.h"
#include "wire/dtype.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORCE, WHY, TENSORS };

const struct argp_option ctl_show_options[] = {
	{"tensors", CTL_KEY + TENSORS, NULL, 0, "each tensor, too", 0},
	{0},
};

const struct argp_option ctl_drop_options[] = {
	{"force", CTL_KEY + FORCE, NULL, 0,
	 "joined trainers are put out, and a save is cut off; a node that is away is told when it "
	 "is back",
	 0},
	{0},
};

const struct argp_option ctl_kick_options[] = {
	{"why", CTL_KEY + WHY, "TEXT", 0, "what the trainer and its world are told", 0},
	{0},
};

struct subcommand {
	const char *name;
	enum ctl_exit (*run)(const struct ctl_options *o, shard_client *c,
			     const struct subcommand *s);
	enum manage_action action;
	const char *done; /* What is printed after "NAME is". NULL: say_changed() prints. */
};

static enum ctl_exit failed(const struct ctl_options *o, enum shard_status st)
{
	return ctl_fail_as(o, st, "", shard_error());
}

/* --- what the daemon says --- */

static enum shard_status stats(shard_client *c, json_t **out)
{
	size_t bytes = 1 << 16;
	enum shard_status st;
	char *json = NULL;

	do { /* The answer may have grown meanwhile. */
		free(json);
		json = malloc(bytes);
		st = json ? shard_stats(c, json, &bytes) : text_no_memory("an answer");
	} while (st == SHARD_RANGE);
	*out = st == SHARD_OK ? json_loads(json, 0, NULL) : NULL;
	if (st == SHARD_OK && *out == NULL)
		st = text_fail(SHARD_PROTOCOL, "the daemon's answer is no JSON");
	free(json);
	return st;
}

static const char *owner(const json_t *m, char out[32])
{
	const json_t *o = json_object_get(m, "owner");

	if (json_is_object(o))
		snprintf(out, 32, "%lld:%lld", ctl_whole(o, "uid"), ctl_whole(o, "gid"));
	else
		snprintf(out, 32, "nobody");
	return out;
}

/* Of the ranks of the last attempt, those that are not known to be gone. */
static json_int_t in_world(const json_t *m)
{
	json_int_t nr = 0;
	size_t i;
	json_t *r;

	json_array_foreach(json_object_get(m, "world"), i, r)
		nr += strcmp(ctl_text(r, "state"), "lost") != 0;
	return nr;
}

/* The few fields that list prints, as JSON. */
static json_t *brief(const json_t *m)
{
	json_t *o = json_object();

	for (size_t i = 0; i < 6; i++) {
		static const char *const keys[] = {"name", "owner",      "mode",
						   "step", "generation", "waits"};
		json_t *v = json_object_get(m, keys[i]);

		if (v)
			json_object_set(o, keys[i], v);
	}
	json_object_set_new(o, "world", json_integer(in_world(m)));
	json_object_set_new(o, "state", json_string(ctl_text(m, "state")));
	json_object_set_new(o, "bytes",
			    json_integer(ctl_whole(json_object_get(m, "memory"), "total")));
	return o;
}

static enum ctl_exit list(const struct ctl_options *o, shard_client *c,
			  const struct subcommand *sub)
{
	char who[32], bytes[CTL_NUMBER_BYTES];
	json_t *root, *m, *all = json_array();
	enum shard_status st = stats(c, &root);
	size_t i;

	(void)sub;
	if (st == SHARD_OK && !o->json)
		printf("%-24s %-12s %-5s %10s %4s %6s %-10s %s\n", "NAME", "OWNER", "MODE", "STEP",
		       "GEN", "WORLD", "STATE", "BYTES HERE");
	json_array_foreach(json_object_get(root, "models"), i, m) {
		json_t *b = brief(m);

		if (!o->json)
			printf("%-24s %-12s %-5s %10lld %4lld %6lld %-10s %s\n",
			       ctl_text(b, "name"), owner(m, who), ctl_text(b, "mode"),
			       ctl_whole(b, "step"), ctl_whole(b, "generation"),
			       ctl_whole(b, "world"), ctl_text(b, "state"),
			       ctl_bytes(bytes, (double)ctl_whole(b, "bytes")));
		json_array_append_new(all, b);
	}
	json_decref(root);
	if (st == SHARD_OK && o->json)
		ctl_print(json_pack("{s:o}", "models", all));
	else
		json_decref(all);
	return st == SHARD_OK ? CTL_OK : failed(o, st);
}

/* --- show --- */

static json_t *tensor_json(const struct shard_info *t)
{
	json_t *shape = json_array();

	for (uint32_t d = 0; d < t->ndim; d++)
		json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
	return json_pack("{s:s, s:o, s:I, s:i, s:b, s:s}", "name", t->name, "shape", shape, "numel",
			 (json_int_t)t->numel, "group", (int)t->group, "frozen",
			 (t->flags & SHARD_FROZEN) != 0, "image",
			 dtype_name((enum shard_dtype)t->image));
}

static enum shard_status tensors(shard_client *c, const char *name, json_t **out)
{
	struct shard_info t = SHARD_INIT(struct shard_info);
	shard_model *m = NULL;
	enum shard_status st = shard_attach(c, name, &m);

	*out = json_array();
	for (uint32_t i = 0; st == SHARD_OK && i < shard_tensors(m); i++)
		if ((st = shard_tensor_info(m, i, &t)) == SHARD_OK)
			json_array_append_new(*out, tensor_json(&t));
	shard_detach(&m);
	return st;
}

static void print_tensors(const json_t *list)
{
	size_t i, d;
	json_t *t, *n;

	json_array_foreach((json_t *)(uintptr_t)list, i, t) {
		printf("  %-40s group %lld%s [", ctl_text(t, "name"), ctl_whole(t, "group"),
		       json_is_true(json_object_get(t, "frozen")) ? ", frozen" : "");
		json_array_foreach(json_object_get(t, "shape"), d, n)
			printf("%s%lld", d > 0 ? ", " : "", (long long)json_integer_value(n));
		printf("]\n");
	}
}

static void print_tuned(const json_t *tuned, const char *key)
{
	const json_t *v = json_object_get(tuned, key);

	if (json_is_number(v))
		printf("tuned:      %s = %.9g, from the next step after it was set\n", key,
		       json_number_value(v));
}

static void print_model(const json_t *m, const json_t *root)
{
	const json_t *chunks = json_object_get(m, "chunks"), *tuned = json_object_get(m, "tuned");
	char who[32], bytes[CTL_NUMBER_BYTES];
	const char *node;
	size_t i;
	json_t *v;

	printf("model:      %s, run %s\n", ctl_text(m, "name"), ctl_text(root, "run_id"));
	printf("owner:      %s, mode %s\n", owner(m, who), ctl_text(m, "mode"));
	printf("state:      %s, step %lld (%lld applied, %lld skipped), generation %lld, world "
	       "%zu\n",
	       ctl_text(m, "state"), ctl_whole(m, "step"), ctl_whole(m, "applied"),
	       ctl_whole(m, "skipped"), ctl_whole(m, "generation"),
	       json_array_size(json_object_get(m, "world")));
	if (ctl_text(m, "lost")[0])
		printf("lost:       %s\n", ctl_text(m, "lost"));
	if (ctl_text(m, "waits")[0])
		printf("waits:      %s\n", ctl_text(m, "waits"));
	printf("parameters: %lld in %lld tensors, gradients %s\n", ctl_whole(m, "numel"),
	       ctl_whole(m, "tensors"), ctl_text(m, "grad"));
	printf("groups:    ");
	json_array_foreach(json_object_get(m, "groups"), i, v)
		printf(" %s", json_string_value(v));
	printf("%s\nplacement:  %lld chunks of %lld elements",
	       json_array_size(json_object_get(m, "groups")) ? "" : " none",
	       ctl_whole(chunks, "nr"), ctl_whole(chunks, "elems"));
	if (ctl_whole(chunks, "copies") > 1)
		printf(", %lld copies of each", ctl_whole(chunks, "copies"));
	printf(":");
	json_object_foreach(json_object_get(chunks, "per_node"), node, v)
		printf(" %s %lld", node, (long long)json_integer_value(v));
	printf("\nmemory:     %s on node %s\n",
	       ctl_bytes(bytes, (double)ctl_whole(json_object_get(m, "memory"), "total")),
	       ctl_text(root, "node"));
	print_tuned(tuned, "lr");
	print_tuned(tuned, "clip");
	json_object_foreach(json_object_get(tuned, "hyper"), node, v)
		print_tuned(json_object_get(tuned, "hyper"), node);
	printf("settings:\n");
	/* No value contains a blank. */
	for (const char *at = ctl_text(m, "settings"); *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");

		printf("  %.*s\n", (int)n, at);
		at += n;
	}
}

static enum ctl_exit show(const struct ctl_options *o, shard_client *c,
			  const struct subcommand *sub)
{
	json_t *root = NULL, *m, *found = NULL, *listed = NULL;
	const char *name = o->words[1];
	enum shard_status st = stats(c, &root);
	size_t i;

	(void)sub;
	json_array_foreach(json_object_get(root, "models"), i, m)
		if (strcmp(ctl_text(m, "name"), name) == 0 &&
		    strcmp(ctl_text(m, "state"), "private") != 0)
			found = m;
	/* Where no model was found, the attach fails with the daemon's own reason. */
	if (st == SHARD_OK && (!found || o->value[TENSORS]))
		st = tensors(c, name, &listed);
	if (st == SHARD_OK && !found)
		st = text_fail(SHARD_AGAIN, "\"%s\" was defined a moment ago: ask again", name);
	if (st == SHARD_OK && o->json) {
		json_object_set(found, "run_id", json_object_get(root, "run_id"));
		if (listed)
			json_object_set(found, "tensor_list", listed);
		ctl_print(json_incref(found));
	} else if (st == SHARD_OK) {
		print_model(found, root);
		if (listed)
			printf("tensors:\n"), print_tensors(listed);
	}
	json_decref(listed);
	json_decref(root);
	return st == SHARD_OK ? CTL_OK : failed(o, st);
}

/* --- what changes something --- */

/* Reads a rank, or NODE:PID into m and node. A node's name has no colon. */
static bool whom(const char *text, Shard__Manage *m, char node[64])
{
	const char *colon = strchr(text, ':'), *number = colon ? colon + 1 : text;
	char *end = NULL;
	unsigned long value = strtoul(number, &end, 10);

	if (number[0] < '0' || number[0] > '9' || *end || value > UINT32_MAX)
		return false;
	if (!colon) {
		m->rank = (uint32_t)value;
		return true;
	}
	if (colon == text || colon - text > 63)
		return false;
	snprintf(node, 64, "%.*s", (int)(colon - text), text);
	m->action = MANAGE_KICK_PROCESS;
	m->node = node;
	m->pid = (uint32_t)value;
	return true;
}

/* The model as the daemon shows it now. NULL: it is not there, or may not be read. The caller frees
 * *root. */
static json_t *model_now(shard_client *c, const char *name, json_t **root)
{
	size_t i;
	json_t *m;

	*root = NULL;
	if (stats(c, root) != SHARD_OK)
		return NULL;
	json_array_foreach(json_object_get(*root, "models"), i, m)
		if (strcmp(ctl_text(m, "name"), name) == 0 && json_object_get(m, "settings"))
			return m;
	return NULL;
}

/* The value of a key that can be set: what an operator has set, or what the model was defined with.
 * "": it is not known. */
static const char *value_now(const json_t *m, const char *key, char out[64])
{
	const json_t *tuned = json_object_get(m, "tuned"), *v = json_object_get(tuned, key);
	size_t n = strlen(key);

	if (!json_is_number(v))
		v = json_object_get(json_object_get(tuned, "hyper"), key);
	out[0] = 0;
	if (json_is_number(v)) {
		snprintf(out, 64, "%.9g", json_number_value(v));
		return out;
	}
	for (const char *at = ctl_text(m, "settings"); *at; at += strspn(at, " ")) {
		size_t word = strcspn(at, " ");

		if (word > n && strncmp(at, key, n) == 0 && at[n] == '=')
			snprintf(out, 64, "%.*s", (int)(word - n - 1), at + n + 1);
		at += word;
	}
	return out;
}

/* What a set or a resume has changed. before and now are NULL where they are not known. */
static void say_changed(const struct ctl_options *o, const struct subcommand *sub,
			const json_t *before, const json_t *now)
{
	bool was = json_is_true(json_object_get(before, "paused")) ||
		   json_is_true(json_object_get(before, "diverged"));
	long long step = ctl_whole(now, "step");
	const char *name = o->words[1];
	char old[64], new[64];
	json_t *out = json_pack("{s:s, s:s}", "name", name, "done", sub->name);

	if (sub->action == MANAGE_SET) {
		value_now(before, o->words[2], old);
		value_now(now, o->words[2], new);
		if (new[0] == 0)
			snprintf(new, sizeof(new), "%.60s", o->words[3]);
		json_object_set_new(out, "key", json_string(o->words[2]));
		json_object_set_new(out, "from", old[0] != 0 ? json_string(old) : json_null());
		json_object_set_new(out, "to", json_string(new));
	}
	json_object_set_new(out, "step", now != NULL ? json_integer(step) : json_null());
	if (o->json) {
		ctl_print(out);
		return;
	}
	json_decref(out);
	if (sub->action == MANAGE_SET)
		printf("%s: %s %s -> %s from the next step on", name, o->words[2],
		       old[0] != 0 ? old : "?", new);
	else if (before != NULL && !was)
		printf("%s was not paused", name);
	else
		printf("%s resumed", name);
	if (now != NULL)
		printf(sub->action == MANAGE_SET ? "; it is at step %lld" : " at step %lld", step);
	printf("\n");
}

static enum ctl_exit change(const struct ctl_options *o, shard_client *c,
			    const struct subcommand *sub)
{
	Shard__Manage m = SHARD__MANAGE__INIT;
	json_t *before_root = NULL, *now_root = NULL, *before = NULL;
	enum shard_status st;
	char node[64];

	m.name = o->words[1];
	m.action = sub->action;
	m.force = o->value[FORCE] != NULL;
	m.why = (char *)(uintptr_t)(o->value[WHY] ? o->value[WHY] : "");
	if (sub->action == MANAGE_SET) {
		m.key = o->words[2];
		m.value = o->words[3];
	}
	if (sub->action == MANAGE_KICK && !whom(o->words[2], &m, node))
		return ctl_fail(
			o, CTL_USAGE,
			"kick: \"%s\": choose a rank, or a node and the number of a process "
			"as in b:4411",
			o->words[2]);
	if (sub->done == NULL)
		before = model_now(c, m.name, &before_root);
	st = manage_ask(c, &m, (int64_t)(o->timeout_ns / NS_PER_MS));
	if (st != SHARD_OK) {
		json_decref(before_root);
		return failed(o, st);
	}
	if (sub->done == NULL) {
		say_changed(o, sub, before, model_now(c, m.name, &now_root));
		json_decref(before_root);
		json_decref(now_root);
	} else if (o->json)
		ctl_print(json_pack("{s:s, s:s}", "name", m.name, "done", sub->name));
	else
		printf("%s is %s\n", m.name,
		       m.action == MANAGE_KICK_PROCESS ? "rid of that trainer" : sub->done);
	return CTL_OK;
}

static const struct subcommand rows[] = {
	{"list", list, 0, NULL},
	{"show", show, 0, NULL},
	{"drop", change, MANAGE_DROP, "dropped"},
	{"set", change, MANAGE_SET, NULL},
	{"pause", change, MANAGE_PAUSE, "paused"},
	{"resume", change, MANAGE_RESUME, NULL},
	{"kick", change, MANAGE_KICK, "rid of that rank"},
};

/* `shardctl kick` is `shardctl model kick`. */
enum ctl_exit ctl_kick(const struct ctl_options *o)
{
	char kick[] = "kick";
	char *words[] = {kick, o->words[0], o->words[1]};
	struct ctl_options as = *o;

	as.words = words;
	as.words_nr = 3;
	return ctl_model(&as);
}

enum ctl_exit ctl_model(const struct ctl_options *o)
{
	struct shard_connect_opts opts = SHARD_INIT(struct shard_connect_opts);
	const struct subcommand *s = NULL;
	shard_client *c = NULL;
	enum shard_status st;
	enum ctl_exit rc;

	for (size_t i = 0; i < NR(rows) && !s; i++)
		if (strcmp(rows[i].name, o->words[0]) == 0)
			s = &rows[i];
	CHECK(s); /* The rows of main.c are these, and have counted the words. */
	opts.address = o->address;
	opts.secret = o->secret;
	opts.tls = o->tls;
	opts.timeout_ms = (int64_t)(o->timeout_ns / NS_PER_MS);
	if ((st = shard_connect(&c, &opts)) != SHARD_OK)
		return failed(o, st);
	c->timeout_ms = opts.timeout_ms;
	rc = s->run(o, c, s);
	shard_disconnect(&c);
	return rc;
}
