/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: one connection to one daemon, as the files of the library see it: who may touch what, how a call waits, how a
 * request finds its reply. Everything that is neither constant nor atomic is touched with the lock held; poll(2), copies of
 * gradients and the user's log function run without it. */
#ifndef SHARD_CLIENT_H
#define SHARD_CLIENT_H

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "net/stream.h"
#include "wire/ops.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
	CLIENT_QUEUE_MAX = 1024,     /* frames waiting to be sent */
	CLIENT_CONNECT_MS = 10000,   /* connect and HELLO, if the caller names no deadline */
	CLIENT_REQUEST_MS = 300000,  /* requests before the model's own `timeout` is known */
	CLIENT_WAITS_MS = 500,       /* how long a call that timed out asks whom it waited for */
	CLIENT_READ_BYTES = 1 << 20, /* received in one turn, so that others get the lock */
};

struct shard_client {
	unsigned char *alive; /* a page of its own that the kernel wipes in a forked child: 1 here, 0 there */
	bool tcp;
	char address[160];  /* as used, for texts */
	int64_t timeout_ms; /* of requests that belong to no model */
	void (*log)(void *arg, int level, const char *line);
	void *log_arg;
	int wake_fd;  /* eventfd: interrupts, and news for whoever sits in poll(2) */
	int event_fd; /* eventfd: set when a frame was handled by somebody else than shard_progress() */
	int epoll_fd; /* what shard_fd() returns: the socket (unix) and event_fd */
	_Atomic uint64_t interrupts;
	atomic_flag progress_busy;

	pthread_mutex_t lock;
	pthread_cond_t moved; /* something changed: whoever waits looks again */
	struct stream *stream;
	bool pumping;   /* a thread sits in poll(2) for all */
	bool event_set; /* event_fd is readable */
	bool news;      /* a frame was handled since news was cleared */
	bool stop, thread_runs;
	pthread_t thread; /* tcp only */
	uint32_t tag;
	struct list requests, models, zombies; /* zombies: detached models whose memory the stream still uses */
	struct shard_model *landing;           /* bulk is being received into its image */
	struct err over;                       /* status: the connection is over, and why */
	struct err last_words;                 /* an ERROR that announces the end */
};

/* --- text.c: the calling thread's sentence --- */
__attribute__((format(printf, 2, 3))) enum shard_status text_fail(enum shard_status st, const char *fmt, ...);
enum shard_status text_fail_err(const struct err *e); /* copies it */
enum shard_status text_no_memory(const char *what);   /* SHARD_SYSTEM with errno ENOMEM */
/* Structs with a size field: min(caller's, ours) bytes. In: the rest of ours is zero. Out: the caller's size field stays. */
enum shard_status text_struct_in(void *ours, size_t ours_bytes, const void *theirs, const char *name);
enum shard_status text_struct_ok(const void *theirs, const char *name); /* size was set */
void text_struct_out(void *theirs, const void *ours, size_t ours_bytes);

/* --- dial.c --- */
enum shard_status dial_check(const char *address, bool *tcp); /* before anything is allocated */
/* A connected, close-on-exec, non-blocking socket in *fd. */
enum shard_status dial(const char *address, uint64_t deadline_ns, int *fd);

/* --- hello.c --- */
struct auth;
struct wait;
enum shard_status hello_say(struct shard_client *c, const struct auth *auth, struct wait *w); /* auth NULL: there is no secret */

/* --- pump.c: who reads the socket, and how a call waits --- */
struct wait { /* of one call */
	uint64_t began_ns, deadline_ns, interrupts;
	bool polled;
};
/* SHARD_FORKED in a child; else locks, and SHARD_OK or why the connection is over (then not locked). */
enum shard_status client_enter(struct shard_client *c);
bool client_forked(const struct shard_client *c);
void client_leave(struct shard_client *c);
void wait_begin(struct shard_client *c, struct wait *w, int64_t timeout_ms);
double wait_seconds(const struct wait *w); /* so far */
/* Call with the lock, in a loop around a predicate: SHARD_OK: look again. SHARD_TIMEOUT leaves the text to the caller;
 * SHARD_INTERRUPTED and the end of the connection have theirs. */
enum shard_status pump_wait(struct shard_client *c, struct wait *w);
void pump_moved(struct shard_client *c);              /* something changed by other means than a frame: whoever waits looks again */
void pump_kick(struct shard_client *c);               /* something was queued: write it now, or see that somebody does */
enum shard_status pump_once(struct shard_client *c);  /* read and write what is possible now */
enum shard_status pump_start(struct shard_client *c); /* the thread, on tcp */
void pump_stop(struct shard_client *c);

/* --- request.c: a frame with a tag, and its reply --- */
struct request {
	struct list node;
	struct shard_client *c;
	uint32_t tag;
	uint16_t op;
	bool answered, sent, dropped;               /* dropped: nobody waits; freed when answered and sent */
	struct wire_head head;                      /* of the reply */
	struct err err;                             /* what the reply refused with */
	unsigned char *body;                        /* control reply, malloc'ed */
	uint32_t body_bytes;                        /* of the reply */
	uint64_t heard_ns, done_bytes, total_bytes; /* of the last PROGRESS */
	int fds[2], fds_nr;
	uint32_t data_bytes; /* room in data: bulk to send, or where a bulk reply lands */
	unsigned char data[];
};
struct request *request_new(struct shard_client *c, uint16_t op, uint32_t data_bytes); /* NULL: text is set */
/* h: model and whatever the op asks for; op and tag are filled in. Waits for room in the queue. */
enum shard_status request_send(struct request *r, struct wire_head h, const ProtobufCMessage *msg, struct wait *w);
enum shard_status request_send_bulk(struct request *r, struct wire_head h, uint32_t bytes, struct wait *w);
enum shard_status request_wait(struct request *r, struct wait *w); /* the reply's status and text; TIMEOUT without text */
void request_free(struct request *r);                              /* NULL is fine */
struct request *request_find(struct shard_client *c, const struct wire_head *h);
void request_answer(struct request *r, const struct wire_head *h, const void *body); /* from incoming.c, in on_frame */

/* --- incoming.c: what arrives --- */
extern const struct stream_handler incoming_handler;

#endif
