// SPDX-License-Identifier: Apache-2.0
/* dumpcmp.c: `dumpcmp A B` compares two folders of dumped tensors byte by byte. Status 0: equal; 1:
 * not; 2: wrong use. */
#include "lib/compare.h"
#include <inttypes.h>

int main(int argc, char **argv)
{
	struct compare c;

	if (argc != 3) {
		fprintf(stderr, "usage: dumpcmp FOLDER FOLDER\n");
		return 2;
	}
	if (!compare_folders(argv[1], argv[2], &c, stdout)) {
		printf("dumpcmp: %s and %s differ\n", argv[1], argv[2]);
		return 1;
	}
	printf("dumpcmp: %" PRIu64 " tensors, %" PRIu64 " bytes, equal\n", c.files, c.bytes);
	return 0;
}
