/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a node of a running cluster for a place in its list of nodes. Happy path: it dials, proves
 * the nodes' secret, and says in HELLO where others reach this node. The answer is "ask again"
 * until the list is durable and all nodes have taken it in. Then it is the whole list, with the
 * options that must be equal on all nodes. main.c loads the configuration with it, and keeps it in
 * the state folder if it fits. Asking twice does no harm. All wait for a node that is in the list.
 * So it asks only with an address that it can listen on, and says which of those options somebody
 * has set here. */
#include "link/enrol.h"

#include "config/cluster.h"
#include "base/check.h"
#include "base/clock.h"
#include "cluster/static.h"
#include "link/channel.h"
#include "net/conn.h"
#include "net/prove.h"
#include "net/tcp.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define AGAIN_MS   200
#define GIVE_UP_NS (60 * NS_PER_SEC)
#define SAY_NS     (5 * NS_PER_SEC)
#define HELLO_NS   (5 * NS_PER_SEC)
#define PORT       29700
#define SET_MAX    16 /* Options that must be equal on all nodes. */
#define SCRATCH    (4 * WIRE_HELLO_MAX)

struct enrol {
	const struct config *conf;
	struct log *log;
	uv_loop_t *loop;
	uv_timer_t again;
	struct conn *conn; /* NULL: none is open. */
	struct auth *auth; /* NULL: there is no secret. */
	struct tls *tls;   /* NULL: [net] tls = off. */
	struct prove prove;
	struct conn_address here; /* Where others reach this node. */
	uint64_t end_ns, said_ns;
	bool done; /* .list is whole, or it has failed for good. */
	enum shard_status st;
	struct err e; /* Why the last attempt has failed. */
	struct config_cluster list;
	/* What somebody has set here of the options that must be equal. */
	Shard__Setting setting[SET_MAX], *set[SET_MAX];
	char key[SET_MAX][64], value[SET_MAX][128];
	size_t set_nr;
	struct arena arena;
	char scratch[SCRATCH];
};

/* --- what is said --- */

/* The address that this node has on the way to the other one, with its own port. */
static enum shard_status find_address(struct enrol *r, struct conn *c)
{
	const struct conn_address *listen = &r->conf->listen;
	struct sockaddr_storage sa;
	socklen_t bytes = sizeof(sa);
	char text[sizeof(r->here.text)];
	bool any = strcmp(listen->host, "0.0.0.0") == 0 || strcmp(listen->host, "::") == 0;
	uint16_t port = htons(r->conf->listen_chosen ? listen->port : PORT);

	if (r->conf->listen_chosen && !any) {
		r->here = *listen;
		return SHARD_OK;
	}
	if (getsockname(stream_fd(conn_stream(c)), (struct sockaddr *)&sa, &bytes) != 0)
		return err_sys(&r->e, errno, "%s: no own address", conn_name(c));
	if (sa.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&sa)->sin6_port = port;
	else
		((struct sockaddr_in *)&sa)->sin_port = port;
	address_text((struct sockaddr *)&sa, text, sizeof(text));
	return conn_address_parse(&r->here, text, &r->e);
}

/* A node that cannot listen there would be in the list for nothing. */
static enum shard_status check_address(struct enrol *r)
{
	struct address_sock sock;
	enum shard_status st;
	int fd;

	if (!address_numeric(&r->here, &sock))
		return SHARD_OK;
	st = tcp_listen(&fd, &r->here, &sock, 0, &r->e);
	if (st == SHARD_OK)
		close(fd);
	return st;
}

static void put_set(void *arg, const char *key, const char *value)
{
	struct enrol *r = arg;
	size_t i = r->set_nr++;

	CHECK(i < SET_MAX && strlen(key) < sizeof(r->key[i]) &&
	      strlen(value) < sizeof(r->value[i]));
	strcpy(r->key[i], key);
	strcpy(r->value[i], value);
	shard__setting__init(&r->setting[i]);
	r->setting[i].key = r->key[i];
	r->setting[i].value = r->value[i];
	r->set[i] = &r->setting[i];
}

static void fill(struct enrol *r, Shard__Hello *hello)
{
	shard__hello__init(hello);
	hello->wire_min = hello->wire_max = WIRE_VERSION;
	hello->features = r->conf->body_checksum ? FEATURE_BODY_SUM : 0;
	hello->role = ROLE_NODE;
	hello->node = (char *)(uintptr_t)r->conf->node;
	hello->wire_minor = WIRE_MINOR;
	hello->pid = (uint32_t)getpid();
	hello->release = (char *)(uintptr_t)SHARD_RELEASE;
	hello->joins = (char *)(uintptr_t)r->here.text;
	hello->n_config = r->set_nr;
	hello->config = r->set;
}

static enum shard_status say(struct enrol *r, struct conn *c, uint16_t op,
			     const ProtobufCMessage *body)
{
	struct wire_head h = {.op = op};

	if (stream_send_control(conn_stream(c), &h, body) != SHARD_OK)
		return err_set(&r->e, SHARD_SYSTEM, "no room to say hello");
	conn_kick(c);
	return SHARD_OK;
}

static void on_open(void *owner, struct conn *c)
{
	struct enrol *r = owner;
	Shard__Hello whole, brief;
	enum shard_status st = find_address(r, c);

	if (st == SHARD_OK)
		st = check_address(r);
	fill(r, &whole);
	if (st == SHARD_OK) {
		prove_begin(&r->prove, AUTH_DIALLER, AUTH_FOR_NODE);
		if (r->auth != NULL)
			st = prove_brief(&r->prove, r->auth, &whole, &brief, &r->e);
	}
	if (st == SHARD_OK)
		st = say(r, c, OP_HELLO, r->auth != NULL ? &brief.base : &whole.base);
	if (st != SHARD_OK)
		conn_close(c, &r->e, 0);
}

/* --- what comes --- */

static enum shard_status take_list(struct enrol *r, const Shard__Hello *theirs, struct err *e)
{
	enum shard_status st = SHARD_OK;

	memset(&r->list, 0, sizeof(r->list));
	for (size_t i = 0; i < theirs->n_config && st == SHARD_OK; i++)
		st = config_cluster_put(&r->list, theirs->config[i]->key, theirs->config[i]->value,
					e);
	if (st == SHARD_OK && r->list.nodes_nr < 2)
		st = err_set(e, SHARD_PROTOCOL, "its list has %u nodes", r->list.nodes_nr);
	r->done = st == SHARD_OK;
	return st;
}

static enum shard_status take_hello(struct enrol *r, struct stream *stream,
				    const struct wire_head *h, const void *body, struct err *e)
{
	const ProtobufCMessage *msg;
	const Shard__Hello *theirs;
	Shard__Hello whole;
	Shard__Auth out;
	struct wire_head auth = {.op = OP_AUTH};

	if (control_unpack(&msg, &shard__hello__descriptor, body, h->body_bytes, &r->arena, e) !=
	    SHARD_OK)
		return e->status;
	theirs = (const Shard__Hello *)msg;
	if (channel_is_node(r->conf, r->conn, theirs->node, e) != SHARD_OK)
		return e->status;
	if ((theirs->features & FEATURE_AUTH) && r->auth == NULL)
		return err_set(e, SHARD_DENIED,
			       "it asks for the nodes' secret: copy the file from there, and set "
			       "[cluster] node_secret to its path");
	if (r->auth == NULL)
		return take_list(r, theirs, e);
	if (!(theirs->features & FEATURE_AUTH))
		return err_set(e, SHARD_DENIED,
			       "it asks for no secret, and this node has [cluster] node_secret: "
			       "take it away here, or set it on all nodes");
	fill(r, &whole);
	if (prove_bind(&r->prove, stream, e) != SHARD_OK ||
	    prove_heard(&r->prove, r->auth, theirs, body, h->body_bytes, e) != SHARD_OK ||
	    prove_own(&r->prove, r->auth, &whole, &out, e) != SHARD_OK)
		return e->status;
	if (stream_send_control(stream, &auth, &out.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to prove the secret");
	return SHARD_OK;
}

static enum shard_status take_auth(struct enrol *r, const struct wire_head *h, const void *body,
				   struct err *e)
{
	const ProtobufCMessage *msg;
	const Shard__Auth *theirs;

	if (control_unpack(&msg, &shard__auth__descriptor, body, h->body_bytes, &r->arena, e) !=
	    SHARD_OK)
		return e->status;
	theirs = (const Shard__Auth *)msg;
	if (!prove_theirs(&r->prove, r->auth, theirs))
		return err_set(e, SHARD_DENIED,
			       "it did not prove that it knows the secret: something else answers "
			       "there");
	if (control_unpack(&msg, &shard__hello__descriptor, theirs->hello.data,
			   (uint32_t)theirs->hello.len, &r->arena, e) != SHARD_OK)
		return e->status;
	return take_list(r, (const Shard__Hello *)msg, e);
}

static enum shard_status on_head(void *owner, struct stream *st, const struct wire_head *h,
				 void **to, struct err *e)
{
	const struct enrol *r = owner;

	(void)st, (void)to;
	if (h->op == OP_ERROR ||
	    ((h->flags & WIRE_REPLY) && h->op == (r->prove.asked ? OP_AUTH : OP_HELLO) && !r->done))
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL, "frame %s in the handshake", wire_op(h->op)->name);
}

static enum shard_status on_frame(void *owner, struct stream *stream, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct enrol *r = owner;
	const ProtobufCMessage *msg;
	enum shard_status st;

	if (h->op == OP_ERROR) {
		st = control_unpack(&msg, &shard__error__descriptor, body, h->body_bytes, &r->arena,
				    e);
		if (st == SHARD_OK) {
			const Shard__Error *no = (const Shard__Error *)msg;

			st = no->status != SHARD_OK ? (enum shard_status)no->status
						    : SHARD_PROTOCOL;
			err_set(e, st, "%.400s", no->text);
		}
	} else {
		st = h->op == OP_HELLO ? take_hello(r, stream, h, body, e)
				       : take_auth(r, h, body, e);
	}
	arena_reset(&r->arena);
	if (st == SHARD_OK && r->done)
		conn_close(r->conn, NULL, 0);
	return st;
}

/* What passes: nobody is there yet, or the cluster is at it. */
static bool passes(enum shard_status st)
{
	return st == SHARD_BUSY || st == SHARD_UNREACHABLE || st == SHARD_CLOSED ||
	       st == SHARD_TIMEOUT || st == SHARD_AGAIN;
}

static void dial(uv_timer_t *t);

static void on_close(void *owner, struct conn *c, const struct err *why)
{
	struct enrol *r = owner;
	uint64_t now = clock_ns();

	(void)c;
	r->conn = NULL;
	prove_end(&r->prove);
	if (!r->done) {
		err_set(&r->e, why->status, "[cluster] join = %s: %.400s", r->conf->join.text,
			why->text);
		r->st = why->status;
		if (now >= r->said_ns || !passes(r->st)) {
			r->said_ns = now + SAY_NS;
			log_line(r->log, LOG_LEVEL_INFO, "event=joining at=%s why=%s",
				 r->conf->join.text, why->text);
		}
	}
	if (!r->done && passes(r->st) && now < r->end_ns) {
		CHECK(uv_timer_start(&r->again, dial, AGAIN_MS, 0) == 0);
		return;
	}
	if (!r->done && passes(r->st))
		r->st = SHARD_TIMEOUT;
	uv_close((uv_handle_t *)&r->again, NULL);
}

static void dial(uv_timer_t *t)
{
	static const struct conn_handler handler = {
		.frames = {.on_head = on_head, .on_frame = on_frame},
		.on_open = on_open,
		.on_close = on_close};
	struct enrol *r = t->data;
	struct conn_conf conf = {.handler = &handler,
				 .owner = r,
				 .queue_max = 16,
				 .body_max = WIRE_HELLO_MAX,
				 .tls = r->tls,
				 .silence_ns = HELLO_NS,
				 .connect_ns = HELLO_NS};
	struct err e;

	if (conn_connect(&r->conn, r->loop, &r->conf->join, &conf, &e) != SHARD_OK)
		on_close(r, NULL, &e);
}

enum shard_status enrol(const struct config *conf, struct log *log, uv_loop_t *loop,
			char text[CONFIG_CLUSTER_BYTES], struct err *e)
{
	struct enrol *r = calloc(1, sizeof(*r));
	enum shard_status st = SHARD_OK;

	CHECK(conf->joins);
	if (r == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to join a cluster");
	r->conf = conf;
	r->log = log;
	r->loop = loop;
	r->end_ns = clock_ns() + GIVE_UP_NS;
	arena_init(&r->arena, r->scratch, sizeof(r->scratch));
	config_shared_set(conf, put_set, r);
	if ((st = static_in_use(conf->state, e)) == SHARD_OK && conf->node_secret[0] != 0)
		st = auth_open(&r->auth, conf->node_secret, e);
	if (st == SHARD_OK)
		st = channel_make(&r->tls, conf, conf->node, NULL, r->auth, e);
	if (st == SHARD_OK) {
		CHECK(uv_timer_init(loop, &r->again) == 0);
		r->again.data = r;
		dial(&r->again);
		uv_run(loop, UV_RUN_DEFAULT);
		st = r->done ? SHARD_OK : r->st;
		if (!r->done)
			*e = r->e;
		e->status = st;
	}
	memcpy(text, r->list.text, CONFIG_CLUSTER_BYTES);
	if (st == SHARD_OK)
		log_line(log, LOG_LEVEL_INFO, "event=enrolled at=%s nodes=%u address=%s",
			 conf->join.text, r->list.nodes_nr, r->here.text);
	auth_close(&r->auth);
	tls_close(&r->tls);
	free(r);
	return st;
}
