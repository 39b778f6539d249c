/* SPDX-License-Identifier: Apache-2.0 */
/* Colours of status, top and doctor. A command asks palette_wanted() once and takes one of the
 * palettes, whose strings it prints around words. Colours only repeat what the words say, so that
 * nothing is lost without them. It fails for a --color that is none of its words. */
#include "ctl/palette.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct palette palette_plain = {"", "", "", "", "", "", ""};
const struct palette palette_colour = {"\033[32m", "\033[33m", "\033[31m", "\033[2m",
				       "\033[1m",  "\033[0m",  ""};
/* The bytes are those of term.c. */
const struct palette palette_marks = {"\1", "\2", "\3", "\4", "\5", "\6", "\7"};

bool palette_wanted(const char *when, FILE *out, bool *wanted)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	if (when == NULL || strcmp(when, "auto") == 0) {
		*wanted = isatty(fileno(out)) && (no == NULL || no[0] == 0) && term != NULL &&
			  strcmp(term, "dumb") != 0;
		return true;
	}
	*wanted = strcmp(when, "always") == 0;
	return *wanted || strcmp(when, "never") == 0;
}

const char *palette_of(const struct palette *p, const char *word)
{
	static const struct {
		const char *word;
		char tone;
	} rows[] = {{"ok", 'g'},       {"up", 'g'},        {"training", 'g'}, {"ready", 'g'},
		    {"down", 'b'},     {"ill", 'b'},       {"lost", 'b'},     {"diverged", 'b'},
		    {"fail", 'b'},     {"error", 'b'},     {"warn", 'w'},     {"paused", 'w'},
		    {"waiting", 'w'},  {"defining", 'w'},  {"unsealed", 'w'}, {"recovering", 'w'},
		    {"resuming", 'w'}, {"restoring", 'w'}, {"joining", 'w'},  {"gone", 's'},
		    {"private", 's'}};

	for (size_t i = 0; i < NR(rows); i++)
		if (strcmp(rows[i].word, word) == 0)
			return rows[i].tone == 'g'   ? p->good
			       : rows[i].tone == 'b' ? p->bad
			       : rows[i].tone == 'w' ? p->warn
						     : p->soft;
	return "";
}

const char *palette_of_model(const struct palette *p, const char *state, bool late)
{
	return late && strcmp(state, "training") == 0 ? p->warn : palette_of(p, state);
}
