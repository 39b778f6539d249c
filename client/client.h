/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: one connection to one daemon, for the files of the library: which field is protected
 * how, how a call waits, how a request finds its reply. What is neither constant nor atomic is
 * touched with the lock held. poll(2), copies of gradients and the user's log run without it. */
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
	CLIENT_QUEUE_MAX = 1024,     /* Frames waiting to be sent. */
	CLIENT_CONNECT_MS = 10000,   /* Connect and HELLO, if the caller names no deadline. */
	CLIENT_REQUEST_MS = 300000,  /* Requests before the model's own `timeout` is known. */
	CLIENT_WAITS_MS = 500,       /* How long a call that timed out asks what it waited for. */
	CLIENT_READ_BYTES = 1 << 20, /* Received in one turn, so that others get the lock. */
	WIRE_RUN_MAX = 80,           /* Room for a run_id. */
};

/* What pump.c tells the layers above it, with the lock held. */
struct client_events {
	/* Queues what waits in the models. True: the stream had no room for all of it. */
	bool (*flush)(struct shard_client *c);
	/* The connection is ending. True: it will be made again. */
	bool (*heals)(const struct shard_client *c);
	/* The connection has just ended. ->over says why. */
	void (*over)(struct shard_client *c);
	/* Frames were read and written, and bodies given back. */
	void (*turned)(struct shard_client *c);
};

struct shard_client {
	const struct client_events *events;
	/* A page of its own that holds 1. In a forked child the kernel wipes it. */
	unsigned char *alive;
	bool tcp;
	char address[160];  /* As used, for texts. */
	int64_t timeout_ms; /* Of requests that belong to no model. */
	/* After this long without an answer shardd is asked for a sign of life. After as long again
	 * it is taken to hang. */
	uint32_t silent_ms;
	void (*log)(void *arg, int level, const char *line); /* The caller's, or NULL. */
	void *log_arg;
	int wake_fd;  /* eventfd: interrupts, and news for the thread in poll(2). */
	int event_fd; /* eventfd: a call other than shard_progress() handled a frame. */
	int epoll_fd; /* Returned by shard_fd(): event_fd, and on unix the socket. */
	/* How often shard_interrupt() was called. It points to own_interrupts, or to those of the
	 * connection that this one takes the place of. */
	_Atomic uint64_t *interrupts;
	_Atomic uint64_t own_interrupts;
	atomic_flag progress_busy; /* A thread is in shard_progress(). */

	uint64_t look_ns;          /* How long again.c looks for the daemon. 0: not at all. */
	char *secret, *tls;        /* The caller's, for again.c. */
	char run_id[WIRE_RUN_MAX]; /* Of the daemon's cluster. Empty: it did not say. */

	pthread_mutex_t lock;
	pthread_cond_t moved; /* Something changed, and all waiting calls look again. */
	struct stream *stream;
	bool pumping;     /* A thread sits in poll(2) for all. */
	bool healing;     /* A call makes the connection again. */
	uint32_t waiting; /* Calls that wait in pump.c. */
	bool event_set;   /* event_fd is readable. */
	bool news;        /* A frame was handled since this was cleared. */
	bool stop;        /* The thread has to end. */
	bool thread_runs; /* tcp only. */
	pthread_t thread;
	uint32_t wire_minor;         /* The daemon's, where its HELLO is not only a brief one. */
	uint32_t tag;                /* Of the last request. */
	struct list requests;        /* Requests that are under way. */
	struct list models;          /* Attached models. */
	struct list zombies;         /* Detached models whose memory the stream still uses. */
	struct shard_model *landing; /* A bulk body is being received into its image. */
	/* Once it has a status, the connection is over: for ever, or with SHARD_WORLD_CHANGED until
	 * again.c has made it again. */
	struct err over;
	struct err last_words; /* An ERROR that announced the end. */
};

/* --- text.c: the calling thread's sentence --- */
/* A call begins: the sentence of an earlier one is none about this one. */
void text_begin(void);
__attribute__((format(printf, 2, 3))) enum shard_status text_fail(enum shard_status st,
								  const char *fmt, ...);
/* Copies the sentence and returns the status. */
enum shard_status text_fail_err(const struct err *e);
/* SHARD_SYSTEM with errno ENOMEM. */
enum shard_status text_no_memory(const char *what);
/* For a struct with a size field. Copies min(caller's, ours) bytes. The rest of ours is zero. */
enum shard_status text_struct_in(void *ours, size_t ours_bytes, const void *theirs,
				 const char *name);
/* Checks that the caller has set its size. */
enum shard_status text_struct_ok(const void *theirs, const char *name);
/* Copies from ours to the caller's. The caller's size field stays. */
void text_struct_out(void *theirs, const void *ours, size_t ours_bytes);

/* --- dial.c --- */
/* Refuses an invalid address before anything is allocated. */
enum shard_status dial_check(const char *address, bool *tcp);
/* A connected, close-on-exec, non-blocking socket in *fd. */
enum shard_status dial(const char *address, uint64_t deadline_ns, int *fd);

/* --- hello.c --- */
struct auth;
struct tls;
struct wait; /* auth NULL: there is no secret. tls NULL: nor TLS. */
enum shard_status hello_say(struct shard_client *c, const struct auth *auth, const struct tls *tls,
			    struct wait *w);

/* --- pump.c: who reads the socket, and how a call waits --- */
/* The waiting of one call. */
struct wait {
	uint64_t began_ns, deadline_ns;
	uint64_t interrupts; /* The client's count when the wait began. */
	bool polled;         /* The call has looked at the socket at least once. */
};
/* Takes the lock and returns SHARD_OK. Otherwise it does not have the lock and returns SHARD_FORKED
 * in a forked child, or why the connection is over. */
enum shard_status client_enter(struct shard_client *c);
bool client_forked(const struct shard_client *c);
/* With the lock. One read may bring the awaited frame and the end of the connection. A call that
 * got its frame checks here before it begins something new on the connection. */
enum shard_status client_alive(const struct shard_client *c);
void client_leave(struct shard_client *c);
void wait_begin(struct shard_client *c, struct wait *w, int64_t timeout_ms);
/* How long it has lasted so far. */
double wait_seconds(const struct wait *w);
/* Call it in a loop around a predicate. SHARD_OK: check the predicate again. For SHARD_TIMEOUT the
 * caller sets the text. SHARD_INTERRUPTED and the end of the connection have theirs. */
enum shard_status pump_wait(struct shard_client *c, struct wait *w);
/* Lets time pass, and frames come in. SHARD_OK: ns have passed. Otherwise as pump_wait() of w. */
enum shard_status pump_pause(struct shard_client *c, const struct wait *w, uint64_t ns);
/* Something changed by other means than a frame. All waiting calls look again. */
void pump_moved(struct shard_client *c);
/* Waits until that is called, or until the deadline, and reads nothing. */
void pump_moves(struct shard_client *c, uint64_t deadline_ns);
/* The connection is over. Waits until every call that waits has seen that. */
void pump_drain(struct shard_client *c);
/* Without the lock, while nobody pumps. Sleeps, until shard_interrupt() at most. c may be NULL. */
void pump_nap(struct shard_client *c, uint64_t ns);
/* Something was queued. Writes it now, or has another thread do that. */
void pump_kick(struct shard_client *c);
/* Reads and writes what is possible now. */
enum shard_status pump_once(struct shard_client *c);
/* The same, for a call that does not wait. It also wakes those that wait for what it reads. */
enum shard_status pump_look(struct shard_client *c);
/* tcp: the thread. */
enum shard_status pump_start(struct shard_client *c);
void pump_stop(struct shard_client *c);

/* --- incoming.c: what arrives --- */
extern const struct stream_handler incoming_handler;

#endif
