// SPDX-License-Identifier: Apache-2.0
/* Models as a whole: attach to one by name, restore or drop it, set its lr and clip, ask the daemon
 * for its figures, and say where an attachment's memory lies. Each is at most one request on the
 * connection, made and answered under the client's lock. It fails with the daemon's refusal in its
 * words (no such model, no permission, joined trainers), at the deadline, and without memory. */
#include "manage.h"

#include "ckpt.h"
#include "define.h"

#include <stdio.h>
#include <string.h>

static enum shard_status name_check(const char *call, const char *name)
{
	if (layout_model_name_ok(name))
		return SHARD_OK;
	return text_fail(SHARD_BAD_ARG,
			 "%s: model name \"%.80s\": no model is called so: a name is 1 to 64 of "
			 "a-z 0-9 . _ -",
			 call, name ? name : "(null)");
}

/* With the lock. Sends and waits. The caller frees *out in any case. of names the model in the
 * text. */
static enum shard_status ask(struct shard_client *c, uint16_t op, const ProtobufCMessage *msg,
			     const char *of, struct wait *w, struct request **out)
{
	struct request *r = *out = request_new(c, op, 0);
	enum shard_status rc = r ? request_send(r, (struct wire_head){0}, msg, w) : SHARD_SYSTEM;

	return rc == SHARD_OK ? request_wait_alive(r, w, of) : rc;
}

enum shard_status shard_attach(shard_client *c, const char *name, shard_model **out)
{
	Shard__Attach body = SHARD__ATTACH__INIT;
	struct request *r = NULL;
	uint64_t pause_ns = 0;
	enum shard_status rc;
	struct wait w;

	if (c == NULL || out == NULL)
		return text_fail(SHARD_BAD_ARG,
				 "shard_attach: the connection or the model's place is NULL");
	*out = NULL;
	if ((rc = name_check("shard_attach", name)) != SHARD_OK ||
	    (rc = client_enter(c)) != SHARD_OK)
		return rc;
	wait_begin(c, &w, c->timeout_ms);
	body.name = (char *)(uintptr_t)
		name; /* protobuf-c's structs are not const. Packing only reads. */
	do {
		request_free(r);
		rc = ask(c, OP_ATTACH, &body.base, name, &w, &r);
	} while (r != NULL && (rc = request_again(r, &w, &pause_ns, rc)) == SHARD_AGAIN);
	if (rc == SHARD_OK)
		rc = handle_of_reply(c, r, out);
	request_free(r);
	client_leave(c);
	return rc;
}

enum shard_status shard_restore(shard_client *c, const char *dir, const char *tag, const char *name,
				shard_model **out)
{
	struct ckpt_ask a = {.name = name, .dir = dir, .tag = tag};
	struct request *r = NULL;
	struct ckpt_answer answer;
	enum shard_status rc;

	if (c == NULL || out == NULL || dir == NULL)
		return text_fail(SHARD_BAD_ARG,
				 "shard_restore: the connection, dir or the model's place is NULL");
	*out = NULL;
	if ((rc = client_enter(c)) != SHARD_OK)
		return rc;
	a.timeout_ms = c->timeout_ms;
	rc = ckpt_restore(c, &a, &answer, &r);
	if (rc == SHARD_OK)
		rc = handle_of_reply(c, r, out);
	request_free(r);
	client_leave(c);
	return rc;
}

enum shard_status manage_ask(struct shard_client *c, const Shard__Manage *what, int64_t timeout_ms)
{
	static const char *const words[] = {"?",
					    "dropped",
					    "set",
					    "paused",
					    "resumed",
					    "rid of that rank",
					    "rid of that trainer"};
	struct request *r = NULL;
	enum shard_status rc = client_enter(c);
	uint64_t pause_ns = 0;
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	wait_begin(c, &w, timeout_ms);
	do {
		request_free(r);
		rc = ask(c, OP_MANAGE, &what->base, what->name, &w, &r);
	} while (r != NULL && (rc = request_again(r, &w, &pause_ns, rc)) == SHARD_AGAIN);
	if (rc == SHARD_TIMEOUT && clock_ns() >= w.deadline_ns)
		text_fail(rc,
			  "\"%.64s\" is not %s yet after %.1f s, but stays asked for: a step in "
			  "hand is decided first",
			  what->name, words[what->action < NR(words) ? what->action : 0],
			  wait_seconds(&w));
	request_free(r);
	client_leave(c);
	return rc;
}

enum shard_status shard_drop(shard_client *c, const char *name, int force)
{
	Shard__Manage m = SHARD__MANAGE__INIT;
	enum shard_status rc;

	if (c == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_drop: the connection is NULL");
	if ((rc = name_check("shard_drop", name)) != SHARD_OK)
		return rc;
	m.name = (char *)(uintptr_t)name;
	m.action = MANAGE_DROP;
	m.force = force != 0;
	return manage_ask(c, &m, c->timeout_ms);
}

enum shard_status shard_set(shard_model *model, const char *key, const char *value)
{
	Shard__Manage m = SHARD__MANAGE__INIT;
	enum shard_status rc;

	if (key == NULL || value == NULL || strlen(key) > 64 || strlen(value) > 64)
		return text_fail(SHARD_BAD_ARG,
				 "shard_set: choose lr or clip, and a number or \"default\"");
	if ((rc = handle_enter(model)) != SHARD_OK)
		return rc;
	client_leave(model->client);
	m.name = model->spec.name;
	m.action = MANAGE_SET;
	m.key = (char *)(uintptr_t)key;
	m.value = (char *)(uintptr_t)value;
	return manage_ask(model->client, &m, model->timeout_ms);
}

static enum shard_status stats_take(const struct request *r, char *json, size_t *bytes)
{
	Shard__Text *t = shard__text__unpack(NULL, r->body_bytes, r->body);
	size_t room = *bytes, need;
	enum shard_status rc = SHARD_OK;

	if (t == NULL)
		return text_fail(SHARD_PROTOCOL,
				 "shardd at %s answered STATUS with what cannot be read",
				 r->c->address);
	need = strlen(t->text) + 1;
	*bytes = need;
	if (json == NULL || need > room)
		rc = text_fail(SHARD_RANGE,
			       "shard_stats: the text has %zu bytes with its end, and there is "
			       "room for %zu",
			       need, json ? room : 0);
	else
		memcpy(json, t->text, need);
	shard__text__free_unpacked(t, NULL);
	return rc;
}

enum shard_status shard_stats(shard_client *c, char *json, size_t *bytes)
{
	struct request *r = NULL;
	enum shard_status rc;
	struct wait w;

	if (c == NULL || bytes == NULL)
		return text_fail(SHARD_BAD_ARG,
				 "shard_stats: the connection or the number of bytes is NULL");
	if ((rc = client_enter(c)) != SHARD_OK)
		return rc;
	wait_begin(c, &w, c->timeout_ms);
	rc = ask(c, OP_STATUS, NULL, "of the daemon", &w, &r);
	if (rc == SHARD_OK)
		rc = stats_take(r, json, bytes);
	request_free(r);
	client_leave(c);
	return rc;
}

enum shard_status shard_region(shard_model *m, enum shard_kind kind, void **base, size_t *bytes)
{
	enum shard_status rc = handle_enter_joined(m, "shard_region()");

	if (rc != SHARD_OK)
		return rc;
	if (base == NULL || bytes == NULL || (kind != SHARD_GRAD && kind != SHARD_IMAGE)) {
		rc = text_fail(SHARD_BAD_ARG,
			       base && bytes ? "shard_region: choose SHARD_GRAD or SHARD_IMAGE"
					     : "shard_region: the place of base or bytes is NULL");
	} else {
		*base = kind == SHARD_GRAD ? m->arena.base : (char *)m->image.base + m->image_data;
		*bytes = kind == SHARD_GRAD ? m->arena.bytes : m->image.bytes - m->image_data;
	}
	client_leave(m->client);
	return rc;
}
