/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard - push gradients to, and pull parameters from, the shardd on this node
 *
 * DESCRIPTION
 * A daemon, shardd, runs on each node of a training job. Together the daemons hold the fp32 master
 * weights and the optimizer state of every model. A trainer links this library, connects to the
 * daemon of its own node, pushes gradients, and reads the updated parameters. It holds nothing that
 * cannot be lost.
 *
 * A connection (shard_client) is made by shard_connect(). An attachment to a model (shard_model)
 * is made on it by shard_define(), shard_attach() or shard_restore(). Training is a loop: join the
 * world, begin a step, push the gradient of each tensor, commit, take the result, read the new
 * parameters from the image. A step is applied on all nodes or on none. When another trainer dies
 * or joins, calls return SHARD_WORLD_CHANGED: ask for the new world and begin the step that it
 * says, which is nearly always the same one. When the daemon of this node is killed, started again
 * or upgraded, its models stay, and calls return SHARD_WORLD_CHANGED as well: shard_world_get()
 * connects and joins again, and every pointer stays valid (shard_connect_opts.look_ms).
 *
 * The library never exits, prints or aborts because of what a daemon, a peer or a caller did. It
 * installs no signal handler, unless shard_explain_faults() asks for one, and sets close-on-exec on
 * its descriptors. Over a unix socket it has no thread of its own: calls handle what arrives. Over
 * TCP it has one thread per connection, with all signals blocked. After a fork() the handles of the
 * parent are unusable in the child: every call there returns SHARD_FORKED, and shard_disconnect()
 * only frees what it can. Memory that is shared with the daemon is not mapped in the child.
 *
 * OWNERSHIP
 * A handle, and every pointer that it gave, ends with shard_detach() or shard_disconnect(). Memory
 * that shard_keep() handed over is the caller's, and outlives them. What a caller passes in is used
 * during the call only. The one exception is dst of shard_pull(), which is written until its ticket
 * is done. Names and texts that are passed in are copied. log_arg of struct shard_connect_opts is
 * passed on until shard_disconnect() has returned.
 *
 * Structs begin with their size. Start each of them with SHARD_INIT(struct NAME), which sets size
 * and zeroes the rest. A library of another release then knows which fields the caller has, and the
 * smaller of both sizes counts.
 *
 * THREADS
 * Most functions may be called by any thread, and by several at once, also on one handle. Some may
 * be called by any thread, but by one at a time: a second caller gets SHARD_BUSY, and nothing else
 * happens. Each function says which of the two it is. No call may overlap with shard_detach() of
 * its model or with shard_disconnect() of its connection.
 *
 * WAITING
 * timeout_ms is in milliseconds. 0 looks once and does not wait. SHARD_DEFAULT, or any other number
 * below 0, takes the `timeout` of the model. There is no "for ever". Calls on a model that have no
 * such argument wait for the model's `timeout`, and calls on a connection for 300 s. Where a call
 * asks the daemon to do something about a model as a whole, a daemon from which nothing is heard
 * for about 20 s, not even the answer to a question whether it runs, is waited for no longer.
 *
 * A call that gave up undoes nothing: make it again, and it goes on waiting for the same thing.
 * What is done once goes on without its caller: meanwhile shard_seal(), shard_save(),
 * shard_restore() and shard_drop() answer a second call with SHARD_BUSY, and afterwards with what
 * is then true, as SHARD_BAD_STATE for a model that is sealed.
 *
 * ERRORS
 * A status below 20 is normal life: the caller goes on. From 20 to 59 this call failed, and the
 * handle is as it was. From 60 on the handle is dead: detach it, or disconnect. Every call that
 * fails leaves one sentence in shard_error(): what, which tensor, rank or node, since when, and
 * what to do. Each function lists what it may return. Three lists are shared.
 *
 * ERRORS OF A CONNECTION
 * SHARD_BAD_ARG: a handle, or the place of a result, is NULL.
 * SHARD_SYSTEM: the system has no memory or no descriptor left; errno says which.
 * SHARD_FORKED: the handle belongs to the parent process. Connect again in this one.
 * SHARD_WORLD_CHANGED: the connection broke, and a model of it is joined: shard_world_get() of that
 *   model makes it again.
 * SHARD_CLOSED: the connection is over, because the daemon ended it for good, or because it stopped
 *   or died, and no model is joined or look_ms is below 0. The text has its words. Connect again.
 * SHARD_PROTOCOL: the daemon sent what cannot be read. The connection is over if the text says so.
 *
 * ERRORS OF A MODEL
 * SHARD_BAD_ARG: a handle, or the place of a result, is NULL.
 * SHARD_SYSTEM: the system has no memory or no descriptor left; errno says which.
 * SHARD_FORKED: the handle belongs to the parent process. Connect again in this one.
 * SHARD_WORLD_CHANGED: the connection broke, and this or another model of it is joined:
 *   shard_world_get() of that one makes it again.
 * SHARD_CLOSED: the connection is over, because the daemon put this trainer out, or because it
 *   stopped or died, and no model is joined or look_ms is below 0. The text has its words. Connect
 *   again.
 * SHARD_PROTOCOL: the daemon sent what cannot be read. The connection is over if the text says so.
 * SHARD_LOST: the weights of the model are gone, and no checkpoint brought them back. The text says
 *   how it goes on. Detach the handle.
 * SHARD_NOT_FOUND: the model was dropped. Detach the handle.
 *
 * ERRORS OF A CALL THAT WAITS
 * SHARD_TIMEOUT: it has not happened in time. The text says for whom or what the call waited. Make
 *   it again, unless the text says to disconnect first.
 * SHARD_INTERRUPTED: shard_interrupt() was called meanwhile. Make it again.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *	#include <stdio.h>
 *
 *	// Reads shard_image(), writes shard_grad(), and pushes each tensor.
 *	enum shard_status forward_backward(shard_model *m, uint64_t first, uint64_t count);
 *
 *	enum shard_status train(const char *name, uint64_t last, uint64_t batch)
 *	{
 *		struct shard_world w = SHARD_INIT(struct shard_world);
 *		struct shard_result r = SHARD_INIT(struct shard_result);
 *		struct shard_step s = SHARD_INIT(struct shard_step);
 *		uint64_t first, count;
 *		enum shard_status rc;
 *		shard_client *c;
 *		shard_model *m;
 *
 *		if ((rc = shard_connect(&c, NULL)) != SHARD_OK)
 *			return rc;
 *		if ((rc = shard_attach(c, name, &m)) == SHARD_OK)
 *			rc = shard_join(m, -1, SHARD_DEFAULT, &w);
 *		while (rc == SHARD_OK && w.step <= last) {
 *			struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
 *
 *			if ((rc = shard_samples(&w, batch, &first, &count)) != SHARD_OK)
 *				break;
 *			b.weight = count ? (double)count : SHARD_NO_SAMPLES;
 *			if ((rc = shard_begin(m, &b, &s)) == SHARD_OK && count)
 *				rc = forward_backward(m, first, count);
 *			if (rc == SHARD_OK)
 *				rc = shard_commit(m, NULL);
 *			if (rc == SHARD_OK)
 *				rc = shard_result(m, 0, SHARD_DEFAULT, &r);
 *			if (rc == SHARD_OK || rc == SHARD_WORLD_CHANGED || rc == SHARD_ROLLED_BACK)
 *				rc = shard_world_get(m, &w);
 *		}
 *		if (rc == SHARD_OK)
 *			rc = shard_leave(m, SHARD_DEFAULT);
 *		if (rc != SHARD_OK)
 *			fprintf(stderr, "train: %s: %s\n", shard_name(rc), shard_error());
 *		shard_disconnect(&c);
 *		return rc;
 *	}
 */
#ifndef SHARD_H
#define SHARD_H

#include <stddef.h>
#include <stdint.h>

#define SHARD_CALL __attribute__((visibility("default")))
#define SHARD_API  __attribute__((visibility("default"), warn_unused_result))
#ifdef __cplusplus
extern "C" {
#define SHARD_INIT(T)                                                                              \
	([] {                                                                                      \
		T t_{};                                                                            \
		t_.size = sizeof(t_);                                                              \
		return t_;                                                                         \
	}())
#else
#define SHARD_INIT(T) ((T){.size = sizeof(T)})
#endif

/* As timeout_ms: the `timeout` of the model. */
#define SHARD_DEFAULT (-1)
/* As weight: this trainer has no sample in the step, because the world is larger than the batch. */
#define SHARD_NO_SAMPLES (-1e300)
/* As shard_commit_opts.values_nr: the most numbers that a trainer gives with a step. */
#define SHARD_VALUES 16

/* A connection to one daemon, with its own socket. A process may have several. */
typedef struct shard_client shard_client;
/* An attachment of a connection to a model. */
typedef struct shard_model shard_model;
/* The number of something that will be done. Grows by one per model with each call that gives one,
 * and 0 is nothing to wait for. Who pulls or saves waits for the ticket. Pushes and commits take
 * NULL in its place, and that is what most callers give: the memory of a gradient is the caller's
 * again when shard_push() returns, and shard_result() with 0 is about the commit in hand. */
typedef uint64_t shard_ticket;

/* How a call ended. The numbers never change. */
enum shard_status {
	/* The call did what it is for. */
	SHARD_OK = 0,
	/* It cannot be done now, and nothing was taken. Call again later. */
	SHARD_AGAIN = 1,
	/* It has not happened in time. Nothing is undone: call again to go on waiting. */
	SHARD_TIMEOUT = 2,
	/* shard_interrupt() was called. Nothing is undone: call again to go on waiting. */
	SHARD_INTERRUPTED = 3,
	/* This attempt at the step is over, or the connection broke. Call shard_world_get(), then
	 * begin the step that it says. It is the same one again, unless nodes died and those that
	 * are left had voted: they may have committed the attempt, and then it is the next one. */
	SHARD_WORLD_CHANGED = 10,
	/* The model was lost, and came back from a checkpoint. The step that shard_world_get() says
	 * is an older one: seek in the data accordingly. */
	SHARD_ROLLED_BACK = 11,
	/* An argument cannot be what it is. */
	SHARD_BAD_ARG = 20,
	/* The call does not fit the state of the handle or the model. */
	SHARD_BAD_STATE,
	/* A number is outside what there is, or a buffer is too small. */
	SHARD_RANGE,
	/* An element was pushed already. */
	SHARD_DUPLICATE,
	/* Elements have another type than they have to have. */
	SHARD_DTYPE,
	/* Something was not pushed or not written. */
	SHARD_MISSING,
	/* What was asked for was there, and is not there any more. */
	SHARD_STALE,
	/* Two that have to be equal are not. */
	SHARD_MISMATCH,
	/* The memory of a node is too small for it. The text has the figures. */
	SHARD_BUDGET,
	/* The caller may not do it. */
	SHARD_DENIED,
	/* There is none of that name. */
	SHARD_NOT_FOUND,
	/* There is one already. */
	SHARD_EXISTS,
	/* Somebody else is doing it, or there is no room for one more. */
	SHARD_BUSY,
	/* The daemon is too old for it. */
	SHARD_UNSUPPORTED,
	/* The system refused. errno is as the system call left it. */
	SHARD_SYSTEM,
	/* The loss scale is at its floor, or max_skips steps in a row were skipped. The model is
	 * paused until somebody resumes it. */
	SHARD_DIVERGED,
	/* A daemon cannot be reached. */
	SHARD_UNREACHABLE = 60,
	/* The connection is over. */
	SHARD_CLOSED,
	/* Daemon and library have no version of the protocol in common. */
	SHARD_VERSION,
	/* Something cannot be read: a frame, or a file of a checkpoint. */
	SHARD_PROTOCOL,
	/* The weights of the model are gone. */
	SHARD_LOST,
	/* The handle belongs to the parent process. */
	SHARD_FORKED
};

/* Types of elements. */
enum shard_dtype {
	/* IEEE 754 binary32. */
	SHARD_F32 = 1,
	/* bfloat16, the upper half of an fp32. */
	SHARD_BF16 = 2,
	/* IEEE 754 binary16. */
	SHARD_F16 = 3
};

/* What there is of each element of a model. */
enum shard_kind {
	/* The parameters as trainers read them, in the image dtype of the tensor. */
	SHARD_IMAGE = 1,
	/* The fp32 weights that the optimizer updates. */
	SHARD_MASTER,
	/* The first moment of Adam, AdamW and Lion. */
	SHARD_EXP_AVG,
	/* The second moment of Adam and AdamW, and the sum of squares of Adagrad. */
	SHARD_EXP_AVG_SQ,
	/* The momentum of SGD. */
	SHARD_MOMENTUM,
	/* Gradients, in the model's grad dtype. */
	SHARD_GRAD
};

/* Flags of a tensor. */
enum {
	/* It is in the image only: it takes no gradient, has no state and no decay. */
	SHARD_FROZEN = 1
};

/* Flags of shard_push(). */
enum {
	/* Add to what was pushed in earlier micro-steps. */
	SHARD_ADD = 1,
	/* src has another dtype than the model's gradients: convert it. */
	SHARD_CAST = 2,
	/* The range is the sum over the ranks of this node already, and this rank alone pushes it.
	 */
	SHARD_SHARE = 4,
	/* The range lies in memory of shardd on the GPU: shard_device_region(). */
	SHARD_DEVICE = 8
};

/* What became of a committed step. */
enum shard_outcome {
	/* The weights were updated. */
	SHARD_APPLIED = 1,
	/* A gradient was Inf or NaN, and the weights are as they were. */
	SHARD_SKIPPED_NONFINITE,
	/* A rank voted to skip the step, and the weights are as they were. */
	SHARD_SKIPPED_VOTE
};

/* How to connect. */
struct shard_connect_opts {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* unix:/path, tcp://host:port or spawn:NAME. NULL takes $SHARD_ADDRESS, and without that
	 * unix:/run/shardd/shardd.sock. */
	const char *address;
	/* Over TCP only: the file with the cluster secret. NULL takes $SHARD_SECRET, and without
	 * that there is none. */
	const char *secret;
	/* How long connecting may take, in milliseconds. 0 or less: 10 s. */
	int64_t timeout_ms;
	/* Called by shard_connect() and shard_disconnect(), in the caller's thread and without any
	 * lock. line ends when the function returns; level is as in syslog. NULL: none. */
	void (*log)(void *arg, int level, const char *line);
	/* Passed to log. */
	void *log_arg;
	/* How long to look for a daemon that is not there, in milliseconds. Above 0:
	 * shard_connect() waits that long for one that is still to be started, and
	 * shard_world_get() and shard_join() for one that is gone, for each break of the
	 * connection. Below 0: neither does, and a connection that breaks is SHARD_CLOSED. 0:
	 * shard_connect() does not wait, because where nobody listens the address is most likely
	 * wrong, and the other two look for 300 s, because a daemon that was there comes back: a
	 * service manager needs seconds to start it again, and taking up large models a minute or
	 * two. */
	int64_t look_ms;
	/* Over TCP only, as [net] tls of the daemon: "off"; "psk", which needs the secret; or, for
	 * a daemon with mtls, the path of a folder with tls.crt, tls.key and ca.crt in PEM, or the
	 * paths of these three with commas between. NULL takes $SHARD_TLS, and without that it is
	 * off. */
	const char *tls;
};

/* One tensor of a model that is being defined. */
struct shard_tensor {
	/* 1 to 255 bytes of UTF-8 without blanks, double quotes and control characters. */
	const char *name;
	/* Dimensions, from 0 (a scalar) to 8. */
	uint32_t ndim;
	/* Index into shard_spec.groups; 0 if there are none. */
	uint32_t group;
	/* 0 or SHARD_FROZEN. */
	uint32_t flags;
	/* Elements in each dimension. With a 0 the tensor has no elements: its pushes, pulls, reads
	 * and writes, of count 0, do nothing, and no step waits for it. */
	uint64_t shape[8];
	/* Must be zero. */
	uint64_t reserved[3];
	/* What trainers read of this tensor, if that is not shard_spec.image: an enum shard_dtype,
	 * as SHARD_F32 for the norms and the router of a bf16 model. 0: as the model. Gradients are
	 * of the model's grad dtype in any case. */
	uint32_t image;
	/* Must be zero. */
	uint32_t reserved_32;
};

/* Tensors that share settings. */
struct shard_group {
	/* 1 to 64 of a-z 0-9 . _ - */
	const char *name;
	/* Its own settings, as "lr_factor=0.1 weight_decay=0"; NULL: none. */
	const char *settings;
};

/* A model that is being defined. */
struct shard_spec {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* 1 to 64 of a-z 0-9 . _ - where a new model's does not begin with the last of these, which
	 * commands take for an option. */
	const char *name;
	/* Its tensors. Everybody knows them by their index from here on. */
	const struct shard_tensor *tensors;
	/* How many tensors there are, 1 to 2^20, with 1 to 2^44 elements together. */
	uint32_t tensors_nr;
	/* Its groups, or NULL. */
	const struct shard_group *groups;
	/* How many groups there are, 0 to 256. With 0 all tensors are in one. */
	uint32_t groups_nr;
	/* What trainers read, of the tensors that do not say otherwise. */
	enum shard_dtype image;
	/* What trainers push. */
	enum shard_dtype grad;
	/* "optimizer=adamw lr=3e-4 clip=1.0 schedule=WarmupLR ...": the keys of [model] in
	 * shardd.conf, separated by blanks. NULL: none. */
	const char *settings;
	/* For a caller that does not hold the weights: how long it waits, in milliseconds, until
	 * another one has defined the model. SHARD_DEFAULT: 300 s. It never defines the model
	 * itself, and never gets created = 1. 0: it may. */
	int64_t wait_ms;
};

/* One tensor of a model that exists. */
struct shard_info {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* Its name, which lives as long as the handle. */
	const char *name;
	/* Where it begins in the element space, in elements. In SHARD_GRAD, the distance from the
	 * base that shard_region() gives is this times the size of an element. Tensors with an
	 * image dtype of their own come after all others. */
	uint64_t offset;
	/* Its elements. */
	uint64_t numel;
	/* The index of its group. */
	uint32_t group;
	/* 0 or SHARD_FROZEN. */
	uint32_t flags;
	/* Its dimensions. */
	uint32_t ndim;
	/* Elements in each of them. */
	uint64_t shape[8];
	/* The type of its elements in the image. 0: the library is older than this field, and it is
	 * shard_spec.image. */
	uint32_t image;
	/* The type of its elements in the arena. 0: the library is older than this field, and it is
	 * shard_spec.grad. */
	uint32_t grad;
	/* Where it begins in SHARD_IMAGE, in bytes from the base that shard_region() gives. */
	uint64_t image_offset;
	/* Of the whole model: how often the memory of arena and image was mapped. It grows with
	 * shard_join(), and with each connection that was made again. Then the addresses stay the
	 * same, and the memory is another one: whoever registered it with a device does so again.
	 * 0: it was not mapped, or the library is older than this field. */
	uint64_t mapped;
};

/* Who trains, as one trainer sees it. */
struct shard_world {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* This trainer, from 0 on. */
	uint32_t rank;
	/* All trainers. */
	uint32_t world_size;
	/* This trainer among those of this node, from 0 on. */
	uint32_t local_rank;
	/* All trainers of this node. */
	uint32_t local_size;
	/* With seq, the number of the daemons' view in which the attempt was made, as TERM.SEQ in
	 * `shardctl status` and `shardctl history`. No call takes it: it is for log lines. The term
	 * grows when another node begins to coordinate. */
	uint64_t term;
	/* The number of the view within the term. It grows when nodes come or go, or chunks move.
	 * Trainers that come or go do not change it. */
	uint64_t seq;
	/* The step to begin next: the last one that was committed, plus one. */
	uint64_t step;
	/* Why the world changed, as "rank 3 (pid 712 on node b) closed its socket"; empty if it did
	 * not. It lives until the next call on the model. */
	const char *why;
};

/* What this trainer brings to a step. */
struct shard_begin_opts {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* The update uses the sum of all gradients divided by the sum of all weights. Give the
	 * number of samples or tokens that the gradient is a sum over. 0 is 1.0, which makes the
	 * mean over the ranks of gradients that are means themselves. That is the mean over all
	 * samples only where all ranks have equally many. Where they have not, multiply the loss,
	 * which is a mean in most frameworks, by the count before the backward pass, beside
	 * shard_step.loss_scale, and give the count here. SHARD_NO_SAMPLES is a weight of 0, and
	 * every tensor counts as pushed by shard_push_none(): commit right away. A step in which no
	 * rank has samples changes nothing (SHARD_SKIPPED_NONFINITE). */
	double weight;
	/* How often each element is pushed, with SHARD_ADD, in this step. 0 is 1. More than one
	 * costs fp32 sums in this process, 4 bytes per element. */
	uint32_t micro_steps;
	/* A schedule of the caller's own: one learning rate per group, equal on all ranks. NULL
	 * takes the model's. */
	const double *lr;
};

/* What this trainer decides when its gradients are complete. */
struct shard_commit_opts {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* One learning rate per group, equal on all ranks, for a schedule of the caller's own that
	 * moves while a step is under way. It takes the place of what shard_begin() was given.
	 * NULL: that, or the model's. */
	const double *lr;
	/* Numbers of this trainer's own: the loss, tokens, right answers. They change nothing of
	 * the step. shard_result() has the sums over all ranks. NULL: none. */
	const double *values;
	/* How many there are, at most SHARD_VALUES. Ranks may give different numbers of them: what
	 * a rank does not give counts as 0. */
	uint32_t values_nr;
	/* The largest norm of the gradient, for this step alone, equal on all ranks. A pointer to 0
	 * does not clip. It comes before `clip` of the settings and what shard_set() put in its
	 * place. NULL: those. */
	const double *clip;
};

/* A step that has begun. */
struct shard_step {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* Which step, counted from the seal on. */
	uint64_t step;
	/* Which attempt at it; 0 if the step before is undecided (max_staleness = 1). */
	uint64_t attempt;
	/* This trainer. */
	uint32_t rank;
	/* All trainers. */
	uint32_t world_size;
	/* Multiply the loss by it before the backward pass. The daemons divide by it. */
	double loss_scale;
};

/* Memory, and what a write into it says. */
struct shard_fault_range {
	/* Its first byte. */
	const void *base;
	/* How many bytes it has. */
	size_t bytes;
	/* What is written to stderr. It ends with a line end and a zero. Not NULL. */
	const char *text;
};

/* All that shard_explain_faults() knows. */
struct shard_faults {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* The ranges, in any order. */
	const struct shard_fault_range *ranges;
	/* How many there are. */
	size_t ranges_nr;
};

/* How to save. */
struct shard_save_opts {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* The folder of checkpoints: an absolute path of at most 1023 bytes, the same on all nodes.
	 * NULL: checkpoint_dir. */
	const char *dir;
	/* The name of the checkpoint in the folder. NULL: global_step and the number of the
	 * step. */
	const char *tag;
	/* A folder of the caller's with files for the checkpoint: an absolute path of at most 1023
	 * bytes. NULL: none. */
	const char *client;
};

/* Memory of a model that was handed over to the caller. */
struct shard_kept {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* Where it begins: where shard_region() said it does. */
	void *base;
	/* Its length in bytes. */
	size_t bytes;
	/* Of the image: the step that left these weights; UINT64_MAX: none did yet. */
	uint64_t step;
	/* Of the image: not 0 if some of the weights are of another step. step is then the oldest.
	 */
	uint32_t mixed;
};

/* A step that was decided. */
struct shard_result {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* Whether it changed the weights. */
	enum shard_outcome outcome;
	/* Which step. */
	uint64_t step;
	/* How many steps were applied so far: the t of Adam's bias correction. */
	uint64_t applied;
	/* The number of the attempt that was committed. */
	uint64_t attempts;
	/* How many steps in a row were skipped, this one included. 0 if it was applied. */
	uint64_t skipped_in_row;
	/* The global norm of the gradient, without loss scale and before the clip. NaN if the step
	 * was skipped. */
	double grad_norm;
	/* What the gradient was multiplied by to keep its norm at most `clip`. */
	double clip_factor;
	/* The sum of the weights that the ranks gave to shard_begin(). */
	double weight_sum;
	/* The loss scale of this step. */
	double loss_scale;
	/* The loss scale of the next one. */
	double next_loss_scale;
	/* The learning rate of group 0; of a skipped step, what it would have been. */
	double lr;
	/* The first tensor with a gradient that is Inf or NaN; -1: none. */
	int64_t bad_tensor;
	/* The first rank that pushed it; -1: none. With SHARD_SHARE it is the one whose share it is
	 * in, and the gradient may be that of any rank of its node. */
	int32_t bad_rank;
	/* How long this trainer's calls on the model waited since shard_begin(), in nanoseconds. */
	uint64_t wait_ns;
	/* From the first sum of gradients on this node to the last, in nanoseconds. */
	uint64_t reduce_ns;
	/* How long it took to apply the step before this one, in nanoseconds. */
	uint64_t apply_ns;
	/* Gradients that this trainer pushed in this attempt, in bytes. */
	uint64_t pushed_bytes;
	/* Parameters that came to this trainer since the result before, in bytes. */
	uint64_t pulled_bytes;
	/* All trainers of this step. */
	uint32_t world_size;
	/* The rank that took longest from the beginning of the attempt to its commit; UINT32_MAX:
	 * it is not known. */
	uint32_t slowest_rank;
	/* What the ranks gave to shard_commit_opts(), each summed over all ranks of this step in
	 * the order of their ranks, so that all trainers get the same bits, also after a recovery.
	 * 0: nobody gave it. A step that was skipped has them, too. */
	double values[SHARD_VALUES];
};

/*
 * TEXTS
 *
 * What a status is called, why the last call failed, and which release this is.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *	#include <stdio.h>
 *
 *	// Says why a call failed. True: the handle is dead, connect again.
 *	int handle_is_dead(enum shard_status st)
 *	{
 *		if (st >= SHARD_BAD_ARG)
 *			fprintf(stderr, "%s: %s\n", shard_name(st), shard_error());
 *		return st >= SHARD_UNREACHABLE;
 *	}
 */

/*
 * shard_version - say which release of the library this is
 *
 * DESCRIPTION
 * The release, the versions of the protocol that it speaks, and the number of its ABI, as
 * "0.1.0 wire 1-1 abi 0".
 *
 * RETURN VALUE
 * A constant text.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL const char *shard_version(void);

/*
 * shard_name - say what a status is called
 *
 * DESCRIPTION
 * The name of a status as it stands in shard.h, as "SHARD_WORLD_CHANGED".
 *
 * ARGUMENTS
 * status: any number. One that this library does not know has a text, too.
 *
 * RETURN VALUE
 * A constant text.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL const char *shard_name(enum shard_status status);

/*
 * shard_error - say why the last call of this thread failed
 *
 * DESCRIPTION
 * One sentence for whoever reads the log: what failed, which tensor, rank or node, since when, and
 * what to do. Ask for it when a call has failed. After one that did not fail the sentence is still
 * there, with "the last call did not fail; an earlier one did: " in front of it. shard_detach() and
 * shard_disconnect() leave it as it was.
 *
 * RETURN VALUE
 * A text of the calling thread, which is valid until its next call. Empty if none has failed yet.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it, and several at once. Each thread has a sentence of its own.
 */
SHARD_CALL const char *shard_error(void);

/*
 * CONNECTION
 *
 * A connection leads to one daemon, by default to the one of this node. Over a unix socket
 * gradients and parameters lie in memory that is shared with the daemon. Over TCP they are sent.
 *
 * EXAMPLE
 *
 *	#include <poll.h>
 *	#include <shard.h>
 *
 *	// A private daemon, which is started if it does not run, and an event loop of the caller's.
 *	enum shard_status watch(int *stop)
 *	{
 *		struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
 *		enum shard_status rc;
 *		shard_client *c;
 *
 *		o.address = "spawn:demo";
 *		o.timeout_ms = 5000;
 *		if ((rc = shard_connect(&c, &o)) != SHARD_OK)
 *			return rc;
 *		while (rc == SHARD_OK && !*stop) {
 *			struct pollfd p = {shard_fd(c), POLLIN, 0};
 *
 *			if (poll(&p, 1, 1000) > 0)
 *				rc = shard_progress(c); // then shard_test() the tickets
 *		}
 *		shard_disconnect(&c);
 *		return rc;
 *	}
 */

/*
 * shard_connect - connect to a daemon
 *
 * DESCRIPTION
 * Opens a socket, agrees on the version of the protocol and, over TCP with a secret, proves on both
 * sides that the secret is known. With `tls` all of that is encrypted, and what follows. The
 * library libshard-tls.so.0 and OpenSSL 3 are loaded then, and only then.
 *
 * The address spawn:NAME stands for a private daemon of this user. If none runs under that name it
 * is started. It ends five minutes after its last connection, and its models end with it: a trainer
 * that comes back later begins anew. $SHARD_LINGER, in the environment of the process that starts
 * it, sets another time, as in 12h. All processes of the user that name it share it. The program is
 * looked for at $SHARD_DAEMON, beside the library, and in $PATH.
 *
 * ARGUMENTS
 * client: where the connection is put. The caller ends it with shard_disconnect(). NULL after a
 *   failure.
 * opts: how to connect. NULL takes the defaults, which are the daemon of this node and 10 s.
 *
 * ERRORS
 * SHARD_BAD_ARG: client is NULL, opts were not started with SHARD_INIT(), the address is none, or
 *   the file of the secret is no key, or others may read it, or a certificate of `tls` is wrong.
 * SHARD_SYSTEM: no memory, no descriptor, no thread, the file of the secret cannot be read, what
 *   `tls` needs cannot be loaded, or a private daemon cannot be started or ended at once; errno is
 *   kept.
 * SHARD_UNREACHABLE: nobody listens at the address, the host is not known, or this user may not
 *   open the socket. With look_ms the text says how long and how often it was tried.
 * SHARD_TIMEOUT: the daemon accepted the connection and did not answer in time, or a private daemon
 *   did not start in time.
 * SHARD_DENIED: the secret is another one, or only one side has a secret, or TLS, or one refuses
 *   the certificate of the other. With spawn: the folder or the daemon is another user's, or others
 *   could get in.
 * SHARD_NOT_FOUND: with spawn: there is no shardd to start.
 * SHARD_BUSY: the daemon has as many connections as it may have, of all or of this user.
 * SHARD_VERSION: daemon and library have no version of the protocol in common.
 * SHARD_CLOSED: the daemon ended the connection before it answered, because it stops, for example.
 * SHARD_PROTOCOL: what answered does not speak the protocol.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_connect(shard_client **client,
					  const struct shard_connect_opts *opts);

/*
 * shard_disconnect - end a connection
 *
 * DESCRIPTION
 * Detaches all models of the connection, closes it and frees everything. A trainer that is joined
 * counts as lost: its attempt ends, and the others go on without it. Call shard_leave() first to
 * go without that. Pulls that wait do not write to their dst any more. In a forked child it closes
 * the descriptors and tells the daemon nothing.
 *
 * ARGUMENTS
 * client: where the connection is. It is set to NULL. NULL, or a connection that is NULL, is fine.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it. No other call on the connection or on its models may overlap with it.
 */
SHARD_CALL void shard_disconnect(shard_client **client);

/*
 * shard_fd - a descriptor that says when to look
 *
 * DESCRIPTION
 * The descriptor is readable when something arrived, so that a ticket may be done or an event may
 * be there. Watch it with poll() or epoll, and call shard_progress() when it is readable. Never
 * read it, write it or close it.
 *
 * ARGUMENTS
 * client: the connection, which owns the descriptor.
 *
 * RETURN VALUE
 * The descriptor, or -1, and shard_error() says why.
 *
 * ERRORS
 * SHARD_BAD_ARG: client is NULL.
 * SHARD_FORKED: the connection belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL int shard_fd(const shard_client *client);

/*
 * shard_progress - handle what arrived, without waiting
 *
 * DESCRIPTION
 * Reads and writes what is possible now, completes tickets, and makes shard_fd() unreadable. A loop
 * that never waits in this library has to call it. Calls that wait do the same for themselves.
 *
 * ARGUMENTS
 * client: the connection.
 *
 * ERRORS
 * SHARD_BUSY: another thread is in shard_progress() of this connection.
 * Also the errors of a connection.
 *
 * THREADS
 * Any thread may call it, but one at a time for each connection.
 */
SHARD_API enum shard_status shard_progress(shard_client *client);

/*
 * shard_interrupt - make calls that wait return
 *
 * DESCRIPTION
 * All calls that wait now, on the connection and on its models, return SHARD_INTERRUPTED. Calls
 * that begin later are not affected. Nothing is undone: what they waited for is still under way.
 *
 * ARGUMENTS
 * client: the connection. NULL is fine.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it, several at once, and also a signal handler: it is async-signal-safe and
 * keeps errno.
 */
SHARD_CALL void shard_interrupt(shard_client *client);

/*
 * MODEL
 *
 * A model is made once, by the first trainer that defines it, and outlives every trainer. Whoever
 * defines it later with an equal layout and equal settings is attached to it. One caller, the one
 * that gets created = 1, writes the initial weights and seals the model. From then on only training
 * changes it.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Two tensors, of which the second has no weight decay. Every trainer runs this.
 *	enum shard_status open_model(shard_client *c, const float *const w[2], shard_model **m)
 *	{
 *		static const struct shard_tensor tensors[] = {
 *			{.name = "linear.weight", .ndim = 2, .shape = {256, 512}},
 *			{.name = "linear.bias", .ndim = 1, .group = 1, .shape = {256}},
 *		};
 *		static const struct shard_group groups[] = {
 *			{"decay", NULL},
 *			{"none", "weight_decay=0"},
 *		};
 *		struct shard_spec s = SHARD_INIT(struct shard_spec);
 *		enum shard_status rc;
 *		int created;
 *
 *		s.name = "linear";
 *		s.tensors = tensors;
 *		s.tensors_nr = 2;
 *		s.groups = groups;
 *		s.groups_nr = 2;
 *		s.image = s.grad = SHARD_BF16;
 *		s.settings = "optimizer=adamw lr=3e-4 weight_decay=0.1 clip=1.0";
 *		if ((rc = shard_define(c, &s, m, &created)) != SHARD_OK || !created)
 *			return rc;
 *		rc = shard_write(*m, SHARD_MASTER, 0, 0, 256 * 512, SHARD_F32, w[0]);
 *		if (rc == SHARD_OK)
 *			rc = shard_write(*m, SHARD_MASTER, 1, 0, 256, SHARD_F32, w[1]);
 *		return rc == SHARD_OK ? shard_seal(*m, 0) : rc;
 *	}
 */

/*
 * shard_define - define a model, or attach to the equal one that there is
 *
 * DESCRIPTION
 * If no model has the name, it is made on all nodes: everything that it needs is computed, compared
 * with the memory budget of each node, and reserved. If one has it, its layout and settings are
 * compared with spec. Settings of shardd.conf count where spec does not name them.
 *
 * The first caller that may write the model gets *created = 1. It alone writes the weights, with
 * shard_write(), and ends with shard_seal(). If it ends before that, everything that it wrote
 * counts as unwritten, and whoever defines the model next gets created = 1. With `restore_at_start`
 * the model comes from its newest checkpoint, and nobody gets it. Weights that are lost are never
 * begun anew by accident: that is SHARD_LOST, unless `when_lost` says otherwise. While another node
 * becomes the one that coordinates, the call waits.
 *
 * Where the weights of one rank count, the others set spec->wait_ms. They wait until it has defined
 * the model, and go on as if they had done so: the comparison with spec is the same, and they are
 * attached. Whether the weights are there already shard_join() and shard_read() say.
 *
 * ARGUMENTS
 * client: the connection.
 * spec: the model. It is copied.
 * model: where the attachment is put. The caller ends it with shard_detach(). NULL after a failure.
 * created: set to 1 if this caller has to write the weights and seal, else to 0. Not NULL.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, a name, shape, dtype, flag or group is impossible, two tensors
 *   have one name, a setting is not known or its value is outside its range, or a text is not
 *   UTF-8.
 * SHARD_RANGE: the model has more chunks than the 2^20 that are possible (raise chunk_elems), or
 *   its definition has more than 16 MiB.
 * SHARD_MISMATCH: the model that there is, or its checkpoint (`restore_at_start`), differs. The
 *   text names tensor, field or setting, and both values.
 * SHARD_BUDGET: a node has too little memory. The text has what it needs and what is free.
 * SHARD_EXISTS: this connection is attached to the model already, or nodes disagree about which
 *   model has its number.
 * SHARD_LOST: its weights are gone. The text says how it goes on.
 * SHARD_DENIED: shardd.conf pins a setting that spec gives, the model belongs to somebody else and
 *   its `mode` does not let the caller in, or the caller may not use checkpoint_dir or what is in
 *   it.
 * SHARD_BUSY: the model is still being dropped, too many definitions wait already, or no node
 *   coordinates.
 * SHARD_UNREACHABLE: a node is down that a new model needs. It begins without a node that has been
 *   away for lost_timeout, but not with more copies of a chunk than nodes are up.
 * SHARD_PROTOCOL: `restore_at_start` is set, and no checkpoint that is there is good; or as below.
 * SHARD_NOT_FOUND: the model was dropped while the caller waited for it. With spec->wait_ms the
 *   call goes on waiting.
 * SHARD_TIMEOUT: nobody has defined the model within spec->wait_ms; or as below.
 * SHARD_UNSUPPORTED: spec->wait_ms is set, and a daemon is too old for it. It has given this
 *   connection the task of writing the weights: disconnect, so that another one gets it.
 * Also the errors of a connection, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_define(shard_client *client, const struct shard_spec *spec,
					 shard_model **model, int *created);

/*
 * shard_attach - attach to a model that there is
 *
 * DESCRIPTION
 * As shard_define(), but the layout comes from the daemon. Trainers may join with such a handle,
 * and observers may read with it. It never gets the task of writing the weights. It waits while
 * the model is being made, and while another node becomes the one that coordinates, if this node
 * does not have the model yet.
 *
 * ARGUMENTS
 * client: the connection.
 * name: of the model.
 * model: where the attachment is put. The caller ends it with shard_detach(). NULL after a failure.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or the name is none that a model can have.
 * SHARD_NOT_FOUND: no model has the name. The text lists those that there are.
 * SHARD_BUSY: the model was not made in time, or no node coordinates.
 * SHARD_EXISTS: this connection is attached to the model already.
 * SHARD_DENIED: the model belongs to somebody else, and its `mode` does not let the caller read it.
 * Also the errors of a connection, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_attach(shard_client *client, const char *name,
					 shard_model **model);

/*
 * shard_detach - end an attachment
 *
 * DESCRIPTION
 * The handle, and every pointer that it gave, is not valid any more; shard_keep() before it makes
 * those of gradients and image outlive it. The model stays as it is. A trainer that is joined
 * leaves without waiting; in the middle of a step it gives up the attempt, and all make it again.
 * Pulls that wait do not write to their dst any more. A save that is under way goes on.
 *
 * ARGUMENTS
 * model: where the attachment is. It is set to NULL. NULL, or an attachment that is NULL, is fine.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it. No other call on the model may overlap with it.
 */
SHARD_CALL void shard_detach(shard_model **model);

/*
 * shard_drop - free a model on all nodes
 *
 * DESCRIPTION
 * Weights, optimizer state and definition are gone when it returns. Checkpoints stay. A step in
 * hand is decided first. All handles of the model, also this connection's, say SHARD_NOT_FOUND.
 *
 * ARGUMENTS
 * client: the connection.
 * name: of the model.
 * force: not 0: trainers that are joined are put out, a save that is under way ends, and a node
 *   that is down is told when it is back. 0: each is a reason to refuse.
 *
 * ERRORS
 * SHARD_BAD_ARG: client is NULL, or the name is none that a model can have.
 * SHARD_NOT_FOUND: no model has the name. The text lists those that there are.
 * SHARD_BUSY: force is 0, and trainers are joined or the model is being saved; it is being dropped
 *   already; or too many requests wait.
 * SHARD_UNREACHABLE: a node is down and force is 0, or the node that coordinates is.
 * SHARD_DENIED: the caller is neither the owner nor root, and the `mode` of the model does not let
 *   him change it.
 * Also the errors of a connection, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_drop(shard_client *client, const char *name, int force);

/*
 * shard_set - change the learning rate, the clip or a hyper-parameter of a model
 *
 * DESCRIPTION
 * Holds from the next step on, for all trainers, and is recorded with the step. Checkpoints have
 * it. The call waits for the step in hand, so a trainer that has to commit that step makes it from
 * another thread or before it joins.
 *
 * ARGUMENTS
 * model: the model.
 * key: "lr" or "clip"; or a hyper-parameter that the optimizer has: "beta1", "beta2", "eps",
 *   "weight_decay" or "momentum", of all groups; "GROUP/beta1" and so on is of that group alone.
 * value: a number as text, or "default", which takes the setting of the model again.
 *
 * ERRORS
 * SHARD_BAD_ARG: key is another one, there is no such group, or value is no number that it can
 *   have.
 * SHARD_BAD_STATE: a schedule sets the learning rate, or moves beta1 or the momentum.
 * SHARD_UNSUPPORTED: a hyper-parameter, and a node is of a release that does not know that it can
 *   be set. The text names it.
 * SHARD_DENIED: the `mode` of the model does not let the caller change it.
 * SHARD_BUSY: too many changes wait already, or the model is being dropped.
 * SHARD_UNREACHABLE: a node is down. If the text says that the change stays wanted, it holds when
 *   the node is back.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_set(shard_model *model, const char *key, const char *value);

/*
 * TENSORS
 *
 * The layout of a model never changes. These calls only look it up in this process, and also work
 * when the connection is over.
 *
 * EXAMPLE
 *
 *	#include <inttypes.h>
 *	#include <shard.h>
 *	#include <stdio.h>
 *
 *	enum shard_status list(const shard_model *m)
 *	{
 *		for (uint32_t i = 0; i < shard_tensors(m); i++) {
 *			struct shard_info t = SHARD_INIT(struct shard_info);
 *			enum shard_status rc = shard_tensor_info(m, i, &t);
 *
 *			if (rc != SHARD_OK)
 *				return rc;
 *			printf("%s: %" PRIu64 " elements%s\n", t.name, t.numel,
 *			       t.flags & SHARD_FROZEN ? ", frozen" : "");
 *		}
 *		return SHARD_OK;
 *	}
 */

/*
 * shard_tensors - count the tensors of a model
 *
 * DESCRIPTION
 * Tensors are numbered from 0 in the order in which the model was defined.
 *
 * ARGUMENTS
 * model: the model.
 *
 * RETURN VALUE
 * How many there are. 0 after a failure, and shard_error() says why.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL uint32_t shard_tensors(const shard_model *model);

/*
 * shard_tensor_info - describe a tensor
 *
 * DESCRIPTION
 * Fills a struct with name, place, shape, group and flags of a tensor.
 *
 * ARGUMENTS
 * model: the model.
 * tensor: the index of the tensor.
 * info: filled in. Start it with SHARD_INIT(). Its name belongs to the handle.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or info was not started with SHARD_INIT().
 * SHARD_RANGE: there is no tensor of that number.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_tensor_info(const shard_model *model, uint32_t tensor,
					      struct shard_info *info);

/*
 * shard_find - find a tensor by its name
 *
 * DESCRIPTION
 * Looks at one tensor after the other: keep the index rather than asking in each step.
 *
 * ARGUMENTS
 * model: the model.
 * tensor: the name.
 * index: set to the index of the tensor. It stays as it is after a failure.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL.
 * SHARD_NOT_FOUND: no tensor has the name.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_find(const shard_model *model, const char *tensor,
				       uint32_t *index);

/*
 * WEIGHTS
 *
 * Weights and moments go in before the model is sealed, and can be read at any time after that.
 * They travel as fp32 in parts of 256 KiB. None of this is meant for the path of a step: trainers
 * read the image.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Reads the fp32 weights of one tensor, while others train.
 *	enum shard_status peek(shard_client *c, const char *name, float *to, uint64_t numel)
 *	{
 *		enum shard_status rc;
 *		uint64_t step = 0; // the newest
 *		shard_model *m;
 *		uint32_t i;
 *
 *		if ((rc = shard_attach(c, name, &m)) != SHARD_OK)
 *			return rc;
 *		if ((rc = shard_find(m, "linear.weight", &i)) == SHARD_OK)
 *			rc = shard_read(m, SHARD_MASTER, i, 0, numel, SHARD_F32, to, &step);
 *		shard_detach(&m);
 *		return rc;
 *	}
 */

/*
 * shard_write - write initial weights or moments
 *
 * DESCRIPTION
 * Only the caller that got created = 1 from shard_define() may write, and only until it seals the
 * model. Every element of SHARD_MASTER has to be written. Moments that nobody writes are zero.
 *
 * ARGUMENTS
 * model: the model.
 * kind: SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ or SHARD_MOMENTUM.
 * tensor: the index of the tensor.
 * first: the first element, counted from the beginning of the tensor.
 * count: how many elements; not 0, but of a tensor that has none.
 * dtype: of the elements at src.
 * src: the elements. They are read during the call only.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or kind or dtype is none that can be written.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * SHARD_BAD_STATE: the model is sealed, or nobody writes its weights now: define it anew.
 * SHARD_BUSY: another caller writes the weights (the text has its pid and node), the model is being
 *   restored, or too much waited to be sent to a node for some seconds.
 * SHARD_STALE: somebody else has begun to write the weights since: define it anew.
 * SHARD_NOT_FOUND: the optimizer keeps nothing of that kind, or the tensor is frozen; or as below.
 * SHARD_UNREACHABLE: the node that holds the elements, or the one that coordinates, is down. A link
 *   that fell and may be back at once is waited for.
 * SHARD_DENIED: the `mode` of the model does not let the caller change it.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once, also for one tensor.
 */
SHARD_API enum shard_status shard_write(shard_model *model, enum shard_kind kind, uint32_t tensor,
					uint64_t first, uint64_t count, enum shard_dtype dtype,
					const void *src);

/*
 * shard_seal - say that the weights are complete
 *
 * DESCRIPTION
 * Looks on all nodes whether every weight was written and is finite, makes the first image, and
 * lets the training begin. Returns when the image is whole on this node.
 *
 * ARGUMENTS
 * model: the model.
 * step: the step that these weights are of, at most 2^62. Training begins with the one after it. 0
 *   for weights that are new.
 *
 * ERRORS
 * SHARD_MISSING: elements were not written or are not finite. The text counts them and names the
 *   first one.
 * SHARD_RANGE: step is too large.
 * SHARD_BAD_STATE: the model is sealed already, or nobody writes its weights now: define it anew.
 * SHARD_BUSY: another caller writes the weights, the model is being sealed or restored, this
 *   connection is sealing another one, or too many requests wait.
 * SHARD_STALE: somebody else has begun to write the weights since: define it anew.
 * SHARD_UNREACHABLE: a node is down, or another node coordinates now: define it again.
 * SHARD_DENIED: the `mode` of the model does not let the caller change it.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, when all writes have returned.
 */
SHARD_API enum shard_status shard_seal(shard_model *model, uint64_t step);

/*
 * shard_read - read weights or moments
 *
 * DESCRIPTION
 * Whoever is attached may read, also without having joined, and while others train. All elements
 * are of one step: with *step = 0 the call begins again, a few times, when the model moves on in
 * the middle.
 *
 * ARGUMENTS
 * model: the model.
 * kind: SHARD_IMAGE, SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ or SHARD_MOMENTUM.
 * tensor: the index of the tensor.
 * first: the first element, counted from the beginning of the tensor.
 * count: how many elements; not 0, but of a tensor that has none.
 * dtype: what the elements are converted to.
 * dst: where they are put. What is there after a failure is undefined.
 * step: the step that is asked for; 0 asks for the newest. It is set to the one that was read.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or kind or dtype is none that can be read.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * SHARD_STALE: the model has moved on from the step that was asked for, or with *step = 0 moved on
 *   each time.
 * SHARD_BAD_STATE: the model is not sealed.
 * SHARD_NOT_FOUND: the optimizer keeps nothing of that kind, or the tensor is frozen; or as below.
 * SHARD_MISSING: a node has found its weights gone. The model is about to be given up there.
 * SHARD_BUSY: the daemon had no room to answer for some seconds, or too many reads wait for a step.
 * SHARD_UNREACHABLE: the node that holds the elements is down. A link that fell and may be back at
 *   once is waited for.
 * SHARD_DENIED: the `mode` of the model does not let the caller read it.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_read(shard_model *model, enum shard_kind kind, uint32_t tensor,
				       uint64_t first, uint64_t count, enum shard_dtype dtype,
				       void *dst, uint64_t *step);

/*
 * CHECKPOINTS
 *
 * The daemons write and read checkpoints themselves, each node its own chunks, in a folder that all
 * nodes share. A checkpoint can be restored on any number of nodes.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Goes on from the newest checkpoint, or says that there is none.
 *	enum shard_status go_on(shard_client *c, const char *dir, shard_model **m)
 *	{
 *		return shard_restore(c, dir, NULL, NULL, m);
 *	}
 *
 *	// Between shard_result() and shard_commit(): saves the step of that result, and waits.
 *	enum shard_status save_now(shard_model *m)
 *	{
 *		shard_ticket t;
 *		enum shard_status rc = shard_save(m, NULL, NULL, &t);
 *
 *		return rc == SHARD_OK ? shard_wait(m, t, 3600 * 1000) : rc;
 *	}
 */

/*
 * shard_save - have the daemons write a checkpoint
 *
 * DESCRIPTION
 * The checkpoint is of the last step that was decided: between shard_result() and the next
 * shard_commit() of the caller it is the step of that result. Training goes on meanwhile. One rank
 * asks. A folder of the same tag is replaced once the new one is whole.
 *
 * The call returns when the request is on its way. shard_wait() or shard_test() of the ticket says
 * how the save ended. Nobody else waits for it: it holds up no other ticket, and it goes on when
 * the handle is detached.
 *
 * ARGUMENTS
 * model: the model.
 * dir: an absolute path of at most 1023 bytes, the same on all nodes. NULL: checkpoint_dir.
 * tag: the name of the checkpoint in the folder, from A-Z a-z 0-9 . _ - and not beginning with a
 *   dot; "latest" is taken. NULL: global_step and the number of the step.
 * ticket: set to the ticket of the save. NULL: nobody wants to know how it ends.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL, or a text is too long or not UTF-8.
 * SHARD_AGAIN: 64 saves of this handle are under way: wait for one first.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint: shard_world_get() first.
 * Also the errors of a model, and of a call that waits.
 *
 * How the save ended, as shard_wait() and shard_test() say it:
 *
 * SHARD_BAD_ARG: no folder is named and checkpoint_dir is not set, the path is not absolute, or the
 *   tag is impossible.
 * SHARD_BAD_STATE: the model is not sealed, or weights are not finite: such are never saved.
 * SHARD_BUSY: another save or restore of the model is under way, or too many requests wait.
 * SHARD_STALE: the model moved on before a node had written its chunks.
 * SHARD_RANGE: the description of the checkpoint is larger than the format allows.
 * SHARD_DENIED: the folder is outside of those that checkpoints may go to, leads through a link,
 *   belongs to somebody else, or the `mode` of the model does not let the caller save it.
 * SHARD_EXISTS: the folder is a checkpoint itself, or what is there is none and is not replaced.
 * SHARD_NOT_FOUND: the folder cannot be found, or the model was dropped.
 * SHARD_SYSTEM: a file cannot be written. errno is the disk's, and the text has the path.
 * SHARD_TIMEOUT: the save made no progress for long, or the caller's own wait ended first.
 * SHARD_UNREACHABLE: a node is down.
 * SHARD_LOST: the model was lost meanwhile.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_save(shard_model *model, const char *dir, const char *tag,
				       shard_ticket *ticket);

/*
 * shard_save_as - have the daemons write a checkpoint with files of the trainers
 *
 * DESCRIPTION
 * As shard_save(), with its arguments in a struct and with one more: client. The plain files of
 * that folder are copied, and are in the folder `client` of the checkpoint when it gets its name:
 * DIR/TAG/client. So what a trainer keeps beside weights, moments and blobs comes and goes with
 * them, as buffers, schedulers and generators in files of any format.
 *
 * One rank asks, for all: where several give files, each writes its own into the folder under
 * another name, and they tell each other when they are done. Nobody changes the folder until the
 * save has ended. Then it is the caller's again, to be removed or filled anew.
 *
 * The daemon of the node that coordinates reads the folder. On several nodes it lies where the
 * checkpoints do, in a file system that all of them see. Folder and files belong to the user who
 * asks, and the daemon's user or group may read them; root of that node and the daemon's own user
 * may name any. At most 1024 files of together 16 GiB, with names of 1 to 79 of A-Z a-z 0-9 . _ -
 * that do not begin with a dot; nothing but plain files. The copies belong to the daemon, and who
 * may read the checkpoint may read them. Their sums are in the manifest, and
 * `shardctl checkpoints --verify` compares them. A restore does not read them: the trainers do.
 *
 * ARGUMENTS
 * model: the model.
 * opts: how to save. It is copied.
 * ticket: set to the ticket of the save. NULL: nobody wants to know how it ends.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, opts was not started with SHARD_INIT(), or a text is too long
 *   or not UTF-8.
 * SHARD_DENIED: client is given, and the connection is over TCP: nobody knows there whose files
 *   they are.
 * SHARD_UNSUPPORTED: client is given, and the daemon is of a release that does not know it.
 * SHARD_AGAIN: 64 saves of this handle are under way: wait for one first.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint: shard_world_get() first.
 * Also the errors of a model, and of a call that waits.
 *
 * How the save ended is as shard_save() lists it, and also:
 *
 * SHARD_BAD_ARG: client is no absolute path, or the name of a file is impossible.
 * SHARD_DENIED: client is no folder of the caller's that the daemon can read, or something in it is
 *   no plain file, belongs to another user or cannot be read. The text names it.
 * SHARD_RANGE: there are too many files, or too many bytes.
 * SHARD_STALE: a file changed while it was copied.
 * SHARD_UNSUPPORTED: the node that coordinates is of a release that does not know it.
 *
 * THREADS
 * Any thread may call it, and several at once.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Saves now under a name of its own, with the files that the caller keeps in a folder.
 *	enum shard_status save_best(shard_model *m, const char *folder)
 *	{
 *		struct shard_save_opts o = SHARD_INIT(struct shard_save_opts);
 *		enum shard_status rc;
 *		shard_ticket t;
 *
 *		o.dir = "/srv/checkpoints";
 *		o.tag = "best";
 *		o.client = folder;
 *		if ((rc = shard_save_as(m, &o, &t)) != SHARD_OK)
 *			return rc;
 *		return shard_wait(m, t, 3600 * 1000); // then the folder is the caller's again
 *	}
 */
SHARD_API enum shard_status shard_save_as(shard_model *model, const struct shard_save_opts *opts,
					  shard_ticket *ticket);

/*
 * shard_restore - define and seal a model as a checkpoint has it
 *
 * DESCRIPTION
 * In place of shard_define(), shard_write() and shard_seal(): join it right away. The nodes may be
 * more or fewer than those that saved it. It waits for as long as the daemon says how far it is. A
 * model of that name that has weights is not touched; `shardctl restore --force` gives them up.
 *
 * The settings are those that were saved, where shardd.conf does not say otherwise. For settings of
 * the caller's own, as another world or learning rate, define the model with them. Whoever gets
 * *created = 1 detaches it and restores by the same connection, in place of writing and sealing.
 * Tensors, groups and optimizer have to be those of the checkpoint. If it fails the task of writing
 * stays with the connection: define again to go on.
 *
 * ARGUMENTS
 * client: the connection.
 * dir: the folder of checkpoints, an absolute path of at most 1023 bytes. Not NULL.
 * tag: which one. NULL: the newest.
 * name: of the model; a checkpoint of another one is refused. NULL: the one that it has.
 * model: where the attachment is put. The caller ends it with shard_detach(). NULL after a failure.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, a path is not absolute or too long, or a tag or name is
 *   impossible.
 * SHARD_NOT_FOUND: there is no such folder, or no complete checkpoint in it.
 * SHARD_PROTOCOL: a file of the checkpoint is damaged, which the text names; or as below.
 * SHARD_MISMATCH: the model that there is differs from the checkpoint, or nodes see different
 *   folders.
 * SHARD_EXISTS: the model has weights, or this connection is attached to it already.
 * SHARD_BUSY: the model is being written, sealed, saved, restored or dropped, or too many requests
 *   wait.
 * SHARD_BUDGET: a node has too little memory.
 * SHARD_DENIED: the folder or the checkpoint is not for this caller, or shardd.conf pins another
 *   value of a setting.
 * SHARD_UNREACHABLE: a node is down. If the text says so, the restore goes on when it is back.
 * SHARD_STALE: the model went on in the meantime, or what was read is not what was written.
 * SHARD_RANGE: the model has more chunks than are possible.
 * SHARD_LOST: it was lost while it was restored.
 * Also the errors of a connection, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_restore(shard_client *client, const char *dir, const char *tag,
					  const char *name, shard_model **model);

/*
 * WORLD
 *
 * The world of a model is the trainers that contribute to its next step. A trainer joins it, learns
 * of each change by SHARD_WORLD_CHANGED, and leaves it. A connection can have joined one model at a
 * time.
 *
 * EXAMPLE
 *
 *	#include <inttypes.h>
 *	#include <shard.h>
 *	#include <stdio.h>
 *
 *	// Joins, and says which samples of a global batch of 1024 are this trainer's.
 *	enum shard_status enter(shard_model *m, struct shard_world *w)
 *	{
 *		uint64_t first, count;
 *		enum shard_status rc;
 *
 *		*w = SHARD_INIT(struct shard_world);
 *		while ((rc = shard_join(m, -1, 10000, w)) == SHARD_TIMEOUT)
 *			fprintf(stderr, "%s\n", shard_error()); // says for whom it waits
 *		if (rc != SHARD_OK)
 *			return rc;
 *		if ((rc = shard_samples(w, 1024, &first, &count)) == SHARD_OK)
 *			printf("step %" PRIu64 ": samples from %" PRIu64 " on\n", w->step, first);
 *		return rc;
 *	}
 */

/*
 * shard_join - join the world of a model
 *
 * DESCRIPTION
 * Gets the memory for gradients and image, and waits for the first attempt that this trainer is
 * part of: until the model is sealed, min_world trainers have joined, there is room in the world
 * (max_world), and a step that others have in hand is over. With min_world = 1 the first trainer of
 * a job begins alone, unless the model has a join_timeout. After SHARD_TIMEOUT or SHARD_INTERRUPTED
 * the trainer stays on the way in: call again. If the connection breaks meanwhile, it is made again
 * as by shard_world_get(), within timeout_ms.
 *
 * ARGUMENTS
 * model: the model.
 * rank_hint: the rank that this trainer would like to have, as torchrun says it in $RANK. -1: any.
 *   If the hints of all trainers are the numbers from 0 on, each once, they are the ranks. Else
 *   they say nothing but the order of those that join together, so a number that is wrong or old
 *   does no harm. The rank that counts is world->rank, which may be another one.
 * timeout_ms: how long to wait, in milliseconds. 0 does not wait, SHARD_DEFAULT takes the `timeout`
 *   of the model, and its `quorum_timeout` while fewer than min_world trainers have joined.
 * world: filled in. Start it with SHARD_INIT().
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or world was not started with SHARD_INIT().
 * SHARD_BAD_STATE: the model is joined already, or being left, this connection has joined another
 *   one, or shard_define() said created = 1 and shard_seal() was not called.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time, this node
 *   has local_world trainers already, or the image of the model that this connection joined before
 *   is still on its way.
 * SHARD_DENIED: the `mode` of the model does not let the caller change it.
 * Also the errors of a model, and of a call that waits, and those of shard_world_get() where the
 * connection broke.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *	#include <stdlib.h>
 *
 *	// Asks for the rank that the launcher gave this process, and uses the one that it gets.
 *	enum shard_status join_as_launched(shard_model *m, struct shard_world *w)
 *	{
 *		const char *rank = getenv("RANK");
 *
 *		*w = SHARD_INIT(struct shard_world);
 *		return shard_join(m, rank != NULL ? atoi(rank) : -1, SHARD_DEFAULT, w);
 *	}
 */
SHARD_API enum shard_status shard_join(shard_model *model, int rank_hint, int64_t timeout_ms,
				       struct shard_world *world);

/*
 * shard_world_get - ask for the world as it is now
 *
 * DESCRIPTION
 * Says rank, size and the step to begin next, and acknowledges SHARD_WORLD_CHANGED and
 * SHARD_ROLLED_BACK: until it is called, most calls on the model return that status again. It does
 * not wait, unless the connection broke.
 *
 * Then it looks for the daemon (shard_connect_opts.look_ms), connects, attaches to all models of
 * the connection by their names, compares their definitions, and joins again with the same
 * rank_hint. shard_grad(), shard_image() and shard_region() give the same addresses as before, also
 * while nobody is connected: the image keeps the weights that it had, and what is written to the
 * gradients is lost. Tickets that waited end as SHARD_WORLD_CHANGED, and what a blob or a commit
 * was given for a step that is not decided has to be given again. If the model was restored
 * meanwhile, the next call says SHARD_ROLLED_BACK. It waits for a new world for 2 s at most: where
 * that is not complete by then, step is right for what this node knows, and shard_begin() waits for
 * the rest. The call looks again when it is made again.
 *
 * ARGUMENTS
 * model: the model.
 * world: filled in. Start it with SHARD_INIT(). Its why lives until the next call on the model.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or world was not started with SHARD_INIT().
 * SHARD_BAD_STATE: the model is not joined.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * SHARD_UNREACHABLE: the connection broke, and the daemon was not to be had again in time. The text
 *   says how long and how often it was tried, and what the last try found.
 * SHARD_MISMATCH: the daemon is back, and defines the model in another way; or it is of another run
 *   (run_id of its configuration).
 * SHARD_NOT_FOUND: the daemon is back without the model, or the model was dropped, and another one
 *   of its name was defined.
 * SHARD_DENIED: the daemon is back with another secret, or does not let the caller read the model.
 * SHARD_VERSION: the daemon is back, and is of a release that this library has no version of the
 *   protocol in common with.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_world_get(shard_model *model, struct shard_world *world);

/*
 * shard_leave - leave the world of a model
 *
 * DESCRIPTION
 * Waits for a boundary between two steps, so that no attempt ends because of it. The others go on
 * in a smaller world. The memory of gradients and image goes back: no pointer that shard_grad(),
 * shard_image() or shard_region() gave is valid any more, unless shard_keep() was called. Tickets
 * that wait count as done, and their dst stays as it is. The handle stays, and may join again.
 * Where the connection broke, the trainer has left by that, and the call succeeds at once.
 *
 * ARGUMENTS
 * model: the model.
 * timeout_ms: how long to wait, in milliseconds. 0 does not wait, SHARD_DEFAULT takes the `timeout`
 *   of the model.
 *
 * ERRORS
 * SHARD_BAD_STATE: the model is not joined, or a step has begun: commit or abandon it first.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_leave(shard_model *model, int64_t timeout_ms);

/*
 * shard_samples - say which part of a batch is this trainer's
 *
 * DESCRIPTION
 * Cuts a global batch into one run of samples per rank, so that the batch is the same whatever the
 * world is. It is a function of batch, world size and rank alone: with q and r the quotient and the
 * remainder of batch / size, rank k has the q samples from k * q + min(k, r) on, and one more if
 * k < r. So the runs cover the batch in rank order without gaps, and differ by at most one sample.
 * Whoever accumulates gradients may count micro-batches in place of samples. It only computes.
 *
 * With the count as the weight of shard_begin(), and a gradient that is the sum over the samples,
 * the update is the mean over the batch in any world. It is the same bit for bit if the sums are
 * exact. Else worlds round differently, because the samples of a rank are summed first.
 *
 * ARGUMENTS
 * world: as shard_join() or shard_world_get() filled it in.
 * global_batch: samples of one step, of all ranks together.
 * first: set to the first sample of this rank, counted from the beginning of the batch.
 * count: set to how many there are. It is 0 for the last ranks of a world that is larger than the
 *   batch. Their weight is SHARD_NO_SAMPLES, because shard_begin() takes a weight of 0 for 1.0.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or the world is not filled in.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_samples(const struct shard_world *world, uint64_t global_batch,
					  uint64_t *first, uint64_t *count);

/*
 * STEP
 *
 * A step is shard_begin(), the push of every tensor in any order and from any thread,
 * shard_commit(), and shard_result(). It may take more than one attempt. When any of these calls
 * returns SHARD_WORLD_CHANGED, the attempt in hand is over: ask shard_world_get(), and begin the
 * step that it says. SHARD_ROLLED_BACK says the same, and the step is an older one.
 *
 * With max_staleness = 1 the next step may begin right after shard_commit(). It is computed on the
 * weights of two steps before, while the step between is still being decided. With staleness_after
 * = n that holds for steps above n, and steps up to n wait for the one before as without it.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// The caller's: puts the gradient of a tensor, of all samples, where it is told to.
 *	void backward(uint32_t tensor, uint64_t first, uint64_t count, double scale, void *grad);
 *
 *	// Of a model with bf16 gradients.
 *	enum shard_status one_step(shard_model *m, const struct shard_world *w, uint64_t batch)
 *	{
 *		struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
 *		struct shard_result r = SHARD_INIT(struct shard_result);
 *		struct shard_step s = SHARD_INIT(struct shard_step);
 *		uint64_t first, count;
 *		enum shard_status rc;
 *		shard_ticket t;
 *
 *		if ((rc = shard_samples(w, batch, &first, &count)) != SHARD_OK)
 *			return rc;
 *		b.weight = count ? (double)count : SHARD_NO_SAMPLES;
 *		if ((rc = shard_begin(m, &b, &s)) != SHARD_OK)
 *			return rc;
 *		for (uint32_t i = shard_tensors(m); count && i-- > 0 && rc == SHARD_OK;) {
 *			struct shard_info info = SHARD_INIT(struct shard_info);
 *
 *			if ((rc = shard_tensor_info(m, i, &info)) != SHARD_OK)
 *				break;
 *			backward(i, first, count, s.loss_scale, shard_grad(m, i));
 *			rc = shard_push(m, i, 0, info.numel, NULL, SHARD_BF16, 0, NULL);
 *		}
 *		if (rc == SHARD_OK)
 *			rc = shard_commit(m, &t);
 *		return rc == SHARD_OK ? shard_result(m, t, SHARD_DEFAULT, &r) : rc;
 *	}
 */

/*
 * shard_begin - begin a step
 *
 * DESCRIPTION
 * Waits until the step before is decided and the image of this node has its weights. With
 * max_staleness = 1 that is the step before that. It waits for the `timeout` of the model, and for
 * its `quorum_timeout` while fewer than min_world trainers have joined. After SHARD_TIMEOUT the
 * trainer is still in the world: call again. Pointers from shard_grad() and shard_image() are
 * asked for again after each begin.
 *
 * ARGUMENTS
 * model: the model.
 * opts: what this trainer brings. It is copied. NULL: weight 1, one micro-step, the model's lr.
 * step: filled in. Start it with SHARD_INIT().
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, a struct was not started with SHARD_INIT(), weight or a
 *   learning rate is negative or not finite, or lr is given where the model has a schedule.
 * SHARD_BAD_STATE: the model is not joined or is being left, or a step has begun already.
 * SHARD_WORLD_CHANGED: the world is another one than shard_world_get() said last.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// The caller's: a backward pass of scale times the mean loss over these samples.
 *	enum shard_status backward(shard_model *m, uint64_t first, uint64_t count, double scale);
 *
 *	// The mean over a batch that the ranks do not share equally, as 8 samples on 3 ranks. The
 *	// gradient of a mean becomes that of a sum, and the count is its weight.
 *	enum shard_status uneven(shard_model *m, const struct shard_world *w, uint64_t batch)
 *	{
 *		struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
 *		struct shard_step s = SHARD_INIT(struct shard_step);
 *		uint64_t first, count;
 *		enum shard_status rc = shard_samples(w, batch, &first, &count);
 *
 *		if (rc != SHARD_OK)
 *			return rc;
 *		b.weight = count ? (double)count : SHARD_NO_SAMPLES;
 *		rc = shard_begin(m, &b, &s);
 *		if (rc == SHARD_OK && count)
 *			rc = backward(m, first, count, s.loss_scale * (double)count);
 *		return rc == SHARD_OK ? shard_commit(m, NULL) : rc;
 *	}
 */
SHARD_API enum shard_status shard_begin(shard_model *model, const struct shard_begin_opts *opts,
					struct shard_step *step);

/*
 * shard_grad - where the gradient of a tensor is written
 *
 * DESCRIPTION
 * The arena is memory for the gradients of one step, in the model's grad dtype. Each tensor is
 * contiguous and begins at a multiple of 128 bytes. Over a unix socket it is shared with the
 * daemon, and pushing from it copies nothing. Ask again after each begin: with max_staleness = 1
 * there are two that take turns.
 *
 * Write a tensor until it is pushed, and never from then on until the result. In a trainer with
 * SHARD_GUARD=1 in its environment pushed pages are read-only, so that a late write stops whoever
 * does it and spoils no step. When the connection is over or the model is lost it is still memory,
 * which nobody reads any more, until shard_detach() or shard_leave().
 *
 * ARGUMENTS
 * model: the model, joined.
 * tensor: the index of the tensor.
 *
 * RETURN VALUE
 * Where the first element is; it belongs to the handle. NULL after a failure, and shard_error()
 * says why.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL.
 * SHARD_BAD_STATE: the model is not joined.
 * SHARD_RANGE: there is no such tensor.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL void *shard_grad(shard_model *model, uint32_t tensor);

/*
 * shard_push - give the gradient of a tensor, or of a part of it
 *
 * DESCRIPTION
 * Chunks go to the daemon as soon as all of their elements were pushed, while the backward pass
 * goes on. In a step each element is pushed once, or with SHARD_ADD as often as the step has
 * micro_steps: then it is summed in fp32, in the order of the pushes, and rounded once.
 *
 * With SHARD_SHARE the range is the sum over the ranks of this node already, as a reduce-scatter
 * among their GPUs makes it. Each rank of the node pushes its own range of the tensor, by one call,
 * and no element outside of it: that is pushed by the others. Together the ranges must be the whole
 * tensor, each element once. A rank that has nothing of a tensor says so with count 0. So a node of
 * R ranks copies 1/R of the gradients from each GPU, and its daemon adds nothing up. Other nodes
 * may do otherwise, and so may other tensors. Weights are as ever: each rank gives that of its own
 * samples. A rank with SHARD_NO_SAMPLES pushes nothing, so the others have its range. If ranges
 * overlap, leave a gap, or meet a push without the flag, shard_result() says SHARD_MISMATCH to all
 * ranks, with the elements and the ranks, and the step may begin again.
 *
 * With SHARD_DEVICE the range lies in the memory of a GPU that shard_device_region() gave for
 * SHARD_GRAD, and the work that wrote it there is done. All of a tensor is pushed so in a step, or
 * nothing of it. It stays as it is until the step has its result, as the arena does.
 *
 * ARGUMENTS
 * model: the model.
 * tensor: the index of the tensor.
 * first: the first element, counted from the beginning of the tensor.
 * count: how many elements; not 0, but of a tensor that has none, or with SHARD_SHARE.
 * src: the gradient. It is copied during the call. NULL: it is in the arena already.
 * dtype: of the elements at src; with src NULL the model's grad dtype.
 * flags: 0, or SHARD_ADD, SHARD_CAST and SHARD_SHARE; or SHARD_DEVICE alone, with src NULL, and in
 *   a step of one micro-step. SHARD_CAST converts where dtype is not the
 *   model's. SHARD_ADD is needed where the step has more than one micro-step; with SHARD_SHARE all
 *   of them push the same range. SHARD_SHARE: the range is the node's sum, as above.
 * ticket: set to a ticket that is done when src may be used again, which it is when the call has
 *   returned. NULL: none is needed.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL, a flag is not known, SHARD_ADD is missing, the tensor is frozen,
 *   SHARD_SHARE or SHARD_DEVICE is missing for a tensor that was pushed with it in this step, or
 *   SHARD_DEVICE is not alone, or given for a tensor that was pushed without it.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * SHARD_DTYPE: dtype is not the model's, and SHARD_CAST is not given or src is NULL.
 * SHARD_DUPLICATE: elements were pushed already, in this step or in all of its micro-steps, or
 *   shard_push_none() was called for the tensor; with SHARD_SHARE, anything of the tensor was, or
 *   an earlier micro-step pushed another range.
 * SHARD_UNSUPPORTED: the daemon is of a release that does not know SHARD_SHARE.
 * SHARD_BAD_STATE: no step has begun, or it is committed or abandoned; or SHARD_DEVICE was given,
 *   and shard_device_region() not called since the model was joined.
 * SHARD_STALE: the step is decided: begin the next.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * Also the errors of a model.
 *
 * THREADS
 * Any thread may call it, and several at once, also for parts of one tensor. Pushes with SHARD_ADD
 * take turns.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// The caller's: the fp32 gradient of a tensor, of one micro-batch.
 *	const float *gradient(const struct shard_info *tensor, uint32_t micro);
 *
 *	// A step of four micro-batches of a model with bf16 gradients. They are summed in fp32, and
 *	// rounded once. No ticket is needed: the memory of a gradient may be used again at once.
 *	enum shard_status accumulate(shard_model *m, double samples)
 *	{
 *		struct shard_begin_opts b = SHARD_INIT(struct shard_begin_opts);
 *		struct shard_step s = SHARD_INIT(struct shard_step);
 *		enum shard_status rc;
 *
 *		b.weight = samples; // of all four
 *		b.micro_steps = 4;
 *		rc = shard_begin(m, &b, &s);
 *		for (uint32_t k = 0; k < b.micro_steps * shard_tensors(m); k++) {
 *			struct shard_info t = SHARD_INIT(struct shard_info);
 *			uint32_t i = k % shard_tensors(m), micro = k / shard_tensors(m);
 *			const float *src;
 *
 *			if (rc != SHARD_OK || (rc = shard_tensor_info(m, i, &t)) != SHARD_OK)
 *				break;
 *			src = gradient(&t, micro);
 *			rc = shard_push(m, i, 0, t.numel, src, SHARD_F32, SHARD_ADD | SHARD_CAST,
 *					NULL);
 *		}
 *		return rc == SHARD_OK ? shard_commit(m, NULL) : rc;
 *	}
 */
SHARD_API enum shard_status shard_push(shard_model *model, uint32_t tensor, uint64_t first,
				       uint64_t count, const void *src, enum shard_dtype dtype,
				       uint32_t flags, shard_ticket *ticket);

/*
 * shard_push_many - give the gradients of several tensors that lie in the arena
 *
 * DESCRIPTION
 * As shard_push() of each whole tensor with src NULL and no flags, in their order, with one call
 * and one look at the connection. A tensor that cannot be pushed ends the call: those before it are
 * pushed, and those after it are not.
 *
 * ARGUMENTS
 * model: the model.
 * tensors: the indices of the tensors. NULL: all that are not frozen.
 * count: how many there are. Not looked at if tensors is NULL.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL, the step has more than one micro-step, or a tensor is frozen.
 * SHARD_RANGE: there is no such tensor.
 * SHARD_DUPLICATE: elements were pushed already in this step.
 * SHARD_BAD_STATE: no step has begun, or it is committed or abandoned.
 * SHARD_STALE: the step is decided: begin the next.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * Also the errors of a model.
 *
 * THREADS
 * Any thread may call it, and several at once, for different tensors.
 */
SHARD_API enum shard_status shard_push_many(shard_model *model, const uint32_t *tensors,
					    uint32_t count);

/*
 * shard_push_none - say that a tensor has no gradient
 *
 * DESCRIPTION
 * Counts as a gradient of zero for all of the tensor, and no bytes are sent for it. In a step of
 * several micro-steps it stands for one of them. For a frozen tensor it does nothing.
 *
 * ARGUMENTS
 * model: the model.
 * tensor: the index of the tensor.
 *
 * ERRORS
 * SHARD_RANGE: there is no such tensor.
 * SHARD_DUPLICATE: elements of it were pushed already, in this step or in all of its micro-steps.
 * SHARD_BAD_STATE: no step has begun, or it is committed or abandoned.
 * SHARD_STALE: the step is decided: begin the next.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * Also the errors of a model.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_push_none(shard_model *model, uint32_t tensor);

/*
 * shard_push_none_range - say that a part of a tensor has no gradient
 *
 * DESCRIPTION
 * For trainers that hold a part of a tensor and push that: it counts as a gradient of zero for the
 * elements. Where it covers all that a chunk has of the tensor no bytes are sent. In a step of
 * several micro-steps it stands for one of them, with all elements of the tensor or none.
 *
 * ARGUMENTS
 * model: the model.
 * tensor: the index of the tensor.
 * first: the first element, counted from the beginning of the tensor.
 * count: how many elements; not 0, but of a tensor that has none.
 *
 * ERRORS
 * SHARD_BAD_ARG: the step has more than one micro-step, and this is not the whole tensor.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * Also the errors of shard_push_none().
 *
 * THREADS
 * Any thread may call it, and several at once, also for parts of one tensor.
 */
SHARD_API enum shard_status shard_push_none_range(shard_model *model, uint32_t tensor,
						  uint64_t first, uint64_t count);

/*
 * shard_commit - say that the gradients of this trainer are complete
 *
 * DESCRIPTION
 * When all ranks have committed, the step is decided: shard_result() says how. The call does not
 * wait for that. It waits for pushes that other threads are in.
 *
 * ARGUMENTS
 * model: the model.
 * ticket: set to a ticket for shard_result(), shard_wait() and shard_test(). NULL: none is needed.
 *
 * ERRORS
 * SHARD_MISSING: tensors were not pushed, or not in each micro-step. The text counts them and names
 *   the first three. Push them, or call shard_push_none().
 * SHARD_AGAIN: 1024 tickets wait: wait for one first.
 * SHARD_BAD_STATE: no step has begun, or it is committed, abandoned or decided.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_commit(shard_model *model, shard_ticket *ticket);

/*
 * shard_commit_opts - commit, with what is known only now
 *
 * DESCRIPTION
 * As shard_commit(), with learning rates that count for this step whatever shard_begin() was given,
 * with a clip for this step, and with values that shard_result() returns summed over the ranks.
 *
 * ARGUMENTS
 * model: the model.
 * opts: what the caller decides. It is copied. NULL: shard_commit().
 * ticket: set to a ticket for shard_result(), shard_wait() and shard_test(). NULL: none is needed.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL, opts were not started with SHARD_INIT(), a learning rate is
 *   negative or not finite, lr is given where the model has a schedule, clip is negative or not
 *   finite, or there are more than SHARD_VALUES values.
 * SHARD_UNSUPPORTED: clip or values are given, and the daemon is of a release that does not know
 *   them. If another node of the cluster is, the daemon ends the connection, and the text names it.
 * Also the errors of shard_commit().
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *	#include <stdio.h>
 *
 *	// Commits, and prints the mean loss over the samples of all ranks.
 *	enum shard_status commit_and_tell(shard_model *m, double loss_sum, double samples)
 *	{
 *		struct shard_commit_opts o = SHARD_INIT(struct shard_commit_opts);
 *		struct shard_result r = SHARD_INIT(struct shard_result);
 *		const double values[] = {loss_sum, samples};
 *		enum shard_status rc;
 *
 *		o.values = values;
 *		o.values_nr = 2;
 *		if ((rc = shard_commit_opts(m, &o, NULL)) == SHARD_OK)
 *			rc = shard_result(m, 0, SHARD_DEFAULT, &r);
 *		if (rc == SHARD_OK && r.values[1] > 0)
 *			printf("loss %.4f\n", r.values[0] / r.values[1]);
 *		return rc;
 *	}
 */
SHARD_API enum shard_status shard_commit_opts(shard_model *model,
					      const struct shard_commit_opts *opts,
					      shard_ticket *ticket);

/*
 * shard_vote_skip - commit, and ask that nobody applies the step
 *
 * DESCRIPTION
 * In place of shard_commit(): the step counts, and the weights stay as they are. One vote is
 * enough. What was not pushed need not be. shard_result() with ticket 0 says how it ended.
 *
 * ARGUMENTS
 * model: the model.
 * why: the reason, for logs. It is copied, up to 255 bytes. NULL: none.
 *
 * ERRORS
 * SHARD_BAD_STATE: no step has begun, or it is committed, abandoned or decided.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_vote_skip(shard_model *model, const char *why);

/*
 * shard_abandon - give up the attempt at a step
 *
 * DESCRIPTION
 * For gradients that are wrong and were pushed already. The attempt ends for all ranks, and all
 * make the next one at the same step. This trainer calls shard_begin() next; the others get
 * SHARD_WORLD_CHANGED.
 *
 * ARGUMENTS
 * model: the model.
 * why: the reason, for logs and for the others. It is copied, up to 255 bytes. NULL: none.
 *
 * ERRORS
 * SHARD_BAD_STATE: no step has begun, or it is committed, abandoned or decided.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_abandon(shard_model *model, const char *why);

/*
 * shard_result - wait for the decision about a step
 *
 * DESCRIPTION
 * SHARD_OK says that the step is committed and will not be undone, whether it changed the weights
 * (outcome) or was skipped. It is told before the image has the new weights. A result that is known
 * is told again, also when the connection is over by now.
 *
 * ARGUMENTS
 * model: the model.
 * ticket: of one of the last four commits. 0: the step in hand, or with max_staleness = 1 the last
 *   one that was committed.
 * timeout_ms: how long to wait, in milliseconds. 0 does not wait, SHARD_DEFAULT takes the `timeout`
 *   of the model.
 * result: filled in with SHARD_OK and with SHARD_DIVERGED. Start it with SHARD_INIT().
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, result was not started with SHARD_INIT(), or the ticket was not
 *   given yet.
 * SHARD_BAD_STATE: ticket is 0, and no step is committed.
 * SHARD_STALE: the ticket is of no commit, or of one that is more than four commits old.
 * SHARD_DIVERGED: the step is decided, and the model is paused: the loss scale is at its floor, or
 *   max_skips steps in a row were skipped. `shardctl model resume` lets it go on.
 * SHARD_MISMATCH: the ranks gave different learning rates or clips, or shares that do not fit
 *   together (SHARD_SHARE). The text names who differs, or which elements.
 *   Begin again.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// With max_staleness = 1: the next step is computed before the result of the last one is
 *	// asked for, so a ticket says which commit is meant.
 *	enum shard_status overlap(shard_model *m, int steps, enum shard_status (*push)(void))
 *	{
 *		shard_ticket last = 0, now;
 *		enum shard_status rc = SHARD_OK;
 *
 *		for (int i = 0; i < steps && rc == SHARD_OK; i++) {
 *			struct shard_result r = SHARD_INIT(struct shard_result);
 *			struct shard_step s = SHARD_INIT(struct shard_step);
 *
 *			if ((rc = shard_begin(m, NULL, &s)) != SHARD_OK)
 *				break;
 *			if ((rc = push()) == SHARD_OK)
 *				rc = shard_commit(m, &now);
 *			if (rc == SHARD_OK && last != 0)
 *				rc = shard_result(m, last, SHARD_DEFAULT, &r);
 *			last = now;
 *		}
 *		return rc;
 *	}
 */
SHARD_API enum shard_status shard_result(shard_model *model, shard_ticket ticket,
					 int64_t timeout_ms, struct shard_result *result);

/*
 * PARAMETERS
 *
 * The image has the parameters that a step is computed on. Over a unix socket it is shared by all
 * trainers of the node, and reading it copies nothing. A pull copies a range of it when it is new
 * enough. A ticket stands for something that will be done: a pull, a commit, a save.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Copies one tensor into memory of the caller's, as soon as the step is in the image.
 *	enum shard_status fetch(shard_model *m, uint32_t tensor, uint64_t step, float *to)
 *	{
 *		struct shard_info i = SHARD_INIT(struct shard_info);
 *		enum shard_status rc = shard_tensor_info(m, tensor, &i);
 *		shard_ticket t;
 *
 *		if (rc == SHARD_OK)
 *			rc = shard_pull(m, tensor, 0, i.numel, step, to, SHARD_F32, &t);
 *		return rc == SHARD_OK ? shard_wait(m, t, SHARD_DEFAULT) : rc;
 *	}
 */

/*
 * shard_image - where the parameters of a tensor are read
 *
 * DESCRIPTION
 * Read-only memory in the image dtype of the tensor, which is the model's if shard_tensor.image
 * does not say otherwise. Between shard_begin() and the caller's own shard_commit() it has the
 * weights that the step before left, with max_staleness = 1 those that the step before that left,
 * and does not change. Ask again after each begin. When the connection is over or the model is lost
 * it is still memory, until shard_detach() or shard_leave(), and with shard_keep() for longer. Who
 * has not joined reads with shard_read().
 *
 * ARGUMENTS
 * model: the model, joined.
 * tensor: the index of the tensor.
 *
 * RETURN VALUE
 * Where the first element is; it belongs to the handle. NULL after a failure, and shard_error()
 * says why.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL.
 * SHARD_BAD_STATE: the model is not joined.
 * SHARD_RANGE: there is no such tensor.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL const void *shard_image(shard_model *model, uint32_t tensor);

/*
 * shard_pull - copy parameters of a step when they are there
 *
 * DESCRIPTION
 * Returns at once. The copy is made inside later calls on the model, when the image has the weights
 * that the step left, or newer ones, for the whole range.
 *
 * ARGUMENTS
 * model: the model, joined.
 * tensor: the index of the tensor.
 * first: the first element, counted from the beginning of the tensor.
 * count: how many elements; not 0, but of a tensor that has none.
 * step: the weights that this step left. 0 takes what there is.
 * dst: where they are put. It is the library's until the ticket is done. NULL: nothing is copied,
 *   and the ticket is done when the image has them.
 * dtype: what the elements are converted to. Not looked at if dst is NULL.
 * ticket: set to the ticket. Not NULL.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or dtype is none.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * SHARD_BAD_STATE: the model is not joined.
 * SHARD_AGAIN: 1024 tickets wait, and nothing was taken: wait for one first.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint: shard_world_get() first.
 * Also the errors of a model.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_pull(shard_model *model, uint32_t tensor, uint64_t first,
				       uint64_t count, uint64_t step, void *dst,
				       enum shard_dtype dtype, shard_ticket *ticket);

/*
 * shard_pull_all - say when the image of a step is whole
 *
 * DESCRIPTION
 * As shard_pull() of every tensor with dst NULL: the ticket is done when the image of this node has
 * the weights that the step left, or newer ones, in all elements.
 *
 * ARGUMENTS
 * model: the model, joined.
 * step: the weights that this step left.
 * ticket: set to the ticket. Not NULL.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL.
 * SHARD_BAD_STATE: the model is not joined.
 * SHARD_AGAIN: 1024 tickets wait, and nothing was taken: wait for one first.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint: shard_world_get() first.
 * Also the errors of a model.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_pull_all(shard_model *model, uint64_t step, shard_ticket *ticket);

/*
 * shard_wait - wait for a ticket and all before it
 *
 * DESCRIPTION
 * Of a save only the ticket itself is waited for, and the status says how the save ended. Of a
 * commit, shard_result() says how it ended. A ticket that is done is done, also when the connection
 * is over by now.
 *
 * ARGUMENTS
 * model: the model.
 * ticket: as a call gave it. 0 is done.
 * timeout_ms: how long to wait, in milliseconds. 0 does not wait, SHARD_DEFAULT takes the `timeout`
 *   of the model.
 *
 * ERRORS
 * SHARD_BAD_ARG: model is NULL, or the ticket was not given yet.
 * SHARD_WORLD_CHANGED: the attempt is over, and shard_world_get() is due; or what the ticket stood
 *   for is gone with a connection that broke.
 * SHARD_ROLLED_BACK: what the ticket stood for is gone with a rollback, or shard_world_get() is
 *   due.
 * Also the errors of a model, and of a call that waits. For a save also those that shard_save()
 * lists.
 *
 * THREADS
 * Any thread may call it, and several at once.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Copies two tensors, and waits for both: the later ticket stands for the earlier one, too.
 *	enum shard_status fetch_two(shard_model *m, uint64_t step, float *a, float *b, uint64_t n)
 *	{
 *		shard_ticket t;
 *		enum shard_status rc = shard_pull(m, 0, 0, n, step, a, SHARD_F32, &t);
 *
 *		if (rc == SHARD_OK)
 *			rc = shard_pull(m, 1, 0, n, step, b, SHARD_F32, &t);
 *		return rc == SHARD_OK ? shard_wait(m, t, SHARD_DEFAULT) : rc;
 *	}
 */
SHARD_API enum shard_status shard_wait(shard_model *model, shard_ticket ticket, int64_t timeout_ms);

/*
 * shard_test - ask whether a ticket is done
 *
 * DESCRIPTION
 * Of this ticket alone, without waiting and without a system call. Over a unix socket nothing
 * arrives by itself: call shard_progress(), or any call that waits, in between.
 *
 * ARGUMENTS
 * model: the model.
 * ticket: as a call gave it. 0 is done.
 *
 * RETURN VALUE
 * SHARD_OK if it is done, SHARD_AGAIN if it is not, or why it will never be.
 *
 * ERRORS
 * SHARD_AGAIN: it is not done yet, or another thread is at work on it.
 * SHARD_BAD_ARG: model is NULL, or the ticket was not given yet.
 * SHARD_ROLLED_BACK: what the ticket stood for is gone with a rollback.
 * Also the errors of a model. For a save also those that shard_save() lists.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_test(shard_model *model, shard_ticket ticket);

/*
 * BLOBS
 *
 * What a trainer has to find again with the weights: the state of its random numbers, its place in
 * the data. A blob counts when its step is committed, and not before. The daemons keep the newest
 * one of each rank, and checkpoints have them too. A model with `replicas` = R has R copies of each
 * blob on as many nodes, as of each weight. With one copy it is on the node of the trainer.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	struct place {
 *		uint64_t sample, random[4];
 *	};
 *
 *	// In each step, before shard_commit().
 *	enum shard_status keep(shard_model *m, const struct place *p)
 *	{
 *		return shard_set_blob(m, p, sizeof(*p));
 *	}
 *
 *	// After shard_join(). A rank that has none begins anew.
 *	enum shard_status find_again(shard_model *m, uint32_t rank, struct place *p)
 *	{
 *		size_t bytes = sizeof(*p);
 *		uint64_t step;
 *		enum shard_status rc = shard_blob(m, rank, p, &bytes, &step);
 *
 *		if (rc == SHARD_NOT_FOUND) {
 *			*p = (struct place){0, {1, 2, 3, 4}};
 *			rc = SHARD_OK;
 *		}
 *		return rc;
 *	}
 */

/*
 * shard_set_blob - keep bytes with a step
 *
 * DESCRIPTION
 * Between shard_begin() and shard_commit(). The blob is committed with the step, also if the step
 * takes another attempt, and is the rank's from then on, from step to step, until it is set again.
 *
 * ARGUMENTS
 * model: the model.
 * data: the bytes. They are copied. It may be NULL if there are none.
 * bytes: how many there are, at most 65536.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL.
 * SHARD_RANGE: there are more than 65536 bytes.
 * SHARD_BAD_STATE: no step has begun, or it is committed already.
 * SHARD_WORLD_CHANGED: the attempt is over.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * Also the errors of a model.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_set_blob(shard_model *model, const void *data, size_t bytes);

/*
 * shard_blob - get the bytes that a rank kept
 *
 * DESCRIPTION
 * The newest blob of a rank that was committed, wherever that trainer ran: it is found again after
 * a restart, in a larger or smaller world, and after a restore. A rank that did not set one in the
 * last step has an older one: compare *step with the last step.
 *
 * ARGUMENTS
 * model: the model. It need not be joined.
 * rank: whose.
 * data: where the bytes are put. It may be NULL if *bytes is 0.
 * bytes: the room at data, in bytes. Set to the size of the blob.
 * step: set to the step that the blob was committed with. NULL: it is not told.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL.
 * SHARD_RANGE: the blob does not fit, and *bytes says how large it is; or no world of the model can
 *   have such a rank.
 * SHARD_NOT_FOUND: the rank has none; or as below.
 * SHARD_UNREACHABLE: a node that could have a newer one does not answer.
 * SHARD_BUSY: too many blobs are being looked for: call again.
 * SHARD_ROLLED_BACK: the model went back to a checkpoint: shard_world_get() first. Of a model that
 *   is joined.
 * SHARD_STALE: the same of one that is not: call again. Or the copies of a blob just moved.
 * SHARD_DENIED: the `mode` of the model does not let the caller read it.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_blob(shard_model *model, uint32_t rank, void *data, size_t *bytes,
				       uint64_t *step);

/*
 * OBSERVATION
 *
 * Where gradients and image lie, for devices that want to know and for pointers that outlive the
 * handle, and what the daemon counts.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *	#include <stdio.h>
 *	#include <stdlib.h>
 *
 *	// Registers the arena with a device, as by cudaHostRegister(). After each join, and
 *	// when shard_info.mapped has grown.
 *	enum shard_status pin(shard_model *m, int (*host_register)(void *base, size_t bytes))
 *	{
 *		enum shard_status rc;
 *		size_t bytes;
 *		void *base;
 *
 *		if ((rc = shard_region(m, SHARD_GRAD, &base, &bytes)) != SHARD_OK)
 *			return rc;
 *		return host_register(base, bytes) == 0 ? SHARD_OK : SHARD_UNSUPPORTED;
 *	}
 *
 *	// Prints what `shardctl status --json` shows.
 *	enum shard_status show(shard_client *c)
 *	{
 *		size_t bytes = 0, room;
 *		enum shard_status rc = shard_stats(c, NULL, &bytes);
 *		char *json = NULL;
 *
 *		while (rc == SHARD_RANGE) { // the text may have grown since
 *			free(json);
 *			room = bytes + 1024;
 *			if ((json = malloc(bytes = room)) == NULL)
 *				return SHARD_SYSTEM;
 *			rc = shard_stats(c, json, &bytes);
 *		}
 *		if (rc == SHARD_OK)
 *			puts(json);
 *		free(json);
 *		return rc;
 *	}
 */

/*
 * shard_region - say where gradients or image lie
 *
 * DESCRIPTION
 * One range of memory that shard_grad() and shard_image() point into, with both halves where there
 * are two. Register it with a device after each join, and take the registration back when the
 * connection is over, before shard_leave() or shard_detach().
 *
 * ARGUMENTS
 * model: the model, joined.
 * kind: SHARD_GRAD or SHARD_IMAGE.
 * base: set to its beginning. It belongs to the handle.
 * bytes: set to its length in bytes.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or kind is another one.
 * SHARD_BAD_STATE: the model is not joined.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_region(shard_model *model, enum shard_kind kind, void **base,
					 size_t *bytes);

/*
 * shard_device_region - get memory of shardd on a GPU, of the image or for gradients
 *
 * DESCRIPTION
 * For libshard-cuda, and for who does the same with another interface. If shardd holds chunks of
 * the model in the memory of that GPU (tier = gpu), it shares more of its memory with trainers
 * there. The descriptor is the driver's handle of that memory, of the kind
 * CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR. It counts towards gpu_memory of shardd. After the model
 * was joined again it is other memory: ask again when shard_info.mapped has changed.
 *
 * SHARD_IMAGE: a copy of the whole image, for all trainers on that GPU. A tensor lies in it where
 * shard_info.image_offset says. The call waits until all of the image is there. From then on
 * shard_begin(), shard_pull() and shard_wait() wait for chunks of this copy, until the model is
 * joined again. The rule for who reads it is that of shard_image(): be done before shard_commit().
 * Map it read-only. Nothing else keeps a trainer from writing there, and what one writes all others
 * there compute on.
 *
 * SHARD_GRAD: memory of this trainer alone, for gradients of the model's grad dtype. A tensor lies
 * in it as far behind its beginning as shard_grad() is behind the base of shard_region(). What is
 * written there is pushed with SHARD_DEVICE, when the work that wrote it is done. Where the
 * gradients of all ranks of the node for a chunk lie on one GPU, shardd adds them up there, and
 * only the sum comes to the host.
 *
 * ARGUMENTS
 * model: the model, joined.
 * kind: SHARD_IMAGE or SHARD_GRAD.
 * uuid: the 16 bytes of cuDeviceGetUuid().
 * fd: set to the descriptor. The caller closes it. What is mapped outlives that.
 * bytes: set to the size of the memory in bytes, as it has to be mapped.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or kind is another one.
 * SHARD_BAD_STATE: the model is not joined, or has memory for gradients on another GPU.
 * SHARD_UNSUPPORTED: shardd has no such memory there, and the sentence says why: the GPU has no
 *   chunk of the model, the connection is over TCP, max_staleness is 1, or its release is older.
 * SHARD_BUDGET: the GPU has no room for it.
 * Also the errors of a model, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model.
 */
SHARD_API enum shard_status shard_device_region(shard_model *model, enum shard_kind kind,
						const uint8_t *uuid, int *fd, size_t *bytes);

/*
 * shard_keep - take over the memory of gradients or image
 *
 * DESCRIPTION
 * For pointers that are in use after the end. The memory that shard_region() names becomes the
 * caller's, at the same addresses, until shard_unmap(). No shard_leave(), shard_detach() or
 * shard_disconnect() and no end of the connection touches it, and it may be read and written. It is
 * private memory of this process: a forked child has it, and no memory of the daemon is held by it.
 *
 * The handle goes on, with memory at other addresses: shard_grad(), shard_image() and
 * shard_region() say where. Take the registration with a device back before the call.
 *
 * Of the image the caller gets a copy that never changes again: the weights that shard_image()
 * shows or, after the result of a step, those that the step left, also if the call has to wait for
 * them. With max_staleness = 1 both halves get them. It needs as much memory again as the image
 * has. When they do not come in time, or the connection is over or the model lost, the caller gets
 * what is there, with step and mixed to judge it.
 *
 * Of the gradients the caller gets memory that nobody reads. What is in it is undefined, as after
 * the end of a connection. Over a unix socket it costs nothing until it is touched.
 *
 * ARGUMENTS
 * model: the model, joined. The connection may be over, and the model lost.
 * kind: SHARD_IMAGE or SHARD_GRAD.
 * timeout_ms: how long to wait for the weights, in milliseconds. 0 does not wait, SHARD_DEFAULT
 *   takes the `timeout` of the model.
 * kept: filled in. Start it with SHARD_INIT(). The caller ends it with shard_unmap().
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, kept was not started with SHARD_INIT(), or kind is another one.
 * SHARD_BAD_STATE: the model is not joined, or kind is SHARD_GRAD in the middle of a step.
 * SHARD_SYSTEM: there is no memory for it.
 * SHARD_BUSY: another thread is in a call on the model that only one may make at a time.
 * SHARD_TIMEOUT: a part of the memory is being sent or received. Make the call again.
 * SHARD_INTERRUPTED: shard_interrupt() was called meanwhile. Make it again.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, but one at a time for each model. Others may go on reading the image.
 *
 * EXAMPLE
 *
 *	#include <shard.h>
 *
 *	// Ends the training. The pointers that shard_image() gave stay good until shard_unmap(),
 *	// with the weights of the last step.
 *	enum shard_status finish(shard_client **c, shard_model *m, struct shard_kept *weights)
 *	{
 *		enum shard_status rc;
 *
 *		*weights = SHARD_INIT(struct shard_kept);
 *		if ((rc = shard_keep(m, SHARD_IMAGE, SHARD_DEFAULT, weights)) == SHARD_OK)
 *			rc = shard_leave(m, SHARD_DEFAULT);
 *		shard_disconnect(c);
 *		return rc;
 *	}
 */
SHARD_API enum shard_status shard_keep(shard_model *model, enum shard_kind kind, int64_t timeout_ms,
				       struct shard_kept *kept);

/*
 * shard_unmap - free memory that was taken over
 *
 * DESCRIPTION
 * No pointer into it is valid any more. It needs no handle and no connection. A forked child frees
 * what it has of it.
 *
 * ARGUMENTS
 * kept: as shard_keep() filled it in. Its base is set to NULL. NULL, or a base that is NULL, is
 *   fine.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it.
 */
SHARD_CALL void shard_unmap(struct shard_kept *kept);

/*
 * shard_explain_faults - have a write into read-only memory say what it was
 *
 * DESCRIPTION
 * The image is read-only, and a write into it ends the process by SIGSEGV. After this call a fault
 * at an address in one of the ranges writes the text of the range to stderr first. Then comes what
 * came before: the handler that SIGSEGV had, or the end of the process with a core. Nothing else
 * changes, and without this call libshard sets no handler.
 *
 * ARGUMENTS
 * faults: the ranges of now, in place of those of the call before. They stay the caller's, with
 *   what they point to, and must not change before the next call has returned. NULL: no more, and
 *   SIGSEGV has its old handler again, unless another one was set meanwhile.
 *
 * ERRORS
 * SHARD_BAD_ARG: faults was not started with SHARD_INIT(), or ranges is NULL and ranges_nr is not.
 * SHARD_SYSTEM: the handler cannot be set.
 *
 * THREADS
 * Any thread may call it, but one at a time in a process.
 */
SHARD_API enum shard_status shard_explain_faults(const struct shard_faults *faults);

/*
 * shard_stats - get what the daemon counts, as JSON
 *
 * DESCRIPTION
 * The text that `shardctl status --json` shows: nodes, models, steps, worlds, and whom each waits
 * for. Of models that the caller may not read it has little.
 *
 * ARGUMENTS
 * client: the connection.
 * json: where the text is put, with a zero at its end. NULL only asks for the size.
 * bytes: the room at json, in bytes. Set to the size of the text with its zero.
 *
 * ERRORS
 * SHARD_BAD_ARG: client or bytes is NULL.
 * SHARD_RANGE: the text does not fit, or json is NULL. *bytes says how large it is.
 * Also the errors of a connection, and of a call that waits.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_stats(shard_client *client, char *json, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
