/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: one connection to one daemon, as the files of the library see it: who may touch what,
 * how a call waits, how a request finds its reply. Everything that is neither constant nor atomic
 * is touched with the lock held; poll(2), copies of gradients and the user's log function run
 * without it. */
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

/* What pump.c tells the layers above it, with the lock held. */
struct client_events {
	/* Queue what waits in the models. True: the stream had no room for all of it. */
	bool (*flush)(struct shard_client *c);
	/* The connection has just ended; ->over says why. */
	void (*over)(struct shard_client *c);
	/* Frames were read and written, and bodies given back. */
	void (*turned)(struct shard_client *c);
};

struct shard_client {
	const struct client_events *events;
	unsigned char
		*alive; /* a page of its own, 1 here, that the kernel wipes in a forked child */
	bool tcp;
	char address[160];  /* as used, for texts */
	int64_t timeout_ms; /* of requests that belong to no model */
	uint32_t silent_ms; /* for so long an answer is waited for before shardd is asked whether it
			       runs, and then again before it is taken not to */
	void (*log)(void *arg, int level, const char *line); /* the caller's, or NULL */
	void *log_arg;
	int wake_fd;  /* eventfd: interrupts, and news for the thread that sits in poll(2) */
	int event_fd; /* eventfd: another call than shard_progress() has handled a frame */
	int epoll_fd; /* what shard_fd() returns: event_fd, and on a unix socket the socket */
	_Atomic uint64_t interrupts; /* how often shard_interrupt() was called */
	atomic_flag progress_busy;   /* A thread is in shard_progress(). */

	pthread_mutex_t lock;
	pthread_cond_t moved; /* Something changed: all that wait look again. */
	struct stream *stream;
	bool pumping;     /* A thread sits in poll(2) for all. */
	bool event_set;   /* event_fd is readable. */
	bool news;        /* A frame was handled since this was cleared. */
	bool stop;        /* The thread has to end. */
	bool thread_runs; /* tcp only */
	pthread_t thread;
	uint32_t tag;                /* of the last request */
	struct list requests;        /* those that are under way */
	struct list models;          /* attached ones */
	struct list zombies;         /* detached models whose memory the stream still uses */
	struct shard_model *landing; /* A bulk body is being received into its image. */
	struct err over;             /* Once it has a status, the connection is over. */
	struct err last_words;       /* an ERROR that announced the end */
};

/* --- text.c: the calling thread's sentence --- */
__attribute__((format(printf, 2, 3))) enum shard_status text_fail(enum shard_status st,
								  const char *fmt, ...);
/* Copies the sentence and returns the status. */
enum shard_status text_fail_err(const struct err *e);
/* SHARD_SYSTEM with errno ENOMEM. */
enum shard_status text_no_memory(const char *what);
/* A struct with a size field: copies min(caller's, ours) bytes, and the rest of ours is zero. */
enum shard_status text_struct_in(void *ours, size_t ours_bytes, const void *theirs,
				 const char *name);
/* The caller has set its size. */
enum shard_status text_struct_ok(const void *theirs, const char *name);
/* The other way round. The caller's size field stays. */
void text_struct_out(void *theirs, const void *ours, size_t ours_bytes);

/* --- dial.c --- */
/* Refuses an address that cannot be, before anything is allocated. */
enum shard_status dial_check(const char *address, bool *tcp);
/* A connected, close-on-exec, non-blocking socket in *fd. */
enum shard_status dial(const char *address, uint64_t deadline_ns, int *fd);

/* --- hello.c --- */
struct auth;
struct wait;
/* auth NULL: there is no secret. */
enum shard_status hello_say(struct shard_client *c, const struct auth *auth, struct wait *w);

/* --- pump.c: who reads the socket, and how a call waits --- */
struct wait { /* of one call */
	uint64_t began_ns, deadline_ns;
	uint64_t interrupts; /* what the client had counted when it began */
	bool polled;         /* It has looked at the socket at least once. */
};
/* Takes the lock and returns SHARD_OK. Without the lock: SHARD_FORKED in a forked child, or why the
 * connection is over. */
enum shard_status client_enter(struct shard_client *c);
bool client_forked(const struct shard_client *c);
/* With the lock. A read may bring the last frame and the end of the connection at once: whoever
 * waited for the frame looks here before it begins something new on it. */
enum shard_status client_alive(const struct shard_client *c);
void client_leave(struct shard_client *c);
void wait_begin(struct shard_client *c, struct wait *w, int64_t timeout_ms);
/* How long it has lasted so far. */
double wait_seconds(const struct wait *w);
/* Call it in a loop around a predicate. SHARD_OK: look again. SHARD_TIMEOUT leaves the text to the
 * caller; SHARD_INTERRUPTED and the end of the connection have theirs. */
enum shard_status pump_wait(struct shard_client *c, struct wait *w);
/* Lets time pass, and frames come in. SHARD_OK: so long; else as pump_wait() of w. */
enum shard_status pump_pause(struct shard_client *c, const struct wait *w, uint64_t ns);
/* Something changed by other means than a frame: all that wait look again. */
void pump_moved(struct shard_client *c);
/* Something was queued: writes it now, or sees to it that another thread does. */
void pump_kick(struct shard_client *c);
/* Reads and writes what is possible now. */
enum shard_status pump_once(struct shard_client *c);
/* The same, for a call that does not wait: what it reads may be what others wait for. */
enum shard_status pump_look(struct shard_client *c);
/* tcp: the thread. */
enum shard_status pump_start(struct shard_client *c);
void pump_stop(struct shard_client *c);

/* --- incoming.c: what arrives --- */
extern const struct stream_handler incoming_handler;

#endif
