/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h: the words that DeepSpeed, torch and their kin have for what is a setting here, and for
 * what is none. */
#ifndef SHARD_CONFIG_FOREIGN_H
#define SHARD_CONFIG_FOREIGN_H

#include "config/table.h"

/* What an error says after "unknown key: " to who writes such a word. NULL: nobody knows it. */
const char *foreign_key(const char *key);
/* CHECKs each row. For tests. */
void foreign_check(void);

#endif
