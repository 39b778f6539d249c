/* SPDX-License-Identifier: Apache-2.0 */
/* table.h: the table engine that the daemon's options and a model's settings share. A row says what
 * a key is called, what may be chosen, what it means, and which field of a struct holds its value.
 * From rows alone the engine finds keys, parses, stores and prints values, describes the choices in
 * error texts, and writes --help. manual.c writes README.md from the same rows. */
#ifndef SHARD_CONFIG_TABLE_H
#define SHARD_CONFIG_TABLE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TABLE_TEXT_BYTES 600  /* Room for any sentence about a row. */
#define TABLE_BIG        1e30 /* A maximum from here on is not mentioned. */

/* What the text of a value looks like, and the type of the field that holds it. */
enum table_type {
	TABLE_NAME,     /* 1 to 64 of a-z 0-9 . _ -; char[65]. */
	TABLE_PATH,     /* A path of up to `max` bytes; char[]. */
	TABLE_PATHS,    /* Absolute paths with a colon between them; char[]. */
	TABLE_URLS,     /* URLs of http or https with a comma between them; char[]. */
	TABLE_NETWORKS, /* Networks as in network.h, with a comma between them; char[]. */
	TABLE_GPUS,     /* off, auto, or uuids of GPUs with a comma between them; char[]. */
	TABLE_FOLDER,   /* An absolute path; char[], empty for the row's word. */
	TABLE_ADDRESS,  /* host:port; struct conn_address, without a host for the row's word. */
	TABLE_BYTES,    /* A size with its unit; uint64_t. */
	TABLE_DURATION, /* A time with its unit; uint64_t, in nanoseconds. */
	TABLE_COUNT,    /* A whole number, which may end in Ki, Mi or Gi; uint32_t or uint64_t. */
	TABLE_NUMBER,   /* A finite number; double. */
	TABLE_BOOL,     /* yes or no; bool. */
	TABLE_OCTAL,    /* Permissions; uint32_t. */
	TABLE_CHOICE,   /* One of the row's words, by its index; uint32_t, enum or bool. */
	TABLE_OWN,      /* The owner of the table parses it. It has no field. */
	TABLE_TYPE_NR,
};

/* Where a setting may stand. */
enum table_scope {
	TABLE_MODEL, /* Of a whole model; options of the daemon are of this scope, too. */
	TABLE_BOTH,  /* Of a model or of one of its tensor groups. */
	TABLE_GROUP, /* Of a group only. */
};

struct table_row {
	const char *section; /* "daemon", "net" or "cluster"; NULL: a model's setting. */
	const char *name;
	enum table_type type;
	size_t offset;     /* Of the field in its struct. */
	size_t bytes;      /* Of that field; 0: there is none. */
	bool as_double;    /* The field is a double, whatever the type. */
	double min, max;   /* Of numbers, of durations in ns, of sizes. Both 0 for a number: any. */
	bool above;        /* The minimum itself is excluded. */
	bool power_of_two; /* Only powers of two. */
	const char *word;  /* "auto", "off" or "none" in place of a value; NULL: no such word. */
	uint64_t word_value;             /* What the word stands for, in a field that is no text. */
	const char *const *words;        /* The choices by index, then NULL. NULL: see choice. */
	const char *(*choice)(uint32_t); /* Returns choice i, then NULL. NULL: see words. */
	const char *choose;              /* TABLE_OWN: what may be chosen. */
	const char *fallback;  /* The default, as somebody would write it; NULL: see otherwise. */
	const char *otherwise; /* Says what counts where nobody set the key; NULL: nothing does. */
	const char *help;      /* In whole sentences. */
	enum table_scope scope;
	bool reloadable; /* SIGHUP changes it in a running daemon. */
	bool shared;     /* It must be equal on all nodes. */
	bool offered;    /* A node that joins takes it from the node that it asks. */
	bool saving;     /* It says when and where a model is saved, not what the model is. */
	/* It says how the cluster keeps a model. What a checkpoint says gives way to a file. */
	bool hosting;
	int role, index; /* The owner of the table knows what these mean. */
};

struct table {
	const struct table_row *rows;
	uint32_t nr;
};

struct table_value {
	uint64_t whole; /* Counts, sizes, ns, permissions; yes is 1; the index of a choice. */
	double number;  /* A number; where the value is whole, the same number. */
	double second;  /* Of a pair of numbers. */
};

/* Returns the row's index, or t->nr if there is none. */
uint32_t table_find(const struct table *t, const char *section, const char *name);
/* Returns the name in that section that a mistyped one most likely meant, or NULL. */
const char *table_nearest(const struct table *t, const char *section, const char *name);

/* SHARD_BAD_ARG: e says what to choose, without the key. e may be NULL. */
enum shard_status table_parse(const struct table_row *row, const char *text, struct table_value *v,
			      struct err *e);
/* Puts a value that table_parse() took into its field of object. */
void table_store(const struct table_row *row, void *object, const char *text,
		 const struct table_value *v);
/* table_parse(), then table_store(). */
enum shard_status table_set(const struct table_row *row, void *object, const char *text,
			    struct err *e);
/* The text of object's field, which table_set() takes for the same value. */
void table_get(const struct table_row *row, const void *object, char *out, size_t bytes);
/* Copies the field between objects of one type. */
void table_copy(const struct table_row *row, void *to, const void *from);

/* "auto or a whole number from 1 to 256": completes the word "choose". */
void table_choices(const struct table_row *row, char *out, size_t bytes);
/* What the key means, in whole sentences. */
void table_meaning(const struct table_row *row, char *out, size_t bytes);
/* A key and a sentence, set in two columns for a terminal. */
void table_help_line(FILE *out, const char *key, const char *text);
/* One such line for each row, with the name of each section above its rows. */
void table_help(const struct table *t, FILE *out);
/* CHECKs what every row has to fulfil, its default included. */
void table_check(const struct table *t);

#endif
