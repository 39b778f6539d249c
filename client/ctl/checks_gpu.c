/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at of the GPUs that the daemon shall take ([daemon] gpu). doctor.c
 * calls it through its row in checks.c. A daemon that runs says what it has, and a GPU that it has
 * lost is a failure. Without one the driver is looked for: its kernel module, and the device that a
 * service or a container may not be allowed to use. Without the option it says nothing. */
#include "ctl/doctor.h"

#include "ctl/json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "/proc/driver/nvidia/version"
#define DEVICE "/dev/nvidiactl"

/* What the daemon that answers has. */
static void look_running(const json_t *gpus, bool all, struct finding *f)
{
	size_t nr = json_array_size(gpus), i;
	char used[CTL_NUMBER_BYTES], limit[CTL_NUMBER_BYTES];
	double use = 0, most = 0;
	const char *why = "";
	bool direct = false;
	const json_t *o;

	json_array_foreach(gpus, i, o) {
		if (ctl_text(o, "lost")[0] != 0) {
			doctor_found(f, DOCTOR_FAIL, "%s", ctl_text(o, "lost"));
			doctor_remedy(f, "look at dmesg and nvidia-smi, then restart shardd");
			return;
		}
		if (ctl_text(o, "not_direct")[0] != 0)
			why = ctl_text(o, "not_direct");
		direct = direct || json_is_true(json_object_get(o, "direct"));
		use += (double)ctl_whole(o, "used");
		most += (double)ctl_whole(o, "limit");
	}
	if (nr == 0) {
		doctor_found(f, all ? DOCTOR_WARN : DOCTOR_FAIL, "the daemon has no GPU");
		doctor_remedy(f, "its log says why (event=no_gpu); the service needs "
				 "deploy/shardd.gpu.conf, and a restart after it");
		return;
	}
	doctor_found(f, DOCTOR_OK, "%zu, %s of %s in use for models%s%.200s", nr,
		     ctl_bytes(used, use), ctl_bytes(limit, most),
		     why[0]   ? "; other nodes do not write to them by RDMA: "
		     : direct ? "; other nodes write to them by RDMA"
			      : "",
		     why);
}

void doctor_gpu(const struct doctor *d, struct finding *f)
{
	const char *gpu = doctor_value(d, "daemon", "gpu");
	const json_t *gpus = json_object_get(d->status, "gpus");
	enum doctor_result lacks = strcmp(gpu, "auto") == 0 ? DOCTOR_WARN : DOCTOR_FAIL;
	char version[200], device[300];

	if (gpu[0] == 0 || strcmp(gpu, "off") == 0)
		return;
	if (ctl_text(d->status, "gpu_missing")[0] != 0) {
		doctor_found(f, DOCTOR_FAIL, "%s", ctl_text(d->status, "gpu_missing"));
		doctor_remedy(f, "see to it and restart shardd, or take it out of gpu =");
		return;
	}
	if (gpus != NULL) {
		look_running(gpus, lacks == DOCTOR_WARN, f);
		return;
	}
	snprintf(device, sizeof(device), "%.200s" DEVICE, d->root);
	if (!doctor_line(d, MODULE, version, sizeof(version))) {
		doctor_found(f, lacks, "gpu = %.100s, and no NVIDIA driver is loaded", gpu);
		doctor_remedy(f, "install the driver, or in a container give it the GPU");
	} else if (access(device, F_OK) != 0) {
		doctor_found(f, lacks, "gpu = %.100s, and there is no " DEVICE, gpu);
		doctor_remedy(f, "run nvidia-modprobe or nvidia-smi once as root, or enable "
				 "nvidia-persistenced");
	} else {
		doctor_found(f, DOCTOR_OK, "%.150s", version);
	}
}
