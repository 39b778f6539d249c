/* SPDX-License-Identifier: Apache-2.0 */
/* The screen of `shardctl top` between its text and the terminal. top.c gives it keys and a text of
 * any length. screen_text() folds sentences to the width, takes the lines that fit, and says how
 * many are left. A terminal that is too small for a table gets a sentence. Nothing here fails but
 * for want of memory. */
#include "ctl/screen.h"

#include "ctl/term.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char keys_text[] =
	"\5Keys of shardctl top\6\n"
	"\n"
	"  up, down, j, k        a line up or down\n"
	"  space, b, PgDn, PgUp  a page\n"
	"  g, G, Home, End       the beginning, the end\n"
	"  s, S                  sort ranks by the next, or the one before:\n"
	"                        wait, rank, node, rate, chunks\n"
	"  r                     the other way round\n"
	"  /                     only lines with a text; Enter takes it, Esc does not\n"
	"  ?                     this, and away with it\n"
	"  q, ^C                 the end\n";

void screen_init(struct screen *s, const struct figures_view *view)
{
	*s = (struct screen){.view = *view};
	snprintf(s->filter, sizeof(s->filter), "%s", view->filter);
}

static enum screen_act typing(struct screen *s, int key)
{
	size_t n = strlen(s->typed);

	if (key == '\r' || key == '\n') {
		memcpy(s->filter, s->typed, sizeof(s->filter));
		s->typing = false;
	} else if (key == 27) {
		s->typing = false;
	} else if ((key == 0x7f || key == '\b') && n > 0) {
		s->typed[n - 1] = 0;
	} else if (key < 0x80 && isprint(key) && n < sizeof(s->typed) - 1) {
		s->typed[n] = (char)key;
		s->typed[n + 1] = 0;
	}
	memcpy(s->view.filter, s->typing ? s->typed : s->filter, sizeof(s->view.filter));
	s->from = 0;
	return SCREEN_DRAW;
}

static void down(struct screen *s, unsigned lines)
{
	s->from += lines < s->below ? lines : s->below;
}

static void up(struct screen *s, unsigned lines)
{
	s->from -= lines < s->from ? lines : s->from;
}

static bool moves(struct screen *s, int key)
{
	unsigned page = s->page > 1 ? s->page - 1 : 1;

	if (key == TERM_DOWN || key == 'j')
		down(s, 1);
	else if (key == TERM_UP || key == 'k')
		up(s, 1);
	else if (key == TERM_PAGE_DOWN || key == ' ')
		down(s, page);
	else if (key == TERM_PAGE_UP || key == 'b')
		up(s, page);
	else if (key == TERM_HOME || key == 'g')
		up(s, s->from);
	else if (key == TERM_END || key == 'G')
		down(s, s->below);
	else
		return false;
	return true;
}

enum screen_act screen_key(struct screen *s, int key)
{
	if (key == 3) /* ^C, where the terminal gives no signal. */
		return SCREEN_QUIT;
	if (s->typing)
		return typing(s, key);
	if (key == '?' || s->help) {
		s->help = !s->help;
		s->from = 0;
	} else if (key == 'q' || key == 'Q' || key == 27) {
		return SCREEN_QUIT;
	} else if (key == 's') {
		s->view.sort = (s->view.sort + 1) % FIGURES_SORTS;
	} else if (key == 'S') {
		s->view.sort = (s->view.sort + FIGURES_SORTS - 1) % FIGURES_SORTS;
	} else if (key == 'r') {
		s->view.reverse = !s->view.reverse;
	} else if (key == '/') {
		s->typing = true;
		memcpy(s->typed, s->filter, sizeof(s->typed));
	} else if (!moves(s, key)) {
		return SCREEN_NOTHING;
	}
	return SCREEN_DRAW;
}

/* How much of a sentence of n bytes goes into one line. Marks have no width. */
static size_t fold(const char *text, size_t n, unsigned columns)
{
	size_t blank = 0, width = 0, i;

	for (i = 0; i < n && width < columns; i++) {
		width += (unsigned char)text[i] > TERM_MARK_LAST;
		if (text[i] == ' ')
			blank = i;
	}
	return i == n || blank == 0 ? i : blank;
}

/* Every line in a line of its own, sentences in as many as they need. Returns how many. */
static unsigned lay_out(FILE *f, const char *body, unsigned columns)
{
	unsigned lines = 0;

	while (*body) {
		size_t n = strcspn(body, "\n"), at = 0, part;
		bool sentence = n > 0 && *body == TERM_MARK_LAST;

		do {
			part = sentence ? fold(body + at, n - at, columns - (at > 0 ? 2 : 0)) : n;
			fprintf(f, "%s%.*s\n", at > 0 ? "  " : "", (int)part, body + at);
			lines++;
			at += part;
			at += sentence && at < n && body[at] == ' ';
		} while (sentence && at < n);
		body += n + (body[n] == '\n');
	}
	return lines;
}

static const char *line_at(const char *text, unsigned nr)
{
	for (; nr > 0 && *text; nr--) {
		text += strcspn(text, "\n");
		text += *text == '\n';
	}
	return text;
}

static void put_last(struct screen *s, FILE *f)
{
	if (s->typing)
		fprintf(f, "/%s_", s->typed);
	else if (s->below > 0)
		fprintf(f, "\5%u more line%s below\6, ?: keys", s->below, s->below == 1 ? "" : "s");
	else if (s->from > 0)
		fprintf(f, "the end, %u line%s above; ?: keys", s->from, s->from == 1 ? "" : "s");
	else
		fprintf(f, "sorted by %s%s%s%s; ?: keys, q: quit", figures_sort_name(s->view.sort),
			s->view.reverse ? ", reversed" : "",
			s->view.filter[0] != 0 ? "; only with " : "", s->view.filter);
}

char *screen_text(struct screen *s, const char *title, const char *body, unsigned columns,
		  unsigned lines)
{
	char *all = NULL, *out = NULL;
	size_t all_bytes = 0, out_bytes = 0;
	const char *first, *last;
	unsigned nr;
	FILE *f = open_memstream(&out, &out_bytes), *laid = open_memstream(&all, &all_bytes);

	if (f == NULL || laid == NULL) {
		if (f != NULL)
			fclose(f);
		if (laid != NULL)
			fclose(laid);
		free(out);
		free(all);
		return NULL;
	}
	if (columns < SCREEN_COLUMNS_MIN || lines < SCREEN_LINES_MIN) {
		fprintf(f, "too small: %ux%u, %dx%d needed\nq: quit", columns, lines,
			SCREEN_COLUMNS_MIN, SCREEN_LINES_MIN);
		fclose(f);
		fclose(laid);
		free(all);
		return out;
	}
	nr = lay_out(laid, s->help ? keys_text : body, columns);
	fclose(laid);
	s->page = lines - 2;
	if (s->from + s->page > nr) /* What there is has become less. */
		s->from = nr > s->page ? nr - s->page : 0;
	s->below = nr > s->from + s->page ? nr - s->from - s->page : 0;
	first = line_at(all, s->from);
	last = line_at(first, s->page);
	fprintf(f, "%s\n%.*s", title, (int)(last - first), first);
	for (nr = nr - s->from; nr < s->page; nr++)
		fputc('\n', f);
	put_last(s, f);
	fclose(f);
	free(all);
	return out;
}
