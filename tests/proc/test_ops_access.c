// SPDX-License-Identifier: Apache-2.0
/* Another user sends every op that a trainer or a tool may send, about a model that belongs to
 * somebody else. For a private model each op is refused. For a model that this user may read, the
 * ops that change it are refused. An op without a row in this file fails the test. The test needs
 * root to become another user. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "lib/tool.h"
#include "shard.h"
#include "shard.pb-c.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { STRANGER = 12345, ELEMS = 64, DROP = 1 };

static struct {
	struct inproc c;
	struct keep keep;
	const char *address;
} g;

enum need { NONE = 1, READS, WRITES };

static char name[8]; /* The model that the ops are about. */
static char keep_dir[80];

static Shard__Define define_body;
static Shard__Attach attach_body;
static Shard__Read read_body;
static Shard__Manage manage_body;
static Shard__Save save_body;
static Shard__Attach verify_body;
static Shard__History history_body;
static Shard__Restore restore_body;
static Shard__Spec spec;

/* What a session may send. NONE: it names no model, or is for a session that has joined one. */
static const struct {
	enum need need;
	const ProtobufCMessage *body;
} asks[OP_NR] = {
	[OP_HELLO] = {.need = NONE},
	[OP_ERROR] = {.need = NONE},
	[OP_PING] = {.need = NONE},
	[OP_PONG] = {.need = NONE},
	[OP_AUTH] = {.need = NONE},
	[OP_DEFINE] = {.need = READS, .body = &define_body.base},
	[OP_WRITE] = {.need = WRITES},
	[OP_SEAL] = {.need = WRITES},
	[OP_READ] = {.need = READS, .body = &read_body.base},
	[OP_JOIN] = {.need = WRITES},
	[OP_LEAVE] = {.need = NONE},
	[OP_STATUS] = {.need = NONE}, /* It is tested below. */
	[OP_WAITS] = {.need = READS},
	[OP_ATTACH] = {.need = READS, .body = &attach_body.base},
	[OP_MANAGE] = {.need = WRITES, .body = &manage_body.base},
	[OP_SAVE] = {.need = WRITES, .body = &save_body.base},
	[OP_RESTORE] = {.need = WRITES, .body = &restore_body.base},
	[OP_VERIFY] = {.need = WRITES, .body = &verify_body.base},
	[OP_HISTORY] = {.need = READS, .body = &history_body.base},
	[OP_DEVICE] = {.need = NONE},
	[OP_MOVE] = {.need = NONE}, /* Only root may, whatever the model: test_moves. */
	[OP_BLOB] = {.need = READS},
	[OP_PUSH_DATA] = {.need = NONE},
	[OP_PUSH] = {.need = NONE},
	[OP_READY] = {.need = NONE},
	[OP_ABANDON] = {.need = NONE},
	[OP_IMAGE_ASK] = {.need = NONE},
};

static void fill_bodies(void)
{
	static Shard__Tensor tensor, *tensors[1] = {&tensor};
	static uint64_t shape = ELEMS;
	static char w[] = "w", settings[] = "optimizer=sgd";

	shard__tensor__init(&tensor);
	tensor.name = w;
	tensor.n_shape = 1;
	tensor.shape = &shape;
	shard__spec__init(&spec);
	spec.name = name;
	spec.n_tensors = 1;
	spec.tensors = tensors;
	spec.image = spec.grad = SHARD_F32;
	spec.settings = settings;
	shard__define__init(&define_body);
	define_body.spec = &spec;
	shard__attach__init(&attach_body);
	attach_body.name = name;
	shard__read__init(&read_body);
	read_body.kind = SHARD_MASTER;
	read_body.count = 1;
	shard__manage__init(&manage_body);
	manage_body.name = name;
	manage_body.action = DROP;
	manage_body.force = true;
	shard__save__init(&save_body);
	save_body.name = name;
	shard__attach__init(&verify_body);
	verify_body.name = name;
	shard__history__init(&history_body);
	history_body.name = name;
	shard__restore__init(&restore_body);
	restore_body.dir = keep_dir;
	restore_body.force = true;
}

/* --- the process of the other user --- */

/* Returns the status and the text of ERROR. SHARD_OK: the op was answered. */
static enum shard_status answered(struct raw *r, uint16_t op, char text[512])
{
	enum shard_status st = SHARD_OK;
	Shard__Error *e;

	text[0] = 0;
	do
		if (!raw_recv(r))
			return SHARD_CLOSED;
	while (r->head.attempt != op || !(r->head.flags & WIRE_REPLY));
	if (r->head.op != OP_ERROR)
		return SHARD_OK;
	e = shard__error__unpack(NULL, r->head.body_bytes, r->body);
	CHECK(e != NULL);
	st = (enum shard_status)e->status;
	snprintf(text, 512, "%s", e->text);
	shard__error__free_unpacked(e, NULL);
	return st;
}

static int ask_all(const char *model, uint32_t id, bool readable)
{
	static float weights[ELEMS];
	int wrong = 0;

	snprintf(name, sizeof(name), "%s", model);
	snprintf(keep_dir, sizeof(keep_dir), "%.60s/%s", g.keep.dir, model);
	for (uint16_t op = 1; op < OP_NR; op++) {
		const struct wire_op_row *row = wire_op(op);
		struct wire_head h = {.op = op, .attempt = op, .model = id, .generation = 1};
		bool denied = asks[op].need == WRITES || !readable;
		enum shard_status st;
		char text[512];
		struct raw r;

		if (row == NULL || !(row->from & (BIT(ROLE_TRAINER) | BIT(ROLE_CTL))) ||
		    asks[op].need == NONE)
			continue;
		if (asks[op].need == 0) {
			fprintf(stderr, "%s has no row in this test\n", row->name);
			wrong++;
			continue;
		}
		raw_connect(&r, g.address);
		raw_hello(&r, ROLE_TRAINER);
		h.chunk = op == OP_WRITE ? SHARD_MASTER : 0;
		if (op == OP_WRITE)
			raw_head(&r, &h, weights, sizeof(weights));
		else
			raw_send(&r, &h, asks[op].body);
		st = answered(&r, op, text);
		if ((st == SHARD_DENIED) != denied || (denied && strstr(text, "mode 06") == NULL)) {
			fprintf(stderr, "%s of \"%s\": status %d: %s\n", row->name, name, st, text);
			wrong++;
		}
		raw_close(&r);
	}
	return wrong;
}

static int look_at_status(void)
{
	char *text;
	json_t *o, *m;
	struct raw r;
	size_t i;
	int seen = 0;

	raw_connect(&r, g.address);
	raw_hello(&r, ROLE_CTL);
	text = raw_status(&r);
	o = json_loads(text, 0, NULL);
	json_array_foreach(json_object_get(o, "models"), i, m) {
		bool hidden = strcmp(json_string_value(json_object_get(m, "name")), "m") == 0;

		if ((json_object_get(m, "step") == NULL) != hidden ||
		    (json_object_get(m, "waits") == NULL) != hidden ||
		    json_object_get(m, "mode") == NULL)
			break;
		seen++;
	}
	if (seen != 2)
		fprintf(stderr, "status: %s\n", text);
	json_decref(o);
	free(text);
	raw_close(&r);
	return seen == 2 ? 0 : 1;
}

static int stranger(void *arg)
{
	int wrong;

	(void)arg;
	if (setgid(STRANGER) != 0 || setuid(STRANGER) != 0)
		return 97;
	fill_bodies();
	wrong = ask_all("m", 1, false) + ask_all("r", 2, true) + look_at_status();
	return wrong > 90 ? 90 : wrong;
}

/* --- the owner --- */

static void make(const char *model, const char *settings)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	const struct shard_spec s = {.size = sizeof(s),
				     .name = model,
				     .tensors = &tensor,
				     .tensors_nr = 1,
				     .image = SHARD_F32,
				     .grad = SHARD_F32,
				     .settings = settings};
	static const float w[ELEMS];
	shard_client *client = crew_connect(g.address);
	shard_model *m;
	int created;

	MUST(shard_define(client, &s, &m, &created));
	MUST(shard_write(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w));
	MUST(shard_seal(m, 0));
	shard_disconnect(&client);
	keep_must_save(g.address, model, NULL, NULL);
}

static void must_be_there(const char *model)
{
	shard_client *client = crew_connect(g.address);
	shard_model *m;

	MUST(shard_attach(client, model, &m));
	shard_disconnect(&client);
}

/* Checks what the tool shows to that user. */
static void tool_says(const char *words, const char *part)
{
	char all[256], *out;

	snprintf(all, sizeof(all), "%s --address %s", words, g.address);
	(void)tool_run_as(STRANGER, &out, "shardctl", all);
	if (strstr(out, part) == NULL)
		fail_msg("shardctl %s: %s", all, out);
	free(out);
}

static void test_every_op(void **state)
{
	char tail[128];
	struct inproc_conf conf = {.daemon = "socket_mode = 0666", .tail = tail};

	(void)state;
	if (geteuid() != 0) {
		fprintf(stderr, "SKIPPED: needs root, to be another user\n");
		skip();
	}
	keep_init(&g.keep);
	snprintf(tail, sizeof(tail), "[model]\ncheckpoint_dir = %s\n", g.keep.dir);
	inproc_start(&g.c, &conf);
	CHECK(chmod(g.c.dir, 0755) == 0 && chmod(g.keep.dir, 0755) == 0);
	g.address = g.c.node[0].unix_address;
	make("m", "optimizer=sgd mode=0600");
	make("r", "optimizer=sgd mode=0644");
	/* At the node that carries out requests, and at the node that forwards them. */
	for (int n = 0; n < 2; n++) {
		g.address = g.c.node[n].unix_address;
		proc_expect_exit(proc_fork(stranger, NULL), 0, 60000);
		must_be_there("m");
		must_be_there("r");
		tool_says("status",
			  "model \"m\": private, mode 0600: its owner, uid 0, may see more");
		tool_says("status", "model \"r\": waiting, step 0");
		tool_says("model list", " private ");
		tool_says("model show m", "SHARD_DENIED: \"m\" belongs to uid 0");
		tool_says("model show r", "owner:");
	}
	inproc_stop(&g.c);
	keep_free(&g.keep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_op)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
