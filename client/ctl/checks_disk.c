/* SPDX-License-Identifier: Apache-2.0 */
/* What `shardctl doctor` looks at of the folder for the state of models with tier = nvme. doctor.c
 * calls it through its row in checks.c. A folder that is not there, or whose file system has no
 * O_DIRECT, is a failure. A file system over the network, one that may run out of room although the
 * file's bytes are reserved, and a kernel without io_uring are warnings. Without the option it says
 * nothing. */
#include "ctl/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

static const struct {
	long magic;
	const char *name;
	bool network, copies; /* copies: it writes to other blocks than those reserved. */
} systems[] = {
	{0xef53, "ext4", false, false},      {0x58465342, "xfs", false, false},
	{0x9123683e, "btrfs", false, true},  {0x2fc12fc1, "zfs", false, true},
	{0x6969, "nfs", true, false},        {0x65735546, "fuse", true, false},
	{0x0bd00bd0, "lustre", true, false}, {0x01021994, "tmpfs", false, false},
};

/* Can files with O_DIRECT be made there? EINVAL: no. A file without a name leaves nothing, and
 * other errors say nothing, because not all file systems have such. */
static int try_direct(const char *dir)
{
	int fd = open(dir, O_RDWR | O_TMPFILE | O_DIRECT | O_CLOEXEC, 0600);

	if (fd < 0)
		return errno;
	(void)close(fd);
	return 0;
}

void doctor_nvme(const struct doctor *d, struct finding *f)
{
	const char *dir = doctor_value(d, "daemon", "nvme_dir"), *name = "its file system";
	char bytes[CTL_NUMBER_BYTES], off[32] = "0";
	bool network = false, copies = false;
	struct statfs s;
	int error;

	if (dir[0] == 0)
		return;
	if (statfs(dir, &s) != 0) {
		doctor_found(f, DOCTOR_FAIL, "nvme_dir = %.200s: %s", dir, strerror(errno));
		doctor_remedy(f, "make it, for the user that shardd runs as, on a local disk");
		return;
	}
	for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++)
		if (systems[i].magic == (long)s.f_type) {
			name = systems[i].name;
			network = systems[i].network;
			copies = systems[i].copies;
		}
	ctl_bytes(bytes, (double)s.f_bavail * (double)s.f_bsize);
	error = try_direct(dir);
	/* Older kernels have no such switch. */
	if (!doctor_line(d, "/proc/sys/kernel/io_uring_disabled", off, sizeof(off)))
		strcpy(off, "0");
	if (error == EINVAL) {
		doctor_found(f, DOCTOR_FAIL, "nvme_dir = %.200s: no O_DIRECT on %s: %s", dir, name,
			     strerror(error));
		doctor_remedy(f, "set nvme_dir to a folder on ext4 or xfs, on a local disk");
	} else if (network) {
		doctor_found(f, DOCTOR_WARN, "nvme_dir = %.200s is on %s, over a network", dir,
			     name);
		doctor_remedy(f, "set nvme_dir to a folder on a disk of this node");
	} else if (copies) {
		doctor_found(f, DOCTOR_WARN,
			     "nvme_dir = %.200s is on %s, which may run out of room although the "
			     "bytes of a file are reserved",
			     dir, name);
		doctor_remedy(f, "set nvme_dir to a folder on ext4 or xfs%s",
			      strcmp(name, "btrfs") == 0 ? ", or `chattr +C` the folder" : "");
	} else if (strcmp(off, "0") != 0) {
		doctor_found(f, DOCTOR_WARN,
			     "kernel.io_uring_disabled = %.10s: threads read and write %.200s", off,
			     dir);
		doctor_remedy(f, "sysctl -w kernel.io_uring_disabled=0");
	} else {
		doctor_found(f, DOCTOR_OK, "nvme_dir = %.200s: %s, %s are free%s", dir, name, bytes,
			     error == EACCES ? "; this user may not write there" : "");
	}
}
