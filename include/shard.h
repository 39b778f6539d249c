/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h: push gradients to, and pull parameters from, the shardd on this node. A sketch of the whole v0 API.
 * Marks: [any] any thread, concurrently, also on one handle; [one] one thread at a time per handle (a second one gets
 * SHARD_BUSY, never a race). The library exits, prints and aborts never; installs no signal handler; starts no thread
 * for unix: and spawn:, one for tcp:; sets CLOEXEC and MADV_DONTFORK; in a forked child every call is SHARD_FORKED.
 * timeout_ms: 0 polls, SHARD_DEFAULT takes the model's `timeout`; there is no "for ever". Every call that fails leaves
 * a sentence in shard_error(): what, which tensor/rank/node, since when, what to do. Out-structs: set .size first. */
#ifndef SHARD_H
#define SHARD_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define SHARD_API __attribute__((visibility("default"), warn_unused_result))
#define SHARD_INIT(T) ((T){ .size = sizeof(T) }) /* size field: library reads/writes min(caller's, its own) bytes */
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
typedef struct shard_client shard_client;  /* one connection to one daemon */
typedef struct shard_model shard_model;    /* one attachment to one model  */
typedef uint64_t shard_ticket;             /* grows by one per model; 0 = nothing to wait for */

struct shard_connect_opts { size_t size;
    const char *address;   /* unix:/p, tcp://host:port, spawn:NAME; NULL: $SHARD_ADDRESS, then unix:/run/shardd/shardd.sock */
    const char *secret;    /* file with the cluster secret, tcp only */
    int64_t timeout_ms;
    void (*log)(void *arg, int level, const char *line); void *log_arg; };
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
    uint32_t micro_steps;  /* pushes with SHARD_ADD per element; 0 = 1 */
    const double *lr;      /* own schedule: one per group, equal on all ranks (SHARD_MISMATCH names the odd one); or NULL */ };
struct shard_step { size_t size; uint64_t step, attempt; uint32_t rank, world_size; double loss_scale; };
enum shard_outcome { SHARD_APPLIED = 1, SHARD_SKIPPED_NONFINITE, SHARD_SKIPPED_VOTE };
struct shard_result { size_t size; enum shard_outcome outcome; uint64_t step, applied /* = Adam's t */, attempts, skipped_in_row;
    double grad_norm /* unscaled, before the clip; inf/nan if skipped */, clip_factor, weight_sum, loss_scale, next_loss_scale, lr;
    int64_t bad_tensor; int32_t bad_rank;                              /* first non-finite gradient, -1 = none */
    uint64_t wait_ns, reduce_ns, apply_ns, pushed_bytes, pulled_bytes; uint32_t world_size, slowest_rank; };

/* --- texts and connection --- */
const char *shard_version(void);                                       /* [any] "0.1.0 wire 1-1 abi 0" */
const char *shard_name(enum shard_status);                             /* [any] "SHARD_WORLD_CHANGED" */
const char *shard_error(void);                                         /* [any] last failure of the calling thread, one sentence */
SHARD_API enum shard_status shard_connect(shard_client **, const struct shard_connect_opts *);   /* NULL opts = defaults */
void shard_disconnect(shard_client **);                                /* detaches its models; a joined one counts as lost trainer */
int shard_fd(const shard_client *);                                    /* [any] readable when a ticket or event is ready: epoll it */
SHARD_API enum shard_status shard_progress(shard_client *);            /* [one] drain shard_fd without waiting */
void shard_interrupt(shard_client *);                                  /* [any, signal-safe] waiting calls return SHARD_INTERRUPTED */

/* --- model: made once, outlives every trainer --- */
SHARD_API enum shard_status shard_define(shard_client *, const struct shard_spec *, shard_model **, int *created);
        /* equal layout and settings hash: attach; else SHARD_MISMATCH (tensor, field, both values). SHARD_BUDGET: figures per node.
         * created=1 to exactly one caller: it writes the weights; if it dies before shard_seal the next caller gets created=1 */
void shard_detach(shard_model **);
uint32_t shard_tensors(const shard_model *);                                               /* [any] */
SHARD_API enum shard_status shard_tensor_info(const shard_model *, uint32_t tensor, struct shard_info *);   /* [any] */
SHARD_API enum shard_status shard_find(const shard_model *, const char *tensor, uint32_t *index);           /* [any] */
SHARD_API enum shard_status shard_write(shard_model *, enum shard_kind, uint32_t tensor, uint64_t first, uint64_t count,
                                        enum shard_dtype, const void *);   /* master or moments; only before shard_seal */
SHARD_API enum shard_status shard_seal(shard_model *, uint64_t step);  /* all written (else SHARD_MISSING names one); image published as `step` */
SHARD_API enum shard_status shard_read(shard_model *, enum shard_kind, uint32_t tensor, uint64_t first, uint64_t count,
                                       enum shard_dtype, void *, uint64_t *step);  /* [any] *step: 0 asks for the newest; moved on: SHARD_STALE */

/* --- world --- */
SHARD_API enum shard_status shard_join(shard_model *, int rank_hint, int64_t timeout_ms, struct shard_world *); /* waits for min_world */
SHARD_API enum shard_status shard_world_get(shard_model *, struct shard_world *);      /* also acknowledges SHARD_WORLD_CHANGED */
SHARD_API enum shard_status shard_leave(shard_model *, int64_t timeout_ms);        /* at the next boundary; others continue */
SHARD_API enum shard_status shard_samples(const struct shard_world *, uint64_t global_batch, uint64_t *first, uint64_t *count); /* pure */

/* --- step: begin, push (any order, any thread), commit, result, pull --- */
SHARD_API enum shard_status shard_begin(shard_model *, const struct shard_begin_opts *, struct shard_step *);   /* [one] */
void *shard_grad(shard_model *, uint32_t tensor);        /* [any] arena, grad dtype, 128-byte aligned, contiguous; ask again after each
        * begin (max_staleness > 0 alternates buffers). Write until its push; from then to the result it is the daemon's and must not
        * change: SHARD_GUARD=1 maps it read-only, so that a late write stops the culprit instead of corrupting a step */
enum { SHARD_ADD = 1, SHARD_CAST = 2 };
SHARD_API enum shard_status shard_push(shard_model *, uint32_t tensor, uint64_t first, uint64_t count, const void *src,
                                       enum shard_dtype, uint32_t flags, shard_ticket *);    /* [any]
        * src NULL: already in the arena, no copy. Ticket done = src may be reused. AGAIN = window full, nothing was taken. ADD: fp32
        * sum over micro_steps in push order. CAST: src dtype differs. Each element micro_steps times: else DUPLICATE, RANGE, DTYPE, STALE */
SHARD_API enum shard_status shard_push_none(shard_model *, uint32_t tensor);       /* [any] counts as zero, costs no bytes */
SHARD_API enum shard_status shard_commit(shard_model *, shard_ticket *);  /* [one] all pushed, else SHARD_MISSING (count, first three names) */
SHARD_API enum shard_status shard_vote_skip(shard_model *, const char *why); /* [one] in place of commit: nobody applies this step */
SHARD_API enum shard_status shard_abandon(shard_model *, const char *why);   /* [one] my gradients are bad: same step, next attempt, all ranks */
SHARD_API enum shard_status shard_result(shard_model *, shard_ticket, int64_t timeout_ms, struct shard_result *); /* [any]
        * OK: committed. TIMEOUT: undecided, text names who is missing; call again. Retries within one world stay inside (.attempts) */
const void *shard_image(shard_model *, uint32_t tensor); /* [any] PROT_READ, image dtype; ask again after each begin. Holds step - 1 and
        * does not change before this trainer's own shard_commit. NULL unless joined: observers copy with shard_pull(dst) instead */
SHARD_API enum shard_status shard_pull(shard_model *, uint32_t tensor, uint64_t first, uint64_t count, uint64_t step, void *dst,
                                       enum shard_dtype, shard_ticket *);    /* [any] dst NULL: only until the image holds `step` */
SHARD_API enum shard_status shard_wait(shard_model *, shard_ticket, int64_t timeout_ms);     /* [any] this ticket and all before it */
SHARD_API enum shard_status shard_test(shard_model *, shard_ticket);                         /* [any] OK or AGAIN, no system call */
#ifdef __cplusplus
}
#endif
#endif
