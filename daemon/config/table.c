/* SPDX-License-Identifier: Apache-2.0 */
/* The table engine. The daemon's options (options.c) and a model's settings (keys.c) are its two
 * tables. Each type of value has a case in parse(), print() and describe(); error texts, --help and
 * the manual all take their words from the last one, so that they cannot differ. Happy path:
 * table_find(), table_parse(), table_store(). A value that cannot be is SHARD_BAD_ARG with the
 * choices; a row that contradicts itself is a CHECK. */
#include "config/table.h"

#include "base/check.h"
#include "base/nearest.h"
#include "config/value.h"
#include "gpu/uuid.h"
#include "net/address.h"
#include "net/network.h"

#include <string.h>

static const char *choice(const struct table_row *row, uint32_t i)
{
	CHECK(row->type == TABLE_CHOICE && (row->words || row->choice));
	return row->words ? row->words[i] : row->choice(i);
}

static bool within(const struct table_row *row, double x)
{
	return x <= row->max && (row->above ? x > row->min : x >= row->min);
}

static bool any_number(const struct table_row *row)
{
	return row->min == 0 && row->max == 0;
}

/* A path of limited length without control characters. */
static bool path_ok(const struct table_row *row, const char *text)
{
	size_t n = strlen(text);

	CHECK(row->max > 0 && row->max < (double)row->bytes);
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ')
			return false;
	return n > 0 && n <= (size_t)row->max;
}

static bool paths_ok(const struct table_row *row, const char *text)
{
	for (const char *p = text; p; p = strchr(p, ':'), p += p != NULL)
		if (*p != '/')
			return false;
	return path_ok(row, text);
}

static bool urls_ok(const struct table_row *row, const char *text)
{
	for (const char *p = text; p; p = strchr(p, ','), p += p != NULL)
		if ((strncmp(p, "http://", 7) != 0 && strncmp(p, "https://", 8) != 0) ||
		    strcspn(strstr(p, "//") + 2, ", /") == 0)
			return false;
	return strpbrk(text, " \t") == NULL && path_ok(row, text);
}

static bool networks_ok(const struct table_row *row, const char *text)
{
	struct network_list list;

	return path_ok(row, text) && network_parse(&list, text);
}

/* Each of them once. */
static bool gpus_ok(const struct table_row *row, const char *text)
{
	uint8_t uuid[GPU_DEVICES_MAX][GPU_UUID_BYTES];
	uint32_t nr = 0;

	if (strcmp(text, "off") == 0 || strcmp(text, "auto") == 0)
		return true;
	for (const char *p = text; p; p = strchr(p, ','), p += p != NULL) {
		if (nr == GPU_DEVICES_MAX || !gpu_uuid_parse(uuid[nr], p, strcspn(p, ",")))
			return false;
		for (uint32_t i = 0; i < nr; i++)
			if (memcmp(uuid[i], uuid[nr], GPU_UUID_BYTES) == 0)
				return false;
		nr++;
	}
	return path_ok(row, text);
}

static bool address_ok(const char *text)
{
	struct conn_address address;

	return conn_address_parse(&address, text, NULL) == SHARD_OK && !address.unix_path;
}

static bool parse_choice(const struct table_row *row, const char *text, uint64_t *index)
{
	const char *word;

	for (uint32_t i = 0; (word = choice(row, i)) != NULL; i++) {
		if (strcmp(word, text) == 0) {
			*index = i;
			return true;
		}
	}
	return false;
}

static bool parse(const struct table_row *row, const char *text, struct table_value *v)
{
	uint32_t octal;
	bool yes;

	switch (row->type) {
	case TABLE_NAME:
		return value_name(text);
	case TABLE_PATH:
		return path_ok(row, text);
	case TABLE_PATHS:
		return paths_ok(row, text);
	case TABLE_URLS:
		return urls_ok(row, text);
	case TABLE_NETWORKS:
		return networks_ok(row, text);
	case TABLE_GPUS:
		return gpus_ok(row, text);
	case TABLE_FOLDER:
		return text[0] == '/' && path_ok(row, text);
	case TABLE_ADDRESS:
		return address_ok(text);
	case TABLE_BYTES:
		return value_bytes(text, &v->whole) && within(row, (double)v->whole);
	case TABLE_DURATION:
		return value_duration(text, &v->whole) && within(row, (double)v->whole);
	case TABLE_COUNT:
		return value_count(text, &v->whole) && within(row, (double)v->whole) &&
		       !(row->power_of_two && (v->whole & (v->whole - 1)));
	case TABLE_NUMBER:
		return value_double(text, &v->number) &&
		       (any_number(row) || within(row, v->number));
	case TABLE_BOOL:
		if (!value_bool(text, &yes))
			return false;
		v->whole = yes;
		return true;
	case TABLE_OCTAL:
		if (!value_octal(text, &octal) || !within(row, octal))
			return false;
		v->whole = octal;
		return true;
	case TABLE_CHOICE:
		return parse_choice(row, text, &v->whole);
	case TABLE_OWN:
	case TABLE_TYPE_NR:
		break;
	}
	CHECK(!"the table's owner parses this");
	return false;
}

/* The field holds the text itself, or an address, which keeps its text. */
static bool is_text(const struct table_row *row)
{
	return row->type <= TABLE_ADDRESS;
}

static void print(const struct table_row *row, const struct table_value *v, char *out, size_t bytes)
{
	char text[VALUE_TEXT_BYTES] = "";
	const char *word = text;

	CHECK(!is_text(row) && row->type != TABLE_OWN);
	if (row->type == TABLE_BYTES)
		value_bytes_text(text, v->whole);
	else if (row->type == TABLE_DURATION)
		value_duration_text(text, v->whole);
	else if (row->type == TABLE_NUMBER)
		value_double_text(text, v->number);
	else if (row->type == TABLE_BOOL)
		word = v->whole ? "yes" : "no";
	else if (row->type == TABLE_CHOICE)
		word = choice(row, (uint32_t)v->whole);
	else
		snprintf(text, sizeof(text), row->type == TABLE_OCTAL ? "%04llo" : "%llu",
			 (unsigned long long)v->whole);
	CHECK(word);
	snprintf(out, bytes, "%s", word);
}

static void list_choices(const struct table_row *row, char *out, size_t bytes)
{
	const char *word;
	size_t used = 0;

	for (uint32_t i = 0; (word = choice(row, i)) != NULL; i++) {
		const char *glue = choice(row, i + 1) ? ", " : " or ";

		used += (size_t)snprintf(out + used, bytes - used, "%s%s", i > 0 ? glue : "", word);
		CHECK(used < bytes);
	}
}

static void describe_number(const struct table_row *row, char *out, size_t bytes)
{
	if (any_number(row))
		snprintf(out, bytes, "a number");
	else if (row->max < TABLE_BIG)
		snprintf(out, bytes, "a number from %g to %.6g", row->min, row->max);
	else
		snprintf(out, bytes, "a number %s %g", row->above ? "above" : "of at least",
			 row->min);
}

static void describe_time(const struct table_row *row, char *out, size_t bytes)
{
	char min[VALUE_TEXT_BYTES], max[VALUE_TEXT_BYTES];

	value_duration_text(min, (uint64_t)row->min);
	value_duration_text(max, (uint64_t)row->max);
	snprintf(out, bytes, "a time from %s to %s", min, max);
}

static void describe(const struct table_row *row, char *out, size_t bytes)
{
	char min[VALUE_TEXT_BYTES];

	switch (row->type) {
	case TABLE_NAME:
		snprintf(out, bytes, "1 to 64 of a-z 0-9 . _ -");
		return;
	case TABLE_PATH:
		snprintf(out, bytes, "a path of 1 to %.0f bytes", row->max);
		return;
	case TABLE_PATHS:
		snprintf(out, bytes, "absolute paths with a colon between them");
		return;
	case TABLE_URLS:
		snprintf(out, bytes, "http:// or https:// URLs with a comma between them");
		return;
	case TABLE_NETWORKS:
		snprintf(out, bytes,
			 "addresses and networks with a comma between them and nothing behind "
			 "their mask, as in 10.0.0.0/8, fd00::/8");
		return;
	case TABLE_GPUS:
		snprintf(out, bytes,
			 "off, auto, or up to %d uuids as `nvidia-smi -L` shows them, each once, "
			 "with a comma between them",
			 GPU_DEVICES_MAX);
		return;
	case TABLE_FOLDER:
		snprintf(out, bytes, "an absolute path of at most %.0f bytes", row->max);
		return;
	case TABLE_ADDRESS:
		snprintf(out, bytes, "host:port");
		return;
	case TABLE_BYTES:
		value_bytes_text(min, (uint64_t)row->min);
		snprintf(out, bytes, "a size of at least %s", min);
		return;
	case TABLE_DURATION:
		describe_time(row, out, bytes);
		return;
	case TABLE_COUNT:
		if (row->min == row->max)
			snprintf(out, bytes, "%.0f, for this release has no other", row->min);
		else
			snprintf(out, bytes, "%s from %.0f to %.0f",
				 row->power_of_two ? "a power of two" : "a whole number", row->min,
				 row->max);
		return;
	case TABLE_NUMBER:
		describe_number(row, out, bytes);
		return;
	case TABLE_BOOL:
		snprintf(out, bytes, "yes or no");
		return;
	case TABLE_OCTAL:
		snprintf(out, bytes, "octal permissions");
		return;
	case TABLE_CHOICE:
		list_choices(row, out, bytes);
		return;
	case TABLE_OWN:
		snprintf(out, bytes, "%s", row->choose);
		return;
	case TABLE_TYPE_NR:
		break;
	}
	CHECK(!"a type without a case");
}

/* Follows the choices in an error text. */
static const char *hint(const struct table_row *row)
{
	if (row->type == TABLE_BYTES)
		return " with its unit (KiB, MiB, GiB, TiB), as in 64GiB";
	if (row->type == TABLE_PATH || row->type == TABLE_PATHS || row->type == TABLE_FOLDER)
		return " without control characters";
	if (row->type == TABLE_DURATION)
		return " with its unit (us, ms, s, min, h), as in 5s";
	return row->type == TABLE_OCTAL ? ", as in 0660" : "";
}

static bool same_section(const struct table_row *row, const char *section)
{
	return row->section && section ? strcmp(row->section, section) == 0
				       : row->section == section;
}

uint32_t table_find(const struct table *t, const char *section, const char *name)
{
	uint32_t i = 0;

	CHECK(t->nr > 0 && name);
	while (i < t->nr &&
	       !(same_section(&t->rows[i], section) && strcmp(t->rows[i].name, name) == 0))
		i++;
	return i;
}

struct names {
	const struct table *table;
	const char *section;
};

static const char *name_of(const void *arg, uint32_t i)
{
	const struct names *n = arg;

	for (uint32_t k = 0; k < n->table->nr; k++)
		if (same_section(&n->table->rows[k], n->section) && i-- == 0)
			return n->table->rows[k].name;
	return NULL;
}

const char *table_nearest(const struct table *t, const char *section, const char *name)
{
	CHECK(t->nr > 0);
	return nearest_word(name, name_of, &(struct names){.table = t, .section = section});
}

static bool is_word(const struct table_row *row, const char *text)
{
	return row->word && strcmp(text, row->word) == 0;
}

void table_choices(const struct table_row *row, char *out, size_t bytes)
{
	size_t used = 0;

	CHECK(bytes >= TABLE_TEXT_BYTES);
	if (row->word)
		used = (size_t)snprintf(out, bytes, "%s or ", row->word);
	describe(row, out + used, bytes - used);
	CHECK(strlen(out) + 1 < bytes);
}

enum shard_status table_parse(const struct table_row *row, const char *text, struct table_value *v,
			      struct err *e)
{
	char choices[TABLE_TEXT_BYTES];

	CHECK(row && text && v);
	*v = (struct table_value){.whole = 0};
	if (is_word(row, text))
		v->whole = row->word_value;
	else if (!parse(row, text, v)) {
		table_choices(row, choices, sizeof(choices));
		return err_set(e, SHARD_BAD_ARG, "choose %s%s", choices, hint(row));
	}
	if (row->type != TABLE_NUMBER)
		v->number = (double)v->whole;
	return SHARD_OK;
}

void table_store(const struct table_row *row, void *object, const char *text,
		 const struct table_value *v)
{
	void *to = (char *)object + row->offset;

	CHECK(object && row->bytes > 0);
	if (row->type == TABLE_ADDRESS) {
		struct conn_address none = {.text = ""};

		CHECK(row->bytes == sizeof(none) && strlen(text) < sizeof(none.text));
		memcpy(none.text, text, strlen(text) + 1);
		if (is_word(row, text))
			memcpy(to, &none, sizeof(none));
		else
			CHECK(conn_address_parse(to, text, NULL) == SHARD_OK);
	} else if (is_text(row)) {
		CHECK(strlen(text) < row->bytes);
		strcpy(to, is_word(row, text) ? "" : text);
	} else if (row->type == TABLE_NUMBER || row->as_double) {
		CHECK(row->bytes == sizeof(double));
		*(double *)to = v->number;
	} else if (row->bytes == sizeof(bool)) {
		CHECK(v->whole <= 1);
		*(bool *)to = v->whole == 1;
	} else if (row->bytes == sizeof(uint32_t)) {
		*(uint32_t *)to = (uint32_t)v->whole;
	} else {
		CHECK(row->bytes == sizeof(uint64_t));
		*(uint64_t *)to = v->whole;
	}
}

enum shard_status table_set(const struct table_row *row, void *object, const char *text,
			    struct err *e)
{
	struct table_value v;
	enum shard_status st = table_parse(row, text, &v, e);

	if (st == SHARD_OK)
		table_store(row, object, text, &v);
	return st;
}

static struct table_value load(const struct table_row *row, const void *from)
{
	struct table_value v = {.whole = 0};

	if (row->type == TABLE_NUMBER || row->as_double) {
		v.number = *(const double *)from;
		v.whole = v.number >= 0x1p64 ? UINT64_MAX : v.number > 0 ? (uint64_t)v.number : 0;
	} else if (row->bytes == sizeof(bool)) {
		v.whole = *(const bool *)from;
	} else if (row->bytes == sizeof(uint32_t)) {
		v.whole = *(const uint32_t *)from;
	} else {
		v.whole = *(const uint64_t *)from;
	}
	return v;
}

void table_get(const struct table_row *row, const void *object, char *out, size_t bytes)
{
	const void *from = (const char *)object + row->offset;
	struct table_value v;

	CHECK(object && row->bytes > 0);
	if (is_text(row)) {
		const char *text = row->type == TABLE_ADDRESS
					   ? ((const struct conn_address *)from)->text
					   : from;

		snprintf(out, bytes, "%s", text[0] == 0 && row->word ? row->word : text);
		return;
	}
	v = load(row, from);
	if (row->word && v.whole == row->word_value)
		snprintf(out, bytes, "%s", row->word);
	else
		print(row, &v, out, bytes);
}

void table_copy(const struct table_row *row, void *to, const void *from)
{
	CHECK(row->bytes > 0 && to != from);
	memcpy((char *)to + row->offset, (const char *)from + row->offset, row->bytes);
}

void table_help_line(FILE *out, const char *key, const char *text)
{
	enum { INDENT = 27, WIDTH = 78 };
	int column = fprintf(out, "  %-*s", INDENT - 2, key);

	CHECK(key && text);
	while (*text) {
		int word = (int)strcspn(text, " ");

		if (column > INDENT && column + 1 + word > WIDTH)
			column = fprintf(out, "\n%*s", INDENT, "") - 1;
		column += fprintf(out, "%s%.*s", column > INDENT ? " " : "", word, text);
		text += word + (text[word] == ' ');
	}
	fprintf(out, "\n");
}

void table_meaning(const struct table_row *row, char *out, size_t bytes)
{
	static const char *const scopes[] = {[TABLE_MODEL] = "",
					     [TABLE_BOTH] = " A group may have its own.",
					     [TABLE_GROUP] = " It is a key of groups only."};
	int n = snprintf(out, bytes, "%s%s%s%s", row->help, scopes[row->scope],
			 row->reloadable ? " SIGHUP changes it." : "",
			 row->shared    ? " It must be equal on all nodes."
			 : row->offered ? " A node that joins has it from the node that it asks."
					: "");

	CHECK(n > 0 && (size_t)n < bytes);
}

void table_help(const struct table *t, FILE *out)
{
	const char *section = NULL;

	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];
		const char *fallback = row->otherwise ? row->otherwise : row->fallback;
		char text[3 * TABLE_TEXT_BYTES], choices[TABLE_TEXT_BYTES];
		size_t used;

		if (row->section && (!section || strcmp(section, row->section) != 0))
			fprintf(out, "[%s]\n", section = row->section);
		table_choices(row, choices, sizeof(choices));
		table_meaning(row, text, TABLE_TEXT_BYTES);
		used = strlen(text);
		if (row->type == TABLE_CHOICE)
			used += (size_t)snprintf(text + used, sizeof(text) - used, " Choose %s.",
						 choices);
		if (fallback)
			snprintf(text + used, sizeof(text) - used, " Default: %s.", fallback);
		table_help_line(out, row->name, text);
	}
}

void table_check(const struct table *t)
{
	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];
		struct table_value v;

		CHECK(value_name(row->name) && table_find(t, row->section, row->name) == i);
		CHECK(row->help && strlen(row->help) > 0 &&
		      row->help[strlen(row->help) - 1] == '.');
		CHECK(!strchr(row->help, '|') && row->min <= row->max);
		CHECK((row->type == TABLE_OWN) == (row->choose != NULL));
		CHECK((row->type == TABLE_CHOICE) == (row->words != NULL || row->choice != NULL));
		CHECK(!(row->reloadable || row->shared) || (row->section && row->bytes > 0));
		CHECK(!row->fallback || table_parse(row, row->fallback, &v, NULL) == SHARD_OK);
	}
}
