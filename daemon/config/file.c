/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a configuration file with libinih and hands each key to its caller, with file and line.
 * Debian builds that library with a buffer of 200 bytes for a line and 50 for a section's name. It
 * cuts what is longer without a word, joins a line that begins with a blank to the one before, and
 * tells its handler no line number. So it is fed line by line from here: this reader counts, and
 * refuses every line that would not arrive as it was written. The first error ends it: the reader
 * then pretends that the file is over. Where all errors are wanted, a line that is wrong is read as
 * an empty one, and so are the keys of a section that is wrong. */
#include "config/loader.h"

#include "base/check.h"
#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX     (1u << 20)
#define INIH_LINE_BYTES    200 /* Its INI_MAX_LINE: with the newline and the end of the string. */
#define INIH_SECTION_BYTES 50  /* Its MAX_SECTION. */

struct reader {
	config_on_line *fn;
	void *arg;
	const char *name;     /* Of the file, for texts. */
	const char *at, *end; /* What has not been read yet. */
	uint32_t line;
	bool skips;               /* The section is wrong: its keys are not looked at. */
	enum shard_status status; /* The first error that ends it. */
	struct config_wrong *wrong;
	struct err *e;
};

enum shard_status config_go_on(struct config_wrong *wrong, enum shard_status st,
			       const struct err *e)
{
	if (wrong == NULL || st == SHARD_OK)
		return st;
	if (wrong->nr++ == 0)
		wrong->first = *e;
	else if (strcmp(wrong->last.text, e->text) == 0)
		return SHARD_OK; /* What all models share is found with each of them. */
	wrong->last = *e;
	wrong->tell(wrong->arg, e->text);
	return SHARD_OK;
}

bool config_one_file(const char *where, const char *other)
{
	const char *a = strrchr(where, ':'), *b = strrchr(other, ':');

	return a && b && a - where == b - other && memcmp(where, other, (size_t)(a - where)) == 0;
}

static void where_text(const struct reader *r, char where[CONFIG_WHERE_BYTES])
{
	size_t n = strlen(r->name), keep = CONFIG_WHERE_BYTES - 16;

	snprintf(where, CONFIG_WHERE_BYTES, "%s:%u", n > keep ? r->name + n - keep : r->name,
		 r->line);
}

static void refuse(struct reader *r, const char *what)
{
	char where[CONFIG_WHERE_BYTES];

	where_text(r, where);
	r->status = err_set(r->e, SHARD_BAD_ARG, "%s: %s", where, what);
}

/* The name ends at the first closing bracket, even inside quotes: libinih does the same. */
static void check_section_line(struct reader *r, const char *text, size_t n)
{
	const char *close = memchr(text, ']', n);
	char section[INIH_SECTION_BYTES], where[CONFIG_WHERE_BYTES];
	size_t bytes = close ? (size_t)(close - text - 1) : 0;

	if (!close) {
		refuse(r, "a section needs its closing bracket, as in [daemon]");
		return;
	}
	if (bytes >= sizeof(section)) {
		refuse(r, "a section's name is longer than 49 characters: choose shorter names");
		return;
	}
	memcpy(section, text + 1, bytes);
	section[bytes] = 0;
	close++;
	close += strspn(close, " \t\r");
	if (close < text + n && *close != ';' && *close != '#') {
		refuse(r, "nothing but a comment may follow a section's closing bracket");
		return;
	}
	where_text(r, where);
	r->status = config_check_section(where, section, r->e);
}

static bool blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static void check_line(struct reader *r, const char *text, size_t n)
{
	size_t first = 0;
	bool key = false;

	if (memchr(text, 0, n)) {
		refuse(r, "a zero byte: this is no text file");
		return;
	}
	while (first < n && blank(text[first]))
		first++;
	if (first == n || text[first] == ';' || text[first] == '#') {
		if (n > INIH_LINE_BYTES - 2)
			refuse(r, "a line is longer than 198 bytes: break the comment");
		return;
	}
	if (n > INIH_LINE_BYTES - 2) {
		refuse(r, "a line is longer than 198 bytes: it would be cut");
		return;
	}
	if (first > 0) {
		refuse(r, "a line begins with a blank: it would be joined to the one before");
		return;
	}
	if (text[0] == '[') {
		check_section_line(r, text, n);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && blank(text[i - 1]) && text[i] == ';')
			break; /* The rest is a comment. */
		if (i > 0 && blank(text[i - 1]) && text[i] == '#') {
			refuse(r, "# would be part of the value: write a comment behind ; or on "
				  "its own line");
			return;
		}
		key = key || text[i] == '=' || text[i] == ':';
	}
	if (!key)
		refuse(r, "not understood: write key = value, [section] or ; comment");
}

/* What libinih calls in place of fgets(): at most nr - 1 bytes of one line; NULL at the end. */
static char *next_line(char *to, int nr, void *stream)
{
	struct reader *r = stream;
	const char *newline;
	size_t n, whole;

	CHECK(nr > 0 && r->at <= r->end);
	if (r->status != SHARD_OK || r->at == r->end)
		return NULL;
	newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
	n = whole = (size_t)((newline ? newline : r->end) - r->at);
	r->line++;
	if (n > 0 && r->at[0] == '[')
		r->skips = false;
	if (!r->skips)
		check_line(r, r->at, n);
	if (r->status != SHARD_OK && r->wrong) {
		r->status = config_go_on(r->wrong, r->status, r->e);
		r->skips = n > 0 && r->at[0] == '[';
		n = 0;
	}
	if (r->status != SHARD_OK)
		return NULL;
	if (r->skips)
		n = 0;
	if (n + 2 > (size_t)nr) {
		refuse(r, "the line does not fit libinih's buffer");
		return NULL;
	}
	memcpy(to, r->at, n);
	to[n] = '\n';
	to[n + 1] = 0;
	r->at += whole + (newline != NULL);
	return to;
}

static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	struct reader *r = arg;
	char where[CONFIG_WHERE_BYTES];

	if (r->status != SHARD_OK)
		return 0;
	where_text(r, where);
	r->status = config_go_on(r->wrong,
				 r->fn(r->arg,
				       &(struct config_line){.where = where,
							     .line = r->line,
							     .section = section,
							     .key = key,
							     .value = value},
				       r->e),
				 r->e);
	return r->status == SHARD_OK;
}

enum shard_status config_read_text(const char *name, const char *text, size_t bytes,
				   config_on_line *fn, void *arg, struct config_wrong *wrong,
				   struct err *e)
{
	struct reader r = {.fn = fn,
			   .arg = arg,
			   .name = name,
			   .at = text,
			   .end = text + bytes,
			   .wrong = wrong,
			   .e = e};
	int bad;

	CHECK(name && fn && (text || bytes == 0));
	if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		r.at += 3; /* The byte order mark, which some editors write. */
	bad = ini_parse_stream(next_line, &r, on_key, &r);
	if (r.status != SHARD_OK)
		return r.status;
	if (bad > 0) {
		r.line = (uint32_t)bad;
		refuse(&r, "not understood: write key = value, [section] or ; comment");
		return r.status;
	}
	return bad == 0 ? SHARD_OK : err_set(e, SHARD_SYSTEM, "%s: no memory to read it", name);
}

/* Reads until the end, or until there is more than a configuration has. Returns the number of bytes
 * or -1. ETIMEDOUT: of a pipe, the end has not come by then. Without a writer a pipe looks as if it
 * had ended, also before the first one comes. */
static ssize_t read_all(int fd, bool pipe, uint64_t until_ns, char *text)
{
	bool ended = !pipe; /* Nothing to read is the end. */
	ssize_t n, got = 0;

	while (got <= (ssize_t)FILE_BYTES_MAX) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		uint64_t now;

		n = read(fd, text + got, FILE_BYTES_MAX + 1 - (size_t)got);
		if (n > 0) {
			got += n;
			continue;
		}
		if (n == 0 && (ended || got > 0))
			break;
		if (n < 0 && (!pipe || errno != EAGAIN))
			return -1;
		now = clock_ns();
		if (now >= until_ns) {
			errno = ETIMEDOUT;
			return -1;
		}
		ended = poll(&p, 1, (int)((until_ns - now) / NS_PER_MS) + 1) > 0 &&
			(p.revents & POLLHUP) != 0;
	}
	return got;
}

enum shard_status config_read_file(const char *path, bool must, uint64_t pipe_ns,
				   config_on_line *fn, void *arg, struct config_wrong *wrong,
				   struct err *e)
{
	/* A pipe would keep open() waiting: at a start for ever, and at a reload on the loop. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	enum shard_status st = SHARD_OK;
	struct stat info;
	ssize_t got = 0;
	bool pipe;
	char *text;

	if (fd < 0)
		return errno == ENOENT && !must
			       ? SHARD_OK
			       : err_set(e, SHARD_SYSTEM, "%s: cannot be opened: %s", path,
					 strerror(errno));
	pipe = fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode);
	if (!(pipe ? pipe_ns > 0 : S_ISREG(info.st_mode) || S_ISCHR(info.st_mode))) {
		close(fd);
		return err_set(e, SHARD_SYSTEM, "%s: not a file%s", path,
			       pipe ? ": what a pipe has can be read once, and shardd reads its "
				      "configuration again"
				    : "");
	}
	text = malloc(FILE_BYTES_MAX + 1);
	if (!text)
		st = err_set(e, SHARD_SYSTEM, "%s: no memory to read it", path);
	else
		got = read_all(fd, pipe, clock_ns() + pipe_ns, text);
	if (st == SHARD_OK && got < 0 && errno == ETIMEDOUT)
		st = err_set(e, SHARD_SYSTEM,
			     "%s: a pipe whose end has not come in %.0f s: write all of it at "
			     "once, or into a file",
			     path, (double)pipe_ns / NS_PER_SEC);
	else if (st == SHARD_OK && got < 0)
		st = err_set(e, SHARD_SYSTEM, "%s: cannot be read: %s", path, strerror(errno));
	else if (st == SHARD_OK && got > FILE_BYTES_MAX)
		st = err_set(e, SHARD_BAD_ARG, "%s: larger than 1 MiB: this is no configuration",
			     path);
	else if (st == SHARD_OK)
		st = config_read_text(path, text, (size_t)got, fn, arg, wrong, e);
	free(text);
	close(fd);
	return st;
}

static int is_conf(const struct dirent *d)
{
	size_t n = strlen(d->d_name);

	return d->d_name[0] != '.' && n > 5 && strcmp(d->d_name + n - 5, ".conf") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

enum shard_status config_read_folder(const char *dir, bool must, config_on_line *fn, void *arg,
				     struct config_wrong *wrong, struct err *e)
{
	enum shard_status st = SHARD_OK;
	char path[CONFIG_PATH_BYTES + NAME_MAX + 2];
	struct dirent **list = NULL;
	int nr = strlen(dir) < CONFIG_PATH_BYTES ? scandir(dir, &list, is_conf, by_name) : -1;

	if (nr < 0)
		return errno == ENOENT && !must ? SHARD_OK
						: err_set(e, SHARD_SYSTEM, "%s: cannot be read: %s",
							  dir, strerror(errno));
	for (int i = 0; i < nr; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, list[i]->d_name);
		if (st == SHARD_OK)
			st = config_go_on(wrong, config_read_file(path, true, 0, fn, arg, wrong, e),
					  e);
		free(list[i]);
	}
	free(list);
	return st;
}
