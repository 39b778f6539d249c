/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the last lines of the log in a ring. The log's tap calls, from whichever thread writes a
 * line, so a mutex guards the ring. Lines of level warn and error are kept, and those of level info
 * but for some that come with every command of a tool. A line that says the same as the one before
 * is counted there and takes no place. status.c asks on the loop. */
#include "obs/events.h"

#include "base/check.h"
#include "control/access.h"
#include "model/model.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TS_BYTES   25
#define NAME_BYTES 40

struct event {
	char ts[TS_BYTES], first[TS_BYTES]; /* Of the newest of equal lines, and of the oldest. */
	enum log_level level;
	uint32_t times;
	char name[NAME_BYTES], model[80]; /* model empty: it is about none. */
	char text[LOG_LINE_BYTES];        /* What follows event=NAME. */
};

struct events {
	struct log *log;
	pthread_mutex_t lock;
	uint64_t lines[LOG_LEVEL_NR];
	uint32_t nr, next;
	struct event at[EVENTS_KEPT];
};

static const char *const dull[] = {"session",     "session_closed", "http",
				   "descriptors", "secret",         "tls"};

/* Copies the value behind " key=" in a line, which may be quoted. Empty: there is none. */
static void value_of(const char *line, const char *key, char *out, size_t bytes)
{
	const char *at = strstr(line, key), *end;

	out[0] = 0;
	if (at == NULL)
		return;
	at += strlen(key);
	end = *at == '"' ? strchr(++at, '"') : at + strcspn(at, " ");
	if (end != NULL)
		snprintf(out, bytes, "%.*s", (int)(end - at), at);
}

static bool is_dull(const char *name, enum log_level level)
{
	for (size_t i = 0; i < NR(dull); i++)
		if (strcmp(name, dull[i]) == 0)
			return level >= LOG_LEVEL_INFO;
	return level > LOG_LEVEL_INFO;
}

static void keep(struct events *v, enum log_level level, const char *line)
{
	const char *rest = strstr(line, " event=");
	struct event *last = &v->at[(v->next + EVENTS_KEPT - 1) % EVENTS_KEPT], *fresh;
	char name[NAME_BYTES];

	if (rest == NULL)
		return;
	value_of(rest, " event=", name, sizeof(name));
	rest += strlen(" event=") + strcspn(rest + strlen(" event="), " ");
	rest += *rest == ' ';
	if (is_dull(name, level))
		return;
	if (v->nr > 0 && strcmp(last->name, name) == 0 && strcmp(last->text, rest) == 0) {
		last->times++;
		value_of(line, "ts=", last->ts, sizeof(last->ts));
		return;
	}
	fresh = &v->at[v->next];
	fresh->level = level;
	fresh->times = 1;
	value_of(line, "ts=", fresh->ts, sizeof(fresh->ts));
	value_of(line, "ts=", fresh->first, sizeof(fresh->first));
	snprintf(fresh->name, sizeof(fresh->name), "%s", name);
	snprintf(fresh->text, sizeof(fresh->text), "%s", rest);
	value_of(line, " model=", fresh->model, sizeof(fresh->model));
	v->next = (v->next + 1) % EVENTS_KEPT;
	v->nr += v->nr < EVENTS_KEPT;
}

static void tap(void *arg, enum log_level level, const char *line)
{
	struct events *v = arg;

	pthread_mutex_lock(&v->lock);
	v->lines[level]++;
	keep(v, level, line);
	pthread_mutex_unlock(&v->lock);
}

static bool shown(const struct server *s, const char *name, const Shard__Cred *who)
{
	const struct model *m = model_by_name((struct server *)(uintptr_t)s, name);
	struct err e;

	if (name[0] == 0)
		return true;
	return m != NULL ? access_check(m, who, false, &e) == SHARD_OK : who != NULL && who->root;
}

json_t *events_json(const struct server *s, const Shard__Cred *who)
{
	struct events *v = s->events_kept;
	json_t *list = json_array(), *o;

	pthread_mutex_lock(&v->lock);
	for (uint32_t i = 0; list != NULL && i < v->nr; i++) {
		const struct event *x = &v->at[(v->next + EVENTS_KEPT - v->nr + i) % EVENTS_KEPT];

		if (!shown(s, x->model, who))
			continue;
		o = json_object();
		json_object_set_new(o, "ts", json_string(x->ts));
		json_object_set_new(o, "level", json_string(log_level_name(x->level)));
		json_object_set_new(o, "event", json_string(x->name));
		if (x->model[0] != 0)
			json_object_set_new(o, "model", json_string(x->model));
		json_object_set_new(o, "text", json_string(x->text));
		if (x->times > 1) {
			json_object_set_new(o, "times", json_integer(x->times));
			json_object_set_new(o, "first", json_string(x->first));
		}
		json_array_append_new(list, o);
	}
	pthread_mutex_unlock(&v->lock);
	return list;
}

void events_lines(const struct server *s, uint64_t lines[LOG_LEVEL_NR])
{
	struct events *v = s->events_kept;

	pthread_mutex_lock(&v->lock);
	memcpy(lines, v->lines, sizeof(v->lines));
	pthread_mutex_unlock(&v->lock);
}

enum shard_status events_init(struct server *s, struct err *e)
{
	struct events *v = calloc(1, sizeof(*v));

	if (v == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the events");
	pthread_mutex_init(&v->lock, NULL);
	v->log = s->log;
	s->events_kept = v;
	if (s->log != NULL) {
		s->log->tap = tap;
		s->log->tap_arg = v;
	}
	return SHARD_OK;
}

void events_free(struct server *s)
{
	struct events *v = s->events_kept;

	if (v == NULL)
		return;
	if (v->log != NULL)
		v->log->tap = NULL;
	pthread_mutex_destroy(&v->lock);
	free(v);
	s->events_kept = NULL;
}
