/* SPDX-License-Identifier: Apache-2.0 */
/* checkup.h: a machine made of files, which `shardctl doctor` examines, and what it says. Without
 * fault until a test puts one in. */
#ifndef SHARD_TESTS_CHECKUP_H
#define SHARD_TESTS_CHECKUP_H

#include <jansson.h>
#include <sys/stat.h>

enum { CHECKUP_CHECKS = 22 };

#define CHECKUP_THP   "sys/kernel/mm/transparent_hugepage/"
#define CHECKUP_CLOCK "sys/devices/system/clocksource/clocksource0/current_clocksource"
#define CHECKUP_IB    "sys/class/infiniband/mlx5_0/"

int checkup_setup(void **state); /* of the group: the folder */
int checkup_teardown(void **state);
const char *checkup_dir(void);

void checkup_machine(void); /* without fault; again: mended */
void checkup_put(const char *name,
		 const char *text);  /* a file in the folder; its machine is below root/ */
void checkup_conf(const char *more); /* shardd.conf */
void checkup_service(const char *key,
		     const char *value); /* what systemd says, but for one property */
void checkup_uverbs_mode(mode_t mode);

json_t *checkup_run(int rc, const char *program, const char *more); /* examined; the test's */
void checkup_is(const json_t *o, const char *check, const char *result,
		const char *text); /* found or remedy has the text */

#endif
