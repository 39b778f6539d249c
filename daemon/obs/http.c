/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP beside the loop. libmicrohttpd's thread owns sockets and requests, and the loop owns
 * everything that is shown. One snapshot under a mutex is between them. Happy path: a request finds
 * the snapshot older than a second and wakes the loop by uv_async_send(). The loop renders a new
 * snapshot and swaps it in. The request is answered with a copy, so that a slow reader holds
 * nothing. A request waits at most one second, counted from the first one that asked, so that
 * nobody waits long for a loop that is stuck. After that the old snapshot is used, unless it is
 * older than stall_ns, which is a 503. Fails at start if the address is taken. If there is no
 * memory, that connection is closed. */
#include "obs/http.h"
#include "obs/http_tls.h"
#include "obs/metrics.h"

#include "base/check.h"
#include "base/clock.h"
#include "net/holder.h"
#include "net/network.h"
#include "obs/page.h"
#include "page_hash.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define HTTP_FRESH_NS    NS_PER_SEC
#define HTTP_WAIT_NS     NS_PER_SEC
#define HTTP_SAMPLES_NS  (5 * NS_PER_SEC)
#define HTTP_WHOLE_NS    (5 * NS_PER_SEC) /* So long after /cluster a page counts as open. */
#define HTTP_CONNECTIONS 256u
#define HTTP_ADDRESS     128u /* Connections of one address, which thus keeps nobody else out. */
#define HTTP_IDLE_S      15u
#define HTTP_TEXT_BYTES  600
#define PLAIN            "text/plain; charset=utf-8"

struct http {
	struct http_conf conf;
	struct MHD_Daemon *mhd;
	struct http_tls tls; /* What mhd shows and accepts. */
	uv_async_t ask;
	uint16_t port;
	struct network_list own, allow; /* allow empty: everybody. */
	struct log_bucket refused;      /* Used by the thread only. */
	pthread_mutex_t lock;
	pthread_cond_t made; /* Waits by CLOCK_MONOTONIC. */
	/* The fields below are guarded by the lock. */
	struct http_snapshot now;
	uint64_t made_ns, asked_ns; /* asked_ns 0: nobody waits for the loop. */
	uint64_t whole_ns;          /* When /cluster was asked for; 0: never. */
	bool closing;
	/* The fields below belong to the loop. */
	uint64_t samples_ns; /* When they are due again. */
	void (*closed)(void *arg);
	void *closed_arg;
};

/* --- the loop's side --- */

static void snapshot_free(struct http_snapshot *s)
{
	free(s->metrics);
	free(s->status);
	free(s->cluster);
	free(s->events);
	free(s->samples);
	free(s->health);
	*s = (struct http_snapshot){0};
}

static void on_ask(uv_async_t *a)
{
	struct http *h = a->data;
	struct http_snapshot fresh = {.due = clock_ns() >= h->samples_ns}, old;

	pthread_mutex_lock(&h->lock);
	fresh.whole = h->whole_ns != 0 && clock_ns() - h->whole_ns < HTTP_WHOLE_NS;
	pthread_mutex_unlock(&h->lock);
	h->conf.render(h->conf.arg, &fresh);
	pthread_mutex_lock(&h->lock);
	old = h->now;
	if (fresh.due) {
		h->samples_ns = clock_ns() + HTTP_SAMPLES_NS;
	} else {
		fresh.samples = old.samples;
		old.samples = NULL;
	}
	h->now = fresh;
	h->made_ns = clock_ns();
	h->asked_ns = 0;
	pthread_cond_broadcast(&h->made);
	pthread_mutex_unlock(&h->lock);
	snapshot_free(&old);
}

static void on_closed(uv_handle_t *handle)
{
	struct http *h = handle->data;
	void (*closed)(void *arg) = h->closed;
	void *arg = h->closed_arg;

	snapshot_free(&h->now);
	http_tls_free(&h->tls);
	pthread_cond_destroy(&h->made);
	pthread_mutex_destroy(&h->lock);
	free(h);
	if (closed != NULL)
		closed(arg);
}

/* Requests stop waiting for the loop, because it renders nothing while it joins their thread. */
static void stop_thread(struct http *h)
{
	pthread_mutex_lock(&h->lock);
	h->closing = true;
	pthread_cond_broadcast(&h->made);
	pthread_mutex_unlock(&h->lock);
	if (h->mhd != NULL)
		MHD_stop_daemon(h->mhd);
	pthread_mutex_lock(&h->lock);
	h->closing = false;
	pthread_mutex_unlock(&h->lock);
}

void http_close(struct http **hp, void (*closed)(void *arg), void *arg)
{
	struct http *h = *hp;

	*hp = NULL;
	h->closed = closed;
	h->closed_arg = arg;
	stop_thread(h);
	uv_close((uv_handle_t *)&h->ask, on_closed);
}

/* --- the thread's side --- */

static struct timespec to_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SEC),
				 .tv_nsec = (long)(ns % NS_PER_SEC)};
}

/* Called with the lock held. Waits for a fresh snapshot. True: there is one to answer from. False:
 * why says why not. */
static bool snapshot_usable(struct http *h, char *why, size_t bytes)
{
	uint64_t now = clock_ns(), age;

	if (h->made_ns == 0 || now - h->made_ns > HTTP_FRESH_NS) {
		uint64_t asked = h->asked_ns;
		struct timespec until;

		if (asked == 0) {
			asked = h->asked_ns = now;
			CHECK(uv_async_send(&h->ask) == 0);
		}
		until = to_timespec(asked + HTTP_WAIT_NS);
		while (h->asked_ns == asked && !h->closing)
			if (pthread_cond_timedwait(&h->made, &h->lock, &until) == ETIMEDOUT)
				break;
	}
	now = clock_ns();
	age = now - h->made_ns;
	if (h->made_ns != 0 && age <= h->conf.stall_ns)
		return true;
	if (h->closing)
		snprintf(why, bytes, "the daemon stops");
	else
		snprintf(why, bytes, "the loop has not answered for %.1f s",
			 (double)(now - h->asked_ns) / NS_PER_SEC);
	return false;
}

struct http_answer {
	unsigned code;
	const char *type;
	char *text; /* From malloc(), or NULL if fixed has the text. */
	const void *fixed;
	size_t bytes;
};

static void say(struct http_answer *a, unsigned code, const char *text)
{
	a->code = code;
	a->type = PLAIN;
	a->text = malloc(strlen(text) + 2);
	if (a->text == NULL)
		return;
	a->bytes = (size_t)sprintf(a->text, "%s\n", text);
}

static void copy(struct http_answer *a, const char *text, const char *type)
{
	a->code = MHD_HTTP_OK;
	a->type = type;
	a->bytes = text != NULL ? strlen(text) : 0;
	a->text = text != NULL ? strdup(text) : NULL;
}

enum http_what {
	HTTP_PAGE,
	HTTP_METRICS,
	HTTP_STATUS,
	HTTP_CLUSTER,
	HTTP_EVENTS,
	HTTP_SAMPLES,
	HTTP_LIVE,
	HTTP_READY,
	HTTP_HEALTH
};

static const struct {
	const char *path;
	enum http_what what;
} paths[] = {{"/", HTTP_PAGE},           {"/metrics", HTTP_METRICS}, {"/status", HTTP_STATUS},
	     {"/cluster", HTTP_CLUSTER}, {"/events", HTTP_EVENTS},   {"/samples", HTTP_SAMPLES},
	     {"/livez", HTTP_LIVE},      {"/readyz", HTTP_READY},    {"/healthz", HTTP_HEALTH}};

static void answer_snapshot(struct http *h, enum http_what what, struct http_answer *a)
{
	char why[HTTP_TEXT_BYTES];

	pthread_mutex_lock(&h->lock);
	if (what == HTTP_CLUSTER) {
		h->whole_ns = clock_ns();
		if (h->now.cluster == NULL)
			h->made_ns = 0; /* The snapshot was made for others. */
	}
	if (!snapshot_usable(h, why, sizeof(why)))
		say(a, MHD_HTTP_SERVICE_UNAVAILABLE, why);
	else if (what == HTTP_METRICS)
		copy(a, h->now.metrics, "text/plain; version=0.0.4; charset=utf-8");
	else if (what == HTTP_STATUS)
		copy(a, h->now.status, "application/json");
	else if (what == HTTP_CLUSTER)
		copy(a, h->now.cluster, "application/json");
	else if (what == HTTP_SAMPLES)
		copy(a, h->now.samples, "application/json");
	else if (what == HTTP_EVENTS)
		copy(a, h->now.events, "application/json");
	else if (what == HTTP_READY && h->now.unready[0] != 0)
		say(a, MHD_HTTP_SERVICE_UNAVAILABLE, h->now.unready);
	else if (what == HTTP_LIVE || what == HTTP_READY || h->now.health == NULL)
		copy(a, what == HTTP_HEALTH ? NULL : "ok\n", PLAIN);
	else
		copy(a, h->now.health[0] != 0 ? h->now.health : "ok\n", PLAIN);
	if (what == HTTP_HEALTH && a->code == MHD_HTTP_OK && h->now.ill)
		a->code = MHD_HTTP_SERVICE_UNAVAILABLE;
	pthread_mutex_unlock(&h->lock);
}

static void answer(struct http *h, const char *path, const char *method, struct http_answer *a)
{
	char text[HTTP_TEXT_BYTES];

	for (size_t i = 0; i < NR(paths); i++) {
		if (strcmp(path, paths[i].path) != 0)
			continue;
		if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
		    strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
			say(a, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD");
		} else if (paths[i].what == HTTP_PAGE) {
			*a = (struct http_answer){.code = MHD_HTTP_OK,
						  .type = "text/html; charset=utf-8",
						  .fixed = page_html};
			a->bytes = (size_t)(page_html_end - page_html);
		} else {
			answer_snapshot(h, paths[i].what, a);
		}
		return;
	}
	snprintf(text, sizeof(text),
		 "there are /, /metrics, /status, /cluster, /events, /samples, /livez, /readyz and "
		 "/healthz");
	say(a, MHD_HTTP_NOT_FOUND, text);
}

static const struct {
	const char *name, *value;
} headers[] = {
	{"Cache-Control", "no-store"},
	{"X-Content-Type-Options", "nosniff"},
	{"Referrer-Policy", "no-referrer"},
	{"Content-Security-Policy",
	 "default-src 'none'; style-src 'unsafe-inline'; script-src '" PAGE_SCRIPT_HASH
	 "'; connect-src 'self'; img-src data:; frame-ancestors 'none'"},
};

/* --- whom it answers --- */

/* Asked for each connection, before anything of it is read. */
static enum MHD_Result may_connect(void *arg, const struct sockaddr *sa, socklen_t bytes)
{
	struct http *h = arg;
	char from[64];

	(void)bytes;
	if (h->allow.nr == 0 || network_has(&h->allow, sa) || network_has(&h->own, sa))
		return MHD_YES;
	address_text(sa, from, sizeof(from));
	log_limited(h->conf.log, &h->refused, clock_ns(), LOG_LEVEL_WARN,
		    "event=http_refused from=%s why=%s", from, "it is not in [daemon] http_allow");
	return MHD_NO;
}

/* Finds the name in "name", "name:port" and "[name]:port", and returns its length. */
static size_t host_name(const char *host, const char **name)
{
	*name = host[0] == '[' ? host + 1 : host;
	return host[0] == '[' ? strcspn(*name, "]") : strcspn(host, ":");
}

static bool is_name(const char *name, size_t n, const char *other)
{
	return strlen(other) == n && strncasecmp(name, other, n) == 0;
}

static bool is_numeric(const char *name, size_t n)
{
	unsigned char address[sizeof(struct in6_addr)];
	char text[64];

	if (n >= sizeof(text))
		return false;
	memcpy(text, name, n);
	text[n] = 0;
	return inet_pton(AF_INET, text, address) == 1 || inet_pton(AF_INET6, text, address) == 1;
}

/* A page in a browser of this network may send requests here under a name that the page's author
 * made point here. So only known names are answered. An IP address cannot be made to point
 * elsewhere. The machine's name may be followed by its domain. */
static bool known_host(const struct http *h, const char *host)
{
	char machine[256] = "";
	const char *name;
	size_t n = host_name(host, &name), own;

	if (is_numeric(name, n) || is_name(name, n, "localhost") ||
	    is_name(name, n, h->conf.config->http.host))
		return true;
	if (gethostname(machine, sizeof(machine) - 1) != 0 || machine[0] == 0)
		return false;
	own = strlen(machine);
	return is_name(name, n, machine) ||
	       (n > own && name[own] == '.' && strncasecmp(name, machine, own) == 0);
}

/* Does the request come from elsewhere, and without a certificate where one is needed? */
static bool unproved(const struct http *h, struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *from;

	if (!h->conf.config->http_certs)
		return false;
	from = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	return from == NULL || (!network_has(&h->own, from->client_addr) && !http_tls_proved(c));
}

/* Checks what every request has to fulfil. a->code 0: nothing is wrong. */
static void check_headers(const struct http *h, struct MHD_Connection *c, struct http_answer *a)
{
	const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
	const char *coding =
		MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);

	if (unproved(h, c))
		say(a, MHD_HTTP_FORBIDDEN,
		    "a certificate of the CA in [net] tls_ca is needed from elsewhere than "
		    "loopback, unless http_allow lists the network");
	else if (coding != NULL && strcasecmp(coding, "chunked") != 0)
		say(a, MHD_HTTP_NOT_IMPLEMENTED,
		    "of Transfer-Encoding there is chunked, and no other");
	else if (host != NULL && !known_host(h, host))
		say(a, MHD_HTTP_MISDIRECTED_REQUEST,
		    "ask for this daemon by localhost, by an IP address, by the machine's name, or "
		    "by the host in [daemon] http");
}

static enum MHD_Result reply(struct MHD_Connection *c, struct http_answer *a)
{
	struct MHD_Response *r;
	enum MHD_Result rc;

	if (a->text == NULL && a->fixed == NULL)
		return MHD_NO; /* No memory: the connection closes. */
	r = a->fixed != NULL
		    ? MHD_create_response_from_buffer(a->bytes, (void *)(uintptr_t)a->fixed,
						      MHD_RESPMEM_PERSISTENT)
		    : MHD_create_response_from_buffer(a->bytes, a->text, MHD_RESPMEM_MUST_FREE);
	if (r == NULL) {
		free(a->text);
		return MHD_NO;
	}
	(void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, a->type);
	for (size_t i = 0; i < NR(headers); i++)
		(void)MHD_add_response_header(r, headers[i].name, headers[i].value);
	if (a->code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	rc = MHD_queue_response(c, a->code, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
				  const char *method, const char *version, const char *upload,
				  size_t *upload_bytes, void **state)
{
	struct http_answer a = {0};

	(void)version, (void)upload;
	if (*state == NULL) {
		/* Only the headers have come. The answer waits for the whole request, so that the
		 * connection stays in step. */
		*state = cls;
		check_headers(cls, c, &a);
		return a.code != 0 ? reply(c, &a) : MHD_YES;
	}
	if (*upload_bytes > 0) { /* The body is ignored. */
		*upload_bytes = 0;
		return MHD_YES;
	}
	answer(cls, url, method, &a);
	return reply(c, &a);
}

/* --- start --- */

static int listen_at(const struct conn_address *at, uint16_t *bound, struct err *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
			*found = NULL;
	struct sockaddr_storage sa;
	socklen_t bytes = sizeof(sa);
	char port[8], service[16], who[HOLDER_BYTES];
	int fd = -1, one = 1, rc;

	snprintf(port, sizeof(port), "%u", at->port);
	rc = getaddrinfo(at->host, port, &hints, &found);
	if (rc != 0) {
		err_set(e, SHARD_SYSTEM, "[daemon] http = %s: %s", at->text, gai_strerror(rc));
		return -1;
	}
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
	    bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 128) != 0 ||
	    getsockname(fd, (struct sockaddr *)&sa, &bytes) != 0) {
		rc = errno;
		err_set(e, SHARD_SYSTEM, "[daemon] http = %s: %s%s: choose another address, or off",
			at->text, strerror(rc),
			rc == EADDRINUSE ? holder_of(found->ai_addr, who) : "");
		if (fd >= 0)
			close(fd);
		fd = -1;
	} else if (getnameinfo((struct sockaddr *)&sa, bytes, NULL, 0, service, sizeof(service),
			       NI_NUMERICSERV) == 0) {
		*bound = (uint16_t)strtoul(service, NULL, 10);
	}
	freeaddrinfo(found);
	return fd;
}

/* NULL: e says why. */
static struct MHD_Daemon *start_thread(struct http *h, const struct http_tls *tls, int fd,
				       struct err *e)
{
	struct MHD_OptionItem more[HTTP_TLS_OPTIONS];
	unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ITC;
	struct MHD_Daemon *d;

	http_tls_options(tls, more);
	errno = 0;
	d = MHD_start_daemon(
		flags | (tls->cert != NULL ? MHD_USE_TLS : 0), 0, may_connect, h, on_request, h,
		MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd, MHD_OPTION_CONNECTION_LIMIT,
		HTTP_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT, HTTP_ADDRESS,
		MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)16384, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
	if (d == NULL)
		err_set(e, SHARD_SYSTEM, "[daemon] http = %s: its thread cannot start: %s",
			h->conf.config->http.text,
			errno == 0 && tls->cert != NULL
				? "libmicrohttpd refuses tls_cert, tls_key or tls_ca"
				: strerror(errno));
	return d;
}

/* The new thread listens beside the old one before that is stopped, so that nobody is turned
 * away. */
enum shard_status http_reload(struct http *h, struct err *e)
{
	struct http_tls fresh;
	struct MHD_Daemon *next;
	enum shard_status st = http_tls_read(&fresh, h->conf.config, e);
	int fd, old;

	if (st != SHARD_OK || fresh.cert == NULL)
		return st;
	fd = fcntl(MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_LISTEN_FD)->listen_fd,
		   F_DUPFD_CLOEXEC, 0);
	next = fd >= 0 ? start_thread(h, &fresh, fd, e) : NULL;
	if (next == NULL) {
		if (fd >= 0)
			close(fd);
		else
			err_set(e, SHARD_SYSTEM, "HTTP: no descriptor: %s", strerror(errno));
		http_tls_free(&fresh);
		return e->status;
	}
	old = MHD_quiesce_daemon(h->mhd);
	stop_thread(h);
	if (old >= 0)
		close(old);
	http_tls_free(&h->tls);
	h->tls = fresh;
	h->mhd = next;
	return SHARD_OK;
}

enum shard_status http_open(struct http **out, const struct http_conf *conf, struct err *e)
{
	struct http *h = calloc(1, sizeof(*h));
	pthread_condattr_t attr;
	enum shard_status st;
	int fd;

	*out = NULL;
	if (h == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for HTTP");
	h->conf = *conf;
	if (h->conf.stall_ns < HTTP_FRESH_NS)
		h->conf.stall_ns = HTTP_FRESH_NS;
	/* The configuration was checked. */
	CHECK(network_parse(&h->own, "127.0.0.1, ::1"));
	if (conf->config->http_allow[0] != 0)
		CHECK(network_parse(&h->allow, conf->config->http_allow));
	st = http_tls_read(&h->tls, conf->config, e);
	fd = st == SHARD_OK ? listen_at(&conf->config->http, &h->port, e) : -1;
	if (fd < 0) {
		http_tls_free(&h->tls);
		free(h);
		return st != SHARD_OK ? st : SHARD_SYSTEM;
	}
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->made, &attr);
	pthread_condattr_destroy(&attr);
	CHECK(uv_async_init(conf->loop, &h->ask, on_ask) == 0);
	h->ask.data = h;
	h->mhd = start_thread(h, &h->tls, fd, e);
	if (h->mhd == NULL) {
		close(fd);
		http_close(&h, NULL, NULL);
		return e->status;
	}
	*out = h;
	return SHARD_OK;
}

uint16_t http_port(const struct http *h)
{
	return h->port;
}
