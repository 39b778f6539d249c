/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h: what the sources behind config.h share. From below: options.c has the options' rows,
 * sections.c the sections [nodes] and [model ...], file.c reads a file, finish.c completes what was
 * read, config.c loads, show.c prints. */
#ifndef SHARD_CONFIG_LOADER_H
#define SHARD_CONFIG_LOADER_H

#include "config/config.h"
#include "config/table.h"

#define CONFIG_OPTIONS_MAX 64
#define CONFIG_WIRE        "the wire between nodes" /* No option, but it has to be equal, too. */

/* One key, from anywhere. */
struct config_line {
	const char *where;   /* For error texts. */
	uint32_t line;       /* 0: it is not from a file, and may replace what a file said. */
	const char *section; /* "daemon", "nodes", "model \"x\" group \"g\"" and so on. */
	const char *key, *value;
};

/* Hears of errors when all of them are to be found. */
struct config_wrong {
	void (*tell)(void *arg, const char *text);
	void *arg;
	uint32_t nr;
	struct err first, last;
};

/* Both arrays have the order of config_options(). */
struct config_loader {
	struct config *c;
	char where[CONFIG_OPTIONS_MAX][CONFIG_WHERE_BYTES]; /* Who set an option last. */
	uint32_t file_line[CONFIG_OPTIONS_MAX];             /* 0: the option is in no file. */
	struct config_wrong *wrong; /* Who hears of every error. NULL: the first one ends it. */
};

const struct table *config_options(void);
/* The section that has such a key: that of an option, or "model". NULL: none has. */
const char *config_section_of(const char *key);

/* Checks the section's name, as it stands in brackets. */
enum shard_status config_check_section(const char *where, const char *section, struct err *e);
enum shard_status config_put_node(struct config *c, const struct config_line *l, struct err *e);
/* A key of a [model ...] section. */
enum shard_status config_put_setting(struct config *c, const struct config_line *l, struct err *e);
/* `model "name" group "group"`, as it stands between the brackets. */
void config_model_title(const struct config_model *m, char *out, size_t bytes);
/* Takes the next setting off *at, which began as m->settings. False: there is none. */
bool config_next_setting(const char **at, char key[CONFIG_NAME_BYTES],
			 char value[CONFIG_PATH_BYTES]);

typedef enum shard_status config_on_line(void *arg, const struct config_line *l, struct err *e);
/* Calls fn for each key of the file. The first error ends it, unless wrong is there to hear of all
 * of them: then what can be read is read, and only what is no fault of a line fails. */
enum shard_status config_read_text(const char *name, const char *text, size_t bytes,
				   config_on_line *fn, void *arg, struct config_wrong *wrong,
				   struct err *e);
/* The same from disk. A file that is not there is an error only if it must be. A pipe has to end
 * within pipe_ns, and with 0 it is an error. */
enum shard_status config_read_file(const char *path, bool must, uint64_t pipe_ns,
				   config_on_line *fn, void *arg, struct config_wrong *wrong,
				   struct err *e);
/* Each file of dir whose name ends in .conf, in the order of the names. */
enum shard_status config_read_folder(const char *dir, bool must, config_on_line *fn, void *arg,
				     struct config_wrong *wrong, struct err *e);
/* Are both places, as in "shardd.conf:12", in one file? */
bool config_one_file(const char *where, const char *other);
/* Tells wrong of an error and returns SHARD_OK, so that its caller goes on. Without wrong, or
 * without an error, it returns st. */
enum shard_status config_go_on(struct config_wrong *wrong, enum shard_status st,
			       const struct err *e);

/* The source below the file: config_args.cluster. */
enum shard_status config_put_cluster(struct config_loader *l, const struct config_args *args,
				     struct err *e);
/* Works out what nobody set, and refuses contradictions. */
enum shard_status config_finish(struct config_loader *l, struct err *e);
/* config_load() with the loader kept. The caller frees l->c after success. */
enum shard_status config_load_into(struct config_loader *l, const struct config_args *args,
				   struct err *e);

#endif
