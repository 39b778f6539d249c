/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --help for each subcommand: what it does, what a job that runs feels of it, and an
 * example. main.c puts it around the list of options that argp makes, and deploy/man.py into
 * shardctl(1). The examples name a model `gpt` and checkpoints in /srv/checkpoints. Each row of the
 * table in main.c has a page here, which tests/proc/ctl.sh checks. */
#include "ctl/help.h"

#include "base/check.h"

#include <string.h>

#define LOOKS "A job that runs does not notice it."

static const struct ctl_page pages[] = {
	{"status",
	 "Says first what is wrong in the cluster, and exits with 1 if something is ill. Then it "
	 "shows the nodes and who coordinates, and for each model its state, step, chunks, copies "
	 "that are missing, newest checkpoint, what set it back, world, and who is waited for "
	 "where that is news. With --all the daemon asks every other node first. " LOOKS,
	 "  shardctl status\n"
	 "  shardctl status --all\n"
	 "  shardctl --address unix:/run/shardd/shardd.sock status --json"},
	{"members",
	 "Shows each node of the cluster with its capacity, vote, release and identity, and how "
	 "many chunks of each model it holds, is out of the view or fetches. " LOOKS,
	 "  shardctl members"},
	{"events",
	 "Prints the last events that the daemon logged, the oldest first: worlds, losses, saves, "
	 "restores, links, refusals. shardd(8) says what each means. " LOOKS,
	 "  shardctl events\n"
	 "  shardctl events --json"},
	{"top",
	 "Shows the same as status in place, and for each rank the chunks that it has pushed, its "
	 "wait and its bytes per second. What is worst comes first: nodes that are down, models "
	 "that "
	 "do not train, ranks that others wait for. Keys scroll, sort and filter, and ? names "
	 "them; "
	 "q ends it. Without a terminal only --once works. " LOOKS,
	 "  shardctl top --all\n"
	 "  shardctl top --interval 2 --sort rate --filter b\n"
	 "  shardctl top --once"},
	{"plan",
	 "Computes the bytes per device and per node of a training job: data parallel, ZeRO 1 to "
	 "3, offload by DeepSpeed's estimates, and with shardd. It asks no daemon.",
	 "  shardctl plan --params 7.5B --ranks 8 --nodes 2"},
	{"bench",
	 "Defines a made-up model at the daemon, trains it, prints the time of a step beside the "
	 "limits of this machine, and drops the model. The daemon may be one in production use: "
	 "the model takes memory of its budget, and its steps take processors and bandwidth from "
	 "jobs that run.",
	 "  shardctl bench --params 64Mi --ranks 2"},
	{"doctor",
	 "Looks at this machine as shardd is configured here: versions, limits, huge pages, clock, "
	 "network, folders, ports, the other nodes and their options, RDMA and the service. Where "
	 "a daemon answers, its own limits are looked at, and not those of the shell. Each line is "
	 "ok, warn or fail, with the remedy. Nothing is changed, and " LOOKS,
	 "  sudo shardctl doctor\n"
	 "  shardctl doctor --config /etc/shardd/shardd.conf --json"},
	{"model",
	 "Lists and shows models, tunes and pauses them, puts a trainer out, and drops a model. "
	 "`shardctl model SUBCOMMAND --help` says more of each.",
	 "  shardctl model list\n"
	 "  shardctl model show gpt"},
	{"model list",
	 "Prints one line for each model: owner, mode, step, generation, number of trainers, state "
	 "and the bytes on this node. " LOOKS,
	 "  shardctl model list"},
	{"model show",
	 "NAME is the model's name, as model list prints it. Prints its state, the values that "
	 "were tuned, its groups, where its chunks lie, its memory and all of its settings. " LOOKS,
	 "  shardctl model show gpt --tensors"},
	{"model drop",
	 "NAME is a model. Its weights and moments are given up on every node, for ever. "
	 "Checkpoints stay. It is refused while trainers are joined or a node is away, unless it "
	 "is forced. With --force trainers that are joined are put out and hear who did it, and a "
	 "save that is under way is cut off.",
	 "  shardctl save gpt --dir /srv/checkpoints\n"
	 "  shardctl model drop gpt"},
	{"model set",
	 "KEY is lr (without a schedule), clip, or beta1, beta2, eps, weight_decay or momentum as "
	 "far as the optimizer has it, or GROUP/KEY of one group. VALUE is a number, and `default` "
	 "takes back what was set. Training goes on: the step in hand is decided with the old "
	 "value, and the new one holds from the next step on, on all nodes, and in checkpoints.",
	 "  shardctl model set gpt lr 1e-4\n"
	 "  shardctl model set gpt clip default"},
	{"model pause",
	 "NAME is a model. The step in hand is decided, and no other one begins. Trainers stay "
	 "joined and wait in shard_begin() until the model is resumed or their timeout is over.",
	 "  shardctl model pause gpt"},
	{"model resume",
	 "NAME is a model that is paused, by an operator or because it diverged. Its trainers go "
	 "on with the step that comes next, and steps that were skipped are counted anew.",
	 "  shardctl model set gpt lr 1e-4\n"
	 "  shardctl model resume gpt"},
	{"model kick",
	 "Puts one trainer out of the world of model NAME. It is named by its rank, or by its node "
	 "and process as in b:4411. The attempt in hand ends. The others go on without it and make "
	 "that step again, or wait if fewer than min_world are left. Who was put out hears why, "
	 "and may join again.",
	 "  shardctl model kick gpt 3 --why \"its GPU is throttled\"\n"
	 "  shardctl model kick gpt b:4411"},
	{"kick", "The same as `shardctl model kick`, whose help says what the world hears.",
	 "  shardctl kick gpt b:4411"},
	{"checkpoints",
	 "Lists the checkpoints in folder DIR with step, model and bytes. --verify reads each byte "
	 "and compares it with its sum. It asks no daemon. It may read while a checkpoint is "
	 "written, which is then not listed yet.",
	 "  shardctl checkpoints /srv/checkpoints --verify"},
	{"export",
	 "Writes the weights of a checkpoint in folder DIR into folder OUT, as the libraries of "
	 "Hugging Face read them. It asks no daemon, so models that train do not matter.",
	 "  shardctl export /srv/checkpoints /srv/checkpoints/hf --dtype bf16"},
	{"import",
	 "Makes a checkpoint in folder DIR of the weights in SRC: a safetensors file, an index, or "
	 "a folder with one of them. Moments begin at zero. It asks no daemon, but shardd has to "
	 "be "
	 "installed here to check the settings. A checkpoint of that tag is replaced only if you "
	 "agree, or with --force. `shardctl restore` then makes a model of it. Of the settings, "
	 "checkpoint_dir, checkpoint_every, keep_latest and restore_at_start give way to what "
	 "shardd.conf says.",
	 "  shardctl import hf/model.safetensors /srv/checkpoints --name gpt \\\n"
	 "      --settings \"optimizer=adamw lr=3e-4\"\n"
	 "  shardctl restore /srv/checkpoints"},
	{"save",
	 "Writes a checkpoint of model NAME and waits for it. The model goes on training, and the "
	 "checkpoint is of one step. A save that fails changes nothing.",
	 "  shardctl save gpt --dir /srv/checkpoints --tag before-the-change"},
	{"history",
	 "Prints what a node has written down of model NAME: each step that was decided, with its "
	 "world, rates and norm, and views, saves and restores. " LOOKS,
	 "  shardctl history gpt --from 1200 --to 1300\n"
	 "  shardctl history gpt --node all --json >history"},
	{"replay",
	 "Computes the steps after a checkpoint again, from a history and the gradients that were "
	 "kept, and compares the result with later checkpoints, bit by bit. It asks no daemon.",
	 "  shardctl replay --history history --from ckpt/global_step1200 \\\n"
	 "      --gradients grads ckpt/global_step1210"},
	{"verify",
	 "Compares all copies of each chunk of the models, as of one step. Every node hashes what "
	 "it holds. Steps are held meanwhile, about as long as it takes to read that memory once, "
	 "and then training goes on by itself.",
	 "  shardctl verify gpt"},
	{"drain",
	 "NODE is a name of [nodes]. All chunks move away from it while models train, so that it "
	 "can be stopped without anybody waiting for it. A node that is down is drained, too, if "
	 "no chunk is lost with it. Root and the daemon's user may. --undo gives it its share "
	 "again.",
	 "  sudo shardctl drain c\n"
	 "  sudo shardctl drain c --undo"},
	{"rebalance",
	 "Moves chunks of MODEL, or of all models, so that each node has its share by capacity. "
	 "Models train meanwhile, and copies use some of the network. Root and the daemon's user "
	 "may.",
	 "  sudo shardctl rebalance --dry-run\n"
	 "  sudo shardctl rebalance gpt"},
	{"restore",
	 "Brings a model back from a checkpoint in folder DIR. Where the model is not there, it is "
	 "made. Where it has weights, --force is needed: they are given up, and its trainers hear "
	 "SHARD_ROLLED_BACK and go on from the step of the checkpoint. What they trained since is "
	 "lost.",
	 "  shardctl restore /srv/checkpoints\n"
	 "  shardctl restore /srv/checkpoints --tag global_step500 --force"},
	{"secret",
	 "Makes the keys of [cluster] secret and node_secret, and changes them without a pause.",
	 "  sudo shardctl secret new /etc/shardd/node_secret"},
	{"secret new",
	 "Writes a new key into FILE, with mode 0600, or prints it. FILE must not be there yet, "
	 "unless --force replaces it. A daemon that runs notices nothing before it reads the file "
	 "again: nodes that have different keys then cannot link. To change a key that is in use, "
	 "see `shardctl secret rotate`.",
	 "  sudo shardctl secret new /etc/shardd/node_secret"},
	{"secret rotate",
	 "Changes the key in FILE without a pause. A file may hold two keys: the first one proves, "
	 "and both are accepted. Without an option a new key is added behind the old one. --swap "
	 "puts the new one first, and --drop takes the second one out. After each step give the "
	 "file to all nodes and let them read it again: by SIGHUP, or in a service by `systemctl "
	 "restart shardd`, which keeps the models. Links and trainers that are connected stay. The "
	 "file is replaced whole, with mode 0600 and the owner that it had.",
	 "  sudo shardctl secret rotate /etc/shardd/node_secret\n"
	 "  sudo shardctl secret rotate /etc/shardd/node_secret --swap\n"
	 "  sudo shardctl secret rotate /etc/shardd/node_secret --drop"},
	{"config",
	 "Reads a configuration as the daemon would, without starting anything. shardd has to be "
	 "installed here.",
	 "  shardctl config check /etc/shardd/shardd.conf\n"
	 "  shardctl config explain"},
	{"config check",
	 "Says `FILE: ok`, or names every line that is wrong, with what may be written there, and "
	 "ends with status 4. Nothing is started, and a daemon that runs is not asked.",
	 "  shardctl config check /etc/shardd/shardd.conf && systemctl reload shardd"},
	{"config explain",
	 "Prints every option with its value and with who set it: the default, a line of a file, "
	 "the environment or the command line. FILE may also be given by --config. A daemon that "
	 "runs is not asked.",
	 "  shardctl config explain\n"
	 "  shardctl config explain --config a.conf --set net.transport=tcp"},
	{"help",
	 "Prints the help of a command, or of all. COMMAND may be two words, as in model show.",
	 "  shardctl help model show"},
};

const struct ctl_page *ctl_page(const char *name)
{
	for (size_t i = 0; i < NR(pages); i++)
		if (strcmp(pages[i].name, name) == 0)
			return &pages[i];
	return NULL;
}
