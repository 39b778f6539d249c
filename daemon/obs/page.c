/* SPDX-License-Identifier: Apache-2.0 */
/* page.html as it lies beside this file, put into the program by the assembler; http.c sends it.
 * The build runs in the top folder, which is where the assembler looks from; a file that is missing
 * fails the build. */
#include "obs/page.h"

__asm__(".section .rodata\n"
	".globl page_html\n.hidden page_html\n"
	"page_html:\n"
	".incbin \"daemon/obs/page.html\"\n"
	".globl page_html_end\n.hidden page_html_end\n"
	"page_html_end:\n"
	".byte 0\n"
	".previous\n");
