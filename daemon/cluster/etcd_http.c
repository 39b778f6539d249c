/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl's multi interface on a libuv loop. libcurl says which sockets it wants to hear of, and
 * when it wants to be called: each socket has a poll handle, and there is one timer. A request is
 * an easy handle that lives until it is answered or cancelled. A request that fails before its
 * answer is whole is told with code 0, and moves the choice of the server on. Nothing here is
 * repeated: who asks knows what may be asked twice. */
#include "cluster/etcd_http.h"

#include "base/check.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENDPOINT_BYTES 256
#define PAUSE_MS       100 /* After all servers have failed. */
#define KEEPALIVE_S    5L  /* Of the TCP connection of a stream. */

struct etcd_socket {
	uv_poll_t poll;
	struct etcd_http *http;
	curl_socket_t fd;
};

struct etcd_http {
	uv_loop_t *loop;
	CURLM *multi;
	uv_timer_t timer;
	uint32_t handles_nr; /* That are not closed. */
	struct curl_slist *headers;
	char server[ETCD_ENDPOINTS_MAX][ENDPOINT_BYTES];
	uint32_t servers_nr, current, answered, failed_nr;
	char trouble[ENDPOINT_BYTES + CURL_ERROR_SIZE + 8];
	char *ca_file, *cert_file, *key_file;
	struct etcd_call *calls;
	bool closing;
	void (*closed)(void *arg);
	void *closed_arg;
};

struct etcd_call {
	struct etcd_http *http;
	struct etcd_call *next;
	CURL *easy;
	uint32_t server;
	struct etcd_request r; /* Without path and body. */
	char *bytes;
	size_t nr, room;
	bool too_long; /* The answer, or the line in hand. */
	char error[CURL_ERROR_SIZE];
};

/* --- sockets and time --- */

static void free_all(struct etcd_http *h)
{
	void (*closed)(void *arg) = h->closed;
	void *arg = h->closed_arg;

	curl_slist_free_all(h->headers);
	curl_global_cleanup();
	free(h->ca_file);
	free(h->cert_file);
	free(h->key_file);
	free(h);
	if (closed != NULL)
		closed(arg);
}

static void handle_closed(struct etcd_http *h)
{
	CHECK(h->handles_nr > 0);
	if (--h->handles_nr == 0)
		free_all(h);
}

static void on_timer_closed(uv_handle_t *handle)
{
	handle_closed(handle->data);
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct etcd_socket *s = handle->data;
	struct etcd_http *h = s->http;

	free(s);
	handle_closed(h);
}

static void finish(struct etcd_call *c, CURLcode how);

/* Takes what libcurl has finished. */
static void take_done(struct etcd_http *h)
{
	CURLMsg *m;
	int left;

	while (!h->closing && (m = curl_multi_info_read(h->multi, &left)) != NULL) {
		char *call = NULL;

		if (m->msg != CURLMSG_DONE)
			continue;
		CHECK(curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &call) == CURLE_OK);
		finish((struct etcd_call *)(void *)call, m->data.result);
	}
}

static void on_poll(uv_poll_t *p, int status, int events)
{
	struct etcd_socket *s = p->data;
	struct etcd_http *h = s->http;
	int running, flags = 0;

	if (status < 0)
		flags = CURL_CSELECT_ERR;
	if (events & UV_READABLE)
		flags |= CURL_CSELECT_IN;
	if (events & UV_WRITABLE)
		flags |= CURL_CSELECT_OUT;
	curl_multi_socket_action(h->multi, s->fd, flags, &running);
	take_done(h);
}

static void on_timer(uv_timer_t *t)
{
	struct etcd_http *h = t->data;
	int running;

	curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	take_done(h);
}

static int want_timer(CURLM *multi, long timeout_ms, void *arg)
{
	struct etcd_http *h = arg;

	(void)multi;
	if (h->closing)
		return 0;
	if (timeout_ms < 0)
		uv_timer_stop(&h->timer);
	else
		CHECK(uv_timer_start(&h->timer, on_timer, (uint64_t)timeout_ms, 0) == 0);
	return 0;
}

static struct etcd_socket *add_socket(struct etcd_http *h, curl_socket_t fd)
{
	struct etcd_socket *s = calloc(1, sizeof(*s));

	if (s == NULL || uv_poll_init_socket(h->loop, &s->poll, fd) != 0) {
		free(s);
		return NULL;
	}
	s->poll.data = s;
	s->http = h;
	s->fd = fd;
	h->handles_nr++;
	curl_multi_assign(h->multi, fd, s);
	return s;
}

static int want_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket)
{
	struct etcd_http *h = arg;
	struct etcd_socket *s = socket;
	int events =
		(what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);

	(void)easy;
	if (what == CURL_POLL_REMOVE) {
		if (s != NULL) {
			uv_poll_stop(&s->poll);
			uv_close((uv_handle_t *)&s->poll, on_poll_closed);
			curl_multi_assign(h->multi, fd, NULL);
		}
		return 0;
	}
	if (s == NULL)
		s = add_socket(h, fd);
	return s != NULL && uv_poll_start(&s->poll, events, on_poll) == 0 ? 0 : -1;
}

/* --- requests --- */

static void unlink_call(struct etcd_call *c)
{
	struct etcd_call **at = &c->http->calls;

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
}

static void free_call(struct etcd_call *c)
{
	if (c->easy != NULL)
		curl_easy_cleanup(c->easy);
	free(c->bytes);
	free(c);
}

static void move_on(struct etcd_http *h, uint32_t server)
{
	if (server != h->current)
		return; /* Another request has failed there, too. */
	h->current = (h->current + 1) % h->servers_nr;
	h->failed_nr++;
}

static void finish(struct etcd_call *c, CURLcode how)
{
	struct etcd_http *h = c->http;
	struct etcd_answer a = {.text = c->bytes, .nr = c->nr};
	long code = 0, sent = 0;

	curl_easy_getinfo(c->easy, CURLINFO_REQUEST_SIZE, &sent);
	a.sent = sent > 0;
	if (how == CURLE_OK && !c->too_long)
		curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &code);
	a.code = (int)code;
	h->answered = c->server;
	if (code == 0 || code >= 500)
		move_on(h, c->server);
	else if (c->r.line == NULL)
		h->failed_nr = 0;
	if (code == 0)
		snprintf(h->trouble, sizeof(h->trouble), "%s: %s", h->server[c->server],
			 c->too_long   ? "its answer is too long"
			 : c->error[0] ? c->error
				       : curl_easy_strerror(how));
	curl_multi_remove_handle(h->multi, c->easy);
	unlink_call(c);
	c->r.done(c->r.arg, &a);
	free_call(c);
}

static bool keep(struct etcd_call *c, const char *from, size_t nr)
{
	size_t room = c->room;
	char *more;

	if (nr > c->r.answer_max - c->nr)
		return false;
	while (room < c->nr + nr)
		room = room == 0 ? 1024 : 2 * room;
	if (room > c->room) {
		more = realloc(c->bytes, room);
		if (more == NULL)
			return false;
		c->bytes = more;
		c->room = room;
	}
	memcpy(c->bytes + c->nr, from, nr);
	c->nr += nr;
	return true;
}

static void take_lines(struct etcd_call *c, const char *from, size_t nr)
{
	while (nr > 0) {
		const char *end = memchr(from, '\n', nr);
		size_t part = end != NULL ? (size_t)(end - from) : nr;

		c->too_long = c->too_long || !keep(c, from, part);
		from += part;
		nr -= part;
		if (end == NULL)
			return;
		c->r.line(c->r.arg, c->too_long ? NULL : c->bytes, c->too_long ? 0 : c->nr);
		c->too_long = false;
		c->nr = 0;
		from++;
		nr--;
	}
}

static size_t on_bytes(char *from, size_t size, size_t nr, void *arg)
{
	struct etcd_call *c = arg;

	nr *= size;
	if (c->r.line != NULL) {
		take_lines(c, from, nr);
		return nr;
	}
	c->too_long = !keep(c, from, nr);
	return c->too_long ? 0 : nr;
}

static int on_socket(void *arg, curl_socket_t fd, curlsocktype purpose)
{
	(void)arg;
	(void)purpose;
	return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? CURL_SOCKOPT_OK : CURL_SOCKOPT_ERROR;
}

static bool set_text(CURL *easy, CURLoption option, const char *text)
{
	return text == NULL || curl_easy_setopt(easy, option, text) == CURLE_OK;
}

/* The options that matter are checked. Without the others a request is only worse. */
static bool prepare(struct etcd_call *c, const char *path, const char *body)
{
	struct etcd_http *h = c->http;
	CURL *easy = c->easy;
	char url[ENDPOINT_BYTES + 64];

	snprintf(url, sizeof(url), "%s%s", h->server[c->server], path);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, c->error);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, (void *)c);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, (void *)c);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, h->headers);
	curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* Whatever the environment says. */
	curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_socket);
	curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
	curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_S);
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if LIBCURL_VERSION_NUM >= 0x075700
	/* Nobody waits for a resolver that hangs. */
	curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
	if (c->r.timeout_ms > 0) {
		curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)c->r.timeout_ms);
		curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)c->r.timeout_ms);
	}
	return curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes) == CURLE_OK &&
	       set_text(easy, CURLOPT_URL, url) && set_text(easy, CURLOPT_COPYPOSTFIELDS, body) &&
	       set_text(easy, CURLOPT_CAINFO, h->ca_file) &&
	       set_text(easy, CURLOPT_SSLCERT, h->cert_file) &&
	       set_text(easy, CURLOPT_SSLKEY, h->key_file);
}

struct etcd_call *etcd_http_post(struct etcd_http *h, const struct etcd_request *r)
{
	struct etcd_call *c = calloc(1, sizeof(*c));

	CHECK(!h->closing && r->done != NULL && strlen(r->path) < 64);
	if (c == NULL)
		return NULL;
	c->http = h;
	c->r = *r;
	c->r.path = c->r.body = NULL;
	c->server = h->current;
	c->easy = curl_easy_init();
	if (c->easy == NULL || !prepare(c, r->path, r->body) ||
	    curl_multi_add_handle(h->multi, c->easy) != CURLM_OK) {
		free_call(c);
		return NULL;
	}
	c->next = h->calls;
	h->calls = c;
	return c;
}

void etcd_http_cancel(struct etcd_call **cp)
{
	struct etcd_call *c = *cp;

	*cp = NULL;
	if (c == NULL)
		return;
	curl_multi_remove_handle(c->http->multi, c->easy);
	unlink_call(c);
	free_call(c);
}

uint32_t etcd_http_server(const struct etcd_http *h)
{
	return h->current;
}

uint32_t etcd_http_pause_ms(const struct etcd_http *h)
{
	return h->failed_nr < h->servers_nr ? 0 : PAUSE_MS;
}

const char *etcd_http_trouble(const struct etcd_http *h)
{
	return h->trouble;
}

void etcd_http_blame(struct etcd_http *h)
{
	move_on(h, h->answered);
}

/* --- outside --- */

static enum shard_status add_server(struct etcd_http *h, const char *at, size_t nr, struct err *e)
{
	char *to = h->server[h->servers_nr];

	if (h->servers_nr == ETCD_ENDPOINTS_MAX)
		return err_set(e, SHARD_BAD_ARG, "etcd: more than %d endpoints",
			       ETCD_ENDPOINTS_MAX);
	while (nr > 0 && at[nr - 1] == '/')
		nr--;
	if (nr >= ENDPOINT_BYTES)
		return err_set(e, SHARD_BAD_ARG, "etcd: an endpoint is longer than %d bytes",
			       ENDPOINT_BYTES - 1);
	memcpy(to, at, nr);
	to[nr] = 0;
	if (strncmp(to, "http://", 7) != 0 && strncmp(to, "https://", 8) != 0)
		return err_set(e, SHARD_BAD_ARG,
			       "etcd: the endpoint \"%.64s\" does not begin with http:// or "
			       "https://",
			       to);
	for (size_t i = 0; i < nr; i++)
		if (to[i] <= ' ' || to[i] > '~')
			return err_set(e, SHARD_BAD_ARG,
				       "etcd: the endpoint %u has a byte that no address has",
				       h->servers_nr + 1);
	h->servers_nr++;
	return SHARD_OK;
}

static enum shard_status add_servers(struct etcd_http *h, const char *list, struct err *e)
{
	enum shard_status st = SHARD_OK;

	while (st == SHARD_OK && *(list += strspn(list, ", ")) != 0) {
		size_t nr = strcspn(list, ", ");

		st = add_server(h, list, nr, e);
		list += nr;
	}
	if (st == SHARD_OK && h->servers_nr == 0)
		st = err_set(e, SHARD_BAD_ARG, "etcd: no endpoints are given");
	return st;
}

static bool copy_text(char **to, const char *from)
{
	*to = from != NULL ? strdup(from) : NULL;
	return from == NULL || *to != NULL;
}

/* An empty header takes out what libcurl would send by itself: it would wait for an answer to the
 * second one. */
static bool add_headers(struct etcd_http *h)
{
	static const char *const lines[] = {"Content-Type: application/json", "Expect:"};

	for (size_t i = 0; i < NR(lines); i++) {
		struct curl_slist *more = curl_slist_append(h->headers, lines[i]);

		if (more == NULL)
			return false;
		h->headers = more;
	}
	return true;
}

/* libcurl says of a file only when it is used that it cannot be read, which looks like an etcd that
 * does not answer. */
static enum shard_status check_file(const char *option, const char *path, struct err *e)
{
	if (path == NULL || access(path, R_OK) == 0)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG, "[cluster] %s = %s cannot be read: %s", option, path,
		       strerror(errno));
}

enum shard_status etcd_http_open(struct etcd_http **out, uv_loop_t *loop,
				 const struct etcd_options *o, struct err *e)
{
	struct etcd_http *h;
	enum shard_status st;

	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return err_set(e, SHARD_SYSTEM, "libcurl cannot be used");
	h = calloc(1, sizeof(*h));
	if (h == NULL) {
		curl_global_cleanup();
		return err_set(e, SHARD_SYSTEM, "no memory for requests to etcd");
	}
	h->loop = loop;
	if ((st = add_servers(h, o->endpoints, e)) != SHARD_OK ||
	    (st = check_file("etcd_ca", o->ca_file, e)) != SHARD_OK ||
	    (st = check_file("etcd_cert", o->cert_file, e)) != SHARD_OK ||
	    (st = check_file("etcd_key", o->key_file, e)) != SHARD_OK)
		goto err_http;
	h->multi = curl_multi_init();
	if (h->multi == NULL || !add_headers(h) || !copy_text(&h->ca_file, o->ca_file) ||
	    !copy_text(&h->cert_file, o->cert_file) || !copy_text(&h->key_file, o->key_file)) {
		st = err_set(e, SHARD_SYSTEM, "no memory for requests to etcd");
		goto err_http;
	}
	curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, want_socket);
	curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
	curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, want_timer);
	curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
	CHECK(uv_timer_init(loop, &h->timer) == 0);
	h->timer.data = h;
	h->handles_nr = 1;
	*out = h;
	return SHARD_OK;
err_http:
	curl_multi_cleanup(h->multi);
	free_all(h);
	return st;
}

void etcd_http_close(struct etcd_http **hp, void (*closed)(void *arg), void *arg)
{
	struct etcd_http *h = *hp;

	*hp = NULL;
	CHECK(!h->closing);
	while (h->calls != NULL) {
		struct etcd_call *c = h->calls;

		etcd_http_cancel(&c);
	}
	h->closing = true;
	h->closed = closed;
	h->closed_arg = arg;
	curl_multi_cleanup(h->multi); /* Closes the sockets, and so their poll handles. */
	uv_close((uv_handle_t *)&h->timer, on_timer_closed);
}
