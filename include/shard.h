/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h: push gradients to, and pull parameters from, the shardd on this node. Marks: [any] any thread, concurrently, also on
 * one handle; [one] one thread at a time per handle: a second one gets SHARD_BUSY, never a race. Handles, and all pointers they gave, end
 * with shard_detach() or shard_disconnect(), which no other call may overlap; what a caller passes in is used during the call only,
 * except dst of shard_pull(), which is written until its ticket is done. The library exits, prints and aborts never; installs no signal
 * handler; starts no thread but one for tcp: (all signals blocked); sets CLOEXEC and MADV_DONTFORK; in a forked child every call
 * is SHARD_FORKED, and shard_disconnect() only frees. timeout_ms: 0 polls, SHARD_DEFAULT takes the model's `timeout`; there is no "for
 * ever". A call that fails leaves one sentence in shard_error(): what, which tensor/rank/node, since when, what to do. Any may return
 * BAD_ARG, SYSTEM (no memory), FORKED, CLOSED or PROTOCOL (connection over: connect again); on a model LOST (detach, define again); where
 * it waits TIMEOUT and INTERRUPTED (nothing is undone: call again). Structs: set .size by SHARD_INIT; the smaller of both sizes counts. */
#ifndef SHARD_H
#define SHARD_H
#include <stddef.h>
#include <stdint.h>
/* clang-format off */
#define SHARD_CALL __attribute__((visibility("default")))
#define SHARD_API __attribute__((visibility("default"), warn_unused_result))
#ifdef __cplusplus
extern "C" {
#define SHARD_INIT(T) ([] { T t_{}; t_.size = sizeof(t_); return t_; }())
#else
#define SHARD_INIT(T) ((T){ .size = sizeof(T) })
#endif
#define SHARD_DEFAULT (-1)
enum shard_status { /* numbers never change; 1..19: normal life, go on; 20..: this call failed; 60..: handle is dead */
    SHARD_OK = 0, SHARD_AGAIN = 1, SHARD_TIMEOUT = 2, SHARD_INTERRUPTED = 3,
    SHARD_WORLD_CHANGED = 10, /* this attempt is over: shard_world_get(), then shard_begin() the same step again           */
    SHARD_ROLLED_BACK = 11,   /* model was LOST and restored: shard_world_get() .step went back; re-seek your data            */
    SHARD_BAD_ARG = 20, SHARD_BAD_STATE, SHARD_RANGE, SHARD_DUPLICATE, SHARD_DTYPE, SHARD_MISSING, SHARD_STALE,
    SHARD_MISMATCH, SHARD_BUDGET, SHARD_DENIED, SHARD_NOT_FOUND, SHARD_EXISTS, SHARD_BUSY, SHARD_UNSUPPORTED,
    SHARD_SYSTEM /* errno kept */, SHARD_DIVERGED /* scale at its floor or max_skips in a row: model is paused */,
    SHARD_UNREACHABLE = 60, SHARD_CLOSED, SHARD_VERSION, SHARD_PROTOCOL, SHARD_LOST, SHARD_FORKED };
enum shard_dtype { SHARD_F32 = 1, SHARD_BF16 = 2, SHARD_F16 = 3 };
enum shard_kind { SHARD_IMAGE = 1, SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ, SHARD_MOMENTUM, SHARD_GRAD };
typedef struct shard_client shard_client; typedef struct shard_model shard_model; /* a connection to a daemon; an attachment to a model */
typedef uint64_t shard_ticket;             /* grows by one per model; 0 = nothing to wait for */
struct shard_connect_opts { size_t size;
    const char *address;   /* unix:/p, tcp://host:port, spawn:NAME; NULL: $SHARD_ADDRESS, then unix:/run/shardd/shardd.sock */
    const char *secret; int64_t timeout_ms; /* file with the cluster secret, tcp only; NULL: $SHARD_SECRET. <= 0: 10 s */
    void (*log)(void *arg, int level, const char *line); void *log_arg; }; /* called inside calls, without any lock */
struct shard_tensor { const char *name; uint32_t ndim, group, flags; uint64_t shape[8], reserved[4]; /* zero, checked */ };
enum { SHARD_FROZEN = 1 };                 /* tensor flag: image only; no gradient, no state, no decay */
struct shard_group { const char *name, *settings; };                   /* "lr_factor=0.1 weight_decay=0": strings, so no ABI */
struct shard_spec { size_t size; const char *name; /* [a-z0-9._-]{1,64} */
    const struct shard_tensor *tensors; uint32_t tensors_nr; const struct shard_group *groups; uint32_t groups_nr;
    enum shard_dtype image, grad;
    const char *settings; /* "optimizer=adamw lr=3e-4 clip=1.0 schedule=WarmupLR ...": keys of shardd.conf [model] */ };
struct shard_info { size_t size; const char *name; uint64_t offset, numel; uint32_t group, flags, ndim; uint64_t shape[8]; };
struct shard_world { size_t size; uint32_t rank, world_size, local_rank, local_size; uint64_t term, seq;
    uint64_t step;         /* the step to begin next = committed + 1 */
    const char *why; };    /* "rank 3 (pid 712 on node b) closed its socket"; lives until the next call on the model */
struct shard_begin_opts { size_t size;
    double weight;         /* update uses sum(grad_i) / sum(weight_i); samples or tokens; 0 = 1.0 = mean over ranks */
    uint32_t micro_steps;  /* pushes with SHARD_ADD per element; 0 = 1. More: fp32 sums in this process, 4 bytes per element */
    const double *lr;      /* own schedule: one per group, equal on all ranks (else shard_result() is MISMATCH and names the odd one) */ };
struct shard_step { size_t size; uint64_t step, attempt; uint32_t rank, world_size; double loss_scale; };
enum shard_outcome { SHARD_APPLIED = 1, SHARD_SKIPPED_NONFINITE, SHARD_SKIPPED_VOTE };
struct shard_result { size_t size; enum shard_outcome outcome; uint64_t step, applied /* = Adam's t */, attempts, skipped_in_row;
    double grad_norm /* unscaled, before the clip; inf/nan if skipped */, clip_factor, weight_sum, loss_scale, next_loss_scale, lr;
    int64_t bad_tensor; int32_t bad_rank;                              /* first non-finite gradient, -1 = none */
    uint64_t wait_ns, reduce_ns, apply_ns, pushed_bytes, pulled_bytes; uint32_t world_size, slowest_rank; };
/* --- texts and connection --- */
SHARD_CALL const char *shard_version(void);                 /* [any] "0.1.0 wire 1-1 abi 0" */
SHARD_CALL const char *shard_name(enum shard_status);       /* [any] "SHARD_WORLD_CHANGED" */
SHARD_CALL const char *shard_error(void);                   /* [any] last failure of the calling thread, valid until its next */
SHARD_API enum shard_status shard_connect(shard_client **, const struct shard_connect_opts *); /* [any] opts may be NULL. spawn:NAME: a
        * private daemon, started if there is none; ends after its last connection. NOT_FOUND: no shardd to start. DENIED: folder not yours */
SHARD_CALL void shard_disconnect(shard_client **);          /* NULLs it; detaches its models; a joined one counts as lost trainer */
SHARD_CALL int shard_fd(const shard_client *);              /* [any] readable when a ticket or event may be ready: epoll it, never read it */
SHARD_API enum shard_status shard_progress(shard_client *); /* [one] handles what arrived, without waiting; makes shard_fd unreadable */
SHARD_CALL void shard_interrupt(shard_client *);            /* [any, signal-safe] calls that wait now return SHARD_INTERRUPTED */
/* --- model: made once, outlives every trainer --- */
SHARD_API enum shard_status shard_define(shard_client *, const struct shard_spec *, shard_model **, int *created); /* [any]
        * equal layout and settings: attach; else MISMATCH (tensor, field, both values). BUDGET: figures per node. EXISTS: this connection
        * has it. created=1 to exactly one caller: it writes the weights; if it dies before shard_seal the next caller gets created=1 */
SHARD_API enum shard_status shard_attach(shard_client *, const char *name, shard_model **); /* [any] layout comes from the daemon. NOT_FOUND */
SHARD_CALL void shard_detach(shard_model **);               /* NULLs it; in the middle of a step: abandons it and leaves */
SHARD_CALL uint32_t shard_tensors(const shard_model *);                                                     /* [any] */
SHARD_API enum shard_status shard_tensor_info(const shard_model *, uint32_t tensor, struct shard_info *);   /* [any] RANGE */
SHARD_API enum shard_status shard_find(const shard_model *, const char *tensor, uint32_t *index);           /* [any] NOT_FOUND */
SHARD_API enum shard_status shard_write(shard_model *, enum shard_kind, uint32_t tensor, uint64_t first, uint64_t count,
                                        enum shard_dtype, const void *); /* [any] master or moments; after shard_seal BAD_STATE; RANGE */
SHARD_API enum shard_status shard_seal(shard_model *, uint64_t step); /* [any] all written, else MISSING names one; image is of `step` */
SHARD_API enum shard_status shard_read(shard_model *, enum shard_kind, uint32_t tensor, uint64_t first, uint64_t count,
                                       enum shard_dtype, void *dst, uint64_t *step); /* [any] *step: 0 asks for the newest, and is set;
        * moved on: STALE. A kind that the optimizer does not keep: NOT_FOUND. dst is undefined after a failure */
SHARD_API enum shard_status shard_drop(shard_client *, const char *name, int force); /* [any] frees it on all nodes. BUSY: joined trainers,
        * UNREACHABLE: a node; force: they are put out. DENIED: neither owner nor root, and its `mode` does not let you */
SHARD_API enum shard_status shard_set(shard_model *, const char *key, const char *value); /* [any] lr, clip: from the next step, recorded;
        * "default" takes it back. BAD_STATE: lr while a schedule sets it. DENIED */
SHARD_API enum shard_status shard_save(shard_model *, const char *dir, const char *tag, shard_ticket *); /* [any] daemons write a checkpoint of
        * the last step decided (the caller's own last result, between it and commit) while training goes on. dir: shared by all nodes;
        * NULL: checkpoint_dir. tag NULL: global_step{N}; replaced once a new one is whole. shard_wait(ticket): how it ended (SYSTEM: errno) */
SHARD_API enum shard_status shard_restore(shard_client *, const char *dir, const char *tag, const char *name, shard_model **); /* [any]
        * defines and seals a model as the checkpoint has it, on any number of nodes. tag NULL: the newest; name NULL: the saved one.
        * EXISTS: it has weights. What is damaged, missing or of another model is named: MISMATCH, NOT_FOUND, PROTOCOL */
/* --- world --- */
SHARD_API enum shard_status shard_join(shard_model *, int rank_hint, int64_t timeout_ms, struct shard_world *); /* [one] waits for min_world */
SHARD_API enum shard_status shard_world_get(shard_model *, struct shard_world *); /* [one] acknowledges WORLD_CHANGED, ROLLED_BACK */
SHARD_API enum shard_status shard_leave(shard_model *, int64_t timeout_ms);       /* [one] at the next boundary; others continue */
SHARD_API enum shard_status shard_samples(const struct shard_world *, uint64_t global_batch, uint64_t *first, uint64_t *count); /* [any] */
/* --- step: begin, push (any order, any thread), commit, result, pull. WORLD_CHANGED from any of them: the attempt in hand is over,
 * without effect: shard_world_get(), then begin. ROLLED_BACK: tickets too. They grow by one per call that gives one; only pull needs it --- */
SHARD_API enum shard_status shard_begin(shard_model *, const struct shard_begin_opts *, struct shard_step *); /* [one] waits until the step
        * before is decided and in the image (max_staleness = 1: until the one before that is). opts NULL: defaults. BAD_STATE */
SHARD_CALL void *shard_grad(shard_model *, uint32_t tensor);   /* [any] arena, grad dtype, 128-byte aligned, contiguous; ask again after each
        * begin (max_staleness > 0 alternates buffers). Write until its push, never from then to the result: SHARD_GUARD=1 maps it read-only,
        * so that a late write stops the culprit, not a step. Connection over: still memory, of zeros, that nobody reads. NULL unless joined */
enum { SHARD_ADD = 1, SHARD_CAST = 2 };
SHARD_API enum shard_status shard_push(shard_model *, uint32_t tensor, uint64_t first, uint64_t count, const void *src,
                                       enum shard_dtype, uint32_t flags, shard_ticket *);    /* [any]
        * src NULL: already in the arena, no copy. Ticket done = src may be reused. CAST: src dtype differs, else DTYPE. ADD: fp32 sum in
        * push order, rounded once. Each element micro_steps times: else DUPLICATE, RANGE; before begin, after commit BAD_STATE; later STALE */
SHARD_API enum shard_status shard_push_none(shard_model *, uint32_t tensor); /* [any] in one micro-step: as zero, no bytes; DUPLICATE */
SHARD_API enum shard_status shard_commit(shard_model *, shard_ticket *);     /* [one] all pushed, else MISSING (count, first three names) */
SHARD_API enum shard_status shard_vote_skip(shard_model *, const char *why); /* [one] in place of commit: nobody applies this step */
SHARD_API enum shard_status shard_abandon(shard_model *, const char *why);   /* [one] my gradients are bad: same step, next attempt, all */
SHARD_API enum shard_status shard_result(shard_model *, shard_ticket, int64_t timeout_ms, struct shard_result *); /* [any] 0 is the
        * step in hand. OK: committed. TIMEOUT: undecided, text names who is missing; call again. STALE: older than four commits. DIVERGED:
        * *result is filled too. MISMATCH: lr differed, begin again. Retries in one world stay inside (.attempts). apply_ns: of step - 1 */
SHARD_CALL const void *shard_image(shard_model *, uint32_t tensor); /* [any] PROT_READ, image dtype; ask again after each begin. Holds
        * step - 1 (max_staleness = 1: step - 2), unchanged before this trainer's own shard_commit. NULL unless joined: shard_read() */
SHARD_API enum shard_status shard_pull(shard_model *, uint32_t tensor, uint64_t first, uint64_t count, uint64_t step, void *dst,
                                       enum shard_dtype, shard_ticket *);    /* [any] dst NULL: only until the image holds `step`.
        * AGAIN: 1024 tickets are waiting, nothing was taken. dst is written inside later calls on the model */
SHARD_API enum shard_status shard_wait(shard_model *, shard_ticket, int64_t timeout_ms); /* [any] this ticket and all before it */
SHARD_API enum shard_status shard_test(shard_model *, shard_ticket); /* [any] this ticket alone: OK or AGAIN, no system call.
        * Over unix: a commit's ticket moves on in shard_progress() and in calls that wait */
SHARD_API enum shard_status shard_set_blob(shard_model *, const void *, size_t bytes); /* [one] <= 64 KiB (RNG, cursor), copied; committed
        * with the step whose shard_commit follows; kept from step to step until it is set again. RANGE; BAD_STATE: not begun */
SHARD_API enum shard_status shard_blob(shard_model *, uint32_t rank, void *, size_t *bytes, uint64_t *step); /* [any] newest committed one of
        * a rank, after any rejoin, resize or restore. *bytes: room, then size; too small: RANGE, and *bytes says. NOT_FOUND: none */
SHARD_API enum shard_status shard_region(shard_model *, enum shard_kind, void **base, size_t *bytes); /* [any] joined; GRAD or IMAGE: what
        * shard_grad and shard_image point into: cudaHostRegister it after each join, unregister it when the connection is over */
SHARD_API enum shard_status shard_stats(shard_client *, char *json, size_t *bytes); /* [any] what `shardctl status --json` shows */
#ifdef __cplusplus
}
#endif
#endif
