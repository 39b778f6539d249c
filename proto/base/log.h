/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: one key=value line per event: ts=… level=… node=… event=…. Every %s of a format is a
 * value: it is quoted and escaped where it needs to be, so that neither a peer's name nor a
 * sentence can start a new key or a new line. */
#ifndef SHARD_BASE_LOG_H
#define SHARD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LINE_BYTES 1024 /* longer lines are cut and end in "..." */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_NR };

typedef void log_sink(void *arg, enum log_level level,
		      const char *line); /* line without its newline */

struct log {
	enum log_level level; /* less urgent lines are dropped */
	int fd;               /* one write(2) per line; -1: none */
	log_sink *sink;       /* instead of fd, unless NULL */
	void *sink_arg;
	char node[65];
};

struct log_bucket { /* one per call site, zero-initialised, owned by whoever calls: LOG_BURST lines,
		       then one per second */
	uint64_t last_ns;
	uint32_t spent, suppressed;
};
#define LOG_BURST 10

void log_init(struct log *l, int fd, enum log_level level, const char *node);
const char *log_level_name(enum log_level level);
bool log_level_parse(const char *text, enum log_level *level);

/* fmt: "event=peer_lost peer=%s step=%lu why=%s". l may be NULL: nothing is logged. Supported: %s,
 * and d i u x X c f e g with their usual flags and lengths. */
__attribute__((format(printf, 3, 4))) void log_line(const struct log *l, enum log_level level,
						    const char *fmt, ...);
/* The same, at most LOG_BURST at once and one per second: what was left out is counted and said
 * with the next line. */
__attribute__((format(printf, 5, 6))) void log_limited(const struct log *l, struct log_bucket *b,
						       uint64_t now_ns, enum log_level level,
						       const char *fmt, ...);

#endif
