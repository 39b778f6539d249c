/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl replay` computes steps of a model again and compares the result with checkpoints, bit
 * by bit: from an older checkpoint, what nodes wrote down (`shardctl history --json`), and the
 * gradients, which the user kept. It asks no daemon. shardd has the kernels, so this process
 * becomes one. It ends with 1 where an element differs, or where something is missing, and says
 * what. */
#include "ctl/ctl.h"

enum { HISTORY, FROM, GRADIENTS };

const struct argp_option ctl_replay_options[] = {
	{"history", CTL_KEY + HISTORY, "FILE", 0,
	 "what `shardctl history NAME --node all --json` printed", 0},
	{"from", CTL_KEY + FROM, "CHECKPOINT", 0, "the checkpoint to begin with", 0},
	{"gradients", CTL_KEY + GRADIENTS, "DIR", 0,
	 "the folder with step12-rank0.safetensors and so on: what each rank pushed", 0},
	{0},
};

enum ctl_exit ctl_replay(const struct ctl_options *o)
{
	const char *args[6 + CTL_WORDS] = {"--replay"};
	int n = 1;

	for (int i = 0; i <= GRADIENTS; i++)
		if (o->value[i] == NULL)
			return ctl_fail(o, CTL_USAGE, "replay: --%s %s is missing",
					ctl_replay_options[i].name, ctl_replay_options[i].arg);
	if (o->json)
		args[n++] = "--json";
	args[n++] = o->value[HISTORY];
	args[n++] = o->value[FROM];
	args[n++] = o->value[GRADIENTS];
	for (int i = 0; i < o->words_nr; i++)
		args[n++] = o->words[i];
	return o->json ? ctl_shardd_json(o, args) : ctl_shardd(o, args);
}
