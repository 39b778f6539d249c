/* SPDX-License-Identifier: Apache-2.0 */
/* page.html as it lies beside this file. The assembler puts it into the program, and http.c sends
 * it. The assembler looks for the file from the top folder, because the build runs there. If the
 * file is missing, the build fails. */
#include "obs/page.h"

__asm__(".section .rodata\n"
	".globl page_html\n.hidden page_html\n"
	"page_html:\n"
	".incbin \"daemon/obs/page.html\"\n"
	".globl page_html_end\n.hidden page_html_end\n"
	"page_html_end:\n"
	".byte 0\n"
	".previous\n");
