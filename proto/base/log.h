/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: one line per event, of the form ts=… level=… node=… event=… and further keys.
 * Every %s in a format is a value. It is quoted and escaped where necessary, so that neither a
 * peer's name nor a sentence can start a new key or a new line. */
#ifndef SHARD_BASE_LOG_H
#define SHARD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LINE_BYTES 1024 /* A longer line is cut, and its last value ends in "...". */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_NR };

typedef void log_sink(void *arg, enum log_level level, const char *line); /* line has no newline. */

struct log {
	enum log_level level; /* Less urgent lines are dropped. */
	int fd;               /* Each line is one write(2). -1 writes nothing. */
	log_sink *sink;       /* Gets the lines in place of fd, unless it is NULL. */
	void *sink_arg;
	log_sink *tap; /* Gets each line, too, from the thread that writes it, unless it is NULL. */
	void *tap_arg;
	char node[65];
};

/* Limits the lines of one call site to LOG_BURST at once and then one per second. The caller owns
 * it and initialises it with zeros. */
struct log_bucket {
	uint64_t last_ns;
	uint32_t spent, suppressed;
};
#define LOG_BURST 10

void log_init(struct log *l, int fd, enum log_level level, const char *node);
const char *log_level_name(enum log_level level);
bool log_level_parse(const char *text, enum log_level *level);

/* An example of fmt is "event=peer_lost peer=%s step=%lu why=%s". With l NULL nothing is logged.
 * The supported conversions are %s and d i u x X c f e g with their usual flags and lengths. */
__attribute__((format(printf, 3, 4))) void log_line(const struct log *l, enum log_level level,
						    const char *fmt, ...);
/* As log_line(), but with the limit of b. The next line that is written says how many lines were
 * left out. */
__attribute__((format(printf, 5, 6))) void log_limited(const struct log *l, struct log_bucket *b,
						       uint64_t now_ns, enum log_level level,
						       const char *fmt, ...);

/* Folds lines that say the same again and again, as those of a peer that tries each second. The
 * owner initialises it with zeros. */
enum { LOG_FOLD_SLOTS = 8, LOG_FOLD_SHOWN = 4 };
struct log_fold {
	struct log_folded {
		char what[160];
		uint64_t since_ns, last_ns; /* Of the last line, and when it was said last. */
		uint32_t shown, left_out;
	} slot[LOG_FOLD_SLOTS];
};
/* True: a line that says `what` is to be written now, and *times like it were left out since the
 * last one. The first LOG_FOLD_SHOWN are, and then one a minute. */
bool log_fold(struct log_fold *f, uint64_t now_ns, const char *what, uint32_t *times);

#endif
