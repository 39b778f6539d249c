/* SPDX-License-Identifier: Apache-2.0 */
/* checkup.h: a machine made of files, which `shardctl doctor` examines, and checks of what it
 * finds. The machine has no fault until a test adds one. */
#ifndef SHARD_TESTS_CHECKUP_H
#define SHARD_TESTS_CHECKUP_H

#include <jansson.h>
#include <sys/stat.h>

enum { CHECKUP_CHECKS = 24 };

#define CHECKUP_THP   "sys/kernel/mm/transparent_hugepage/"
#define CHECKUP_CLOCK "sys/devices/system/clocksource/clocksource0/current_clocksource"
#define CHECKUP_IB    "sys/class/infiniband/mlx5_0/"

int checkup_setup(void **state); /* Makes the folder of the group of tests. */
int checkup_teardown(void **state);
const char *checkup_dir(void);

/* Writes a machine without fault. A second call repairs it. */
void checkup_machine(void);
/* Writes a file in the folder. The machine is below root/. */
void checkup_put(const char *name, const char *text);
void checkup_conf(const char *more); /* Writes shardd.conf. */
/* Writes what systemd says of the service, with another value for one property. */
void checkup_service(const char *key, const char *value);
void checkup_uverbs_mode(mode_t mode);

/* Runs the doctor, expects the exit code rc, and returns its JSON, which the test frees. */
json_t *checkup_run(int rc, const char *program, const char *more);
/* The check must have this result, and its found or its remedy must contain the text. */
void checkup_is(const json_t *o, const char *check, const char *result, const char *text);

#endif
