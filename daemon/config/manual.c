/* SPDX-License-Identifier: Apache-2.0 */
/* Writes README.md of this folder from the rows of both tables. `make config-readme` calls it
 * through tests/unit/test_config_manual.c, which also compares the file with what is written here.
 * It is no part of shardd, which has --help for the same. Cannot fail; the caller looks at out. */
#include "config/config.h"

#include "base/check.h"
#include "config/keys.h"
#include "config/loader.h"
#include "optim/optim.h"

#include <string.h>

static void put_row(FILE *out, const struct table_row *row)
{
	const char *fallback = row->otherwise ? row->otherwise : row->fallback;
	const char *quote = row->otherwise || !fallback ? "" : "`";
	char choices[TABLE_TEXT_BYTES], meaning[TABLE_TEXT_BYTES];

	table_choices(row, choices, sizeof(choices));
	table_meaning(row, meaning, sizeof(meaning));
	CHECK(!strchr(choices, '|') && !strchr(meaning, '|'));
	fprintf(out, "| `%s` | %s | %s%s%s | %s |\n", row->name, choices, quote,
		fallback ? fallback : "none", quote, meaning);
}

static void put_table(FILE *out, const struct table *t, const char *section)
{
	fprintf(out, "\n| key | value | default | meaning |\n|---|---|---|---|\n");
	for (uint32_t i = 0; i < t->nr; i++)
		if (section ? strcmp(t->rows[i].section, section) == 0 : !t->rows[i].section)
			put_row(out, &t->rows[i]);
}

/* What "the optimizer's" default is of each. */
static void put_optimizers(FILE *out)
{
	fprintf(out,
		"\nThe optimizers' own defaults, which are those of torch for its optimizers:\n\n"
		"| key |");
	for (uint32_t o = 0; o < OPTIM_NR; o++)
		fprintf(out, " %s |", optim_row((enum optim_id)o)->name);
	fprintf(out, "\n|---|");
	for (uint32_t o = 0; o < OPTIM_NR; o++)
		fprintf(out, "---|");
	fprintf(out, "\n");
	for (uint32_t h = 0; h < HYPER_NR; h++) {
		const char *name = NULL;

		for (uint32_t o = 0; o < OPTIM_NR && name == NULL; o++)
			name = optim_row((enum optim_id)o)->hyper[h].name;
		fprintf(out, "| `%s` |", name);
		for (uint32_t o = 0; o < OPTIM_NR; o++) {
			const struct optim_range *r = &optim_row((enum optim_id)o)->hyper[h];

			if (r->name != NULL)
				fprintf(out, " %g |", r->fallback);
			else
				fprintf(out, " - |");
		}
		fprintf(out, "\n");
	}
}

void config_manual(FILE *out)
{
	static const char *const sections[] = {"daemon", "net", "cluster"};

	CHECK(out);
	fprintf(out,
		"<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
		"<!-- `make config-readme` writes this file. Edit options.c, keys.c and manual.c. "
		"-->\n"
		"# Configuration\n\n"
		"`shardd` reads `/etc/shardd/shardd.conf` and after it the files "
		"`/etc/shardd/conf.d/*.conf`, in\n"
		"the order of their names. With `--config` it reads that file, and with "
		"`--config-dir` the\n"
		"files of that folder after it. A line is `key = value` in a section, and a "
		"semicolon starts a\n"
		"comment. Each option of `[daemon]`, `[net]` and `[cluster]` can also be set in "
		"the environment,\n"
		"as `SHARD_KEY` for `[daemon]` and `SHARD_SECTION_KEY` for the others, and on the "
		"command line\n"
		"with `--set section.key=value`. The command line wins over the environment, the "
		"environment\n"
		"over the files, a later file over an earlier one, and a file over the defaults. "
		"A key that is\n"
		"twice in one file is an error.\n\n"
		"Sizes and times need their unit, as in `64GiB`, `30s` or `300us`. Whole numbers "
		"may end in\n"
		"`Ki`, `Mi` or `Gi`. Unknown keys, sections and values are errors that name the "
		"file and line\n"
		"and what may be chosen.\n\n"
		"- `shardctl config check FILE` reads a file as the daemon would, without starting "
		"anything, and\n"
		"  says `FILE: ok` or what is wrong in each line.\n"
		"- `shardctl config explain` prints every option with its value and who set it.\n"
		"- `systemctl reload shardd`, or SIGHUP, takes over the options that are marked "
		"below, and\n"
		"  `[model ...]` for models that are defined from then on. Others wait for the "
		"next start.\n");
	for (uint32_t i = 0; i < NR(sections); i++) {
		fprintf(out, "\n## [%s]\n", sections[i]);
		put_table(out, config_options(), sections[i]);
	}
	fprintf(out,
		"\n## [nodes]\n\n"
		"One line `NAME = HOST:PORT` for each node, the same on all nodes. With membership "
		"=\n"
		"static the first one coordinates. Without this section the node is alone.\n\n"
		"## [model]\n\n"
		"`[model]` has defaults for all models, `[model \"NAME\"]` settings of one model, "
		"and\n"
		"`[model \"NAME\" group \"GROUP\"]` those of one of its tensor groups. A trainer "
		"gives the same\n"
		"keys, as `key=value key=value`, when it defines a model. Its own settings win, "
		"but for keys\n"
		"that `pinned` names.\n");
	put_table(out, settings_table(), NULL);
	put_optimizers(out);
}
