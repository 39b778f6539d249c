#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tidy.sh [ratchet|format]: checks what a compiler does not see: which part may include which, sizes
# of files and functions, the head of each source, links between documents, the top level, and
# clang-format. Sizes beyond the limits are listed in .tidy-ratchet and may only shrink. `ratchet`
# writes that list again, and `format` formats. Prints one line for each thing that is wrong and
# "tidy: N sources, N wrong", and fails if anything is wrong.
set -u
cd "$(dirname "$0")/../.." || exit 1
header_max=160 source_max=800 function_max=80 line_max=100
wrong=0
mapfile -t sources < <(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' | while read -r f; do [ -f "$f" ] && echo "$f"; done)
clang_format=$(command -v clang-format || ls /usr/bin/clang-format-[0-9]* 2>/dev/null | sort -V | tail -1)

bad() { echo "tidy: $*"; wrong=$((wrong + 1)); }

# sizes FILE...: prints "file LINES" and "function LINES" of everything beyond its limit.
sizes()
{
	awk -v hmax=$header_max -v smax=$source_max -v fmax=$function_max '
	# optim/vector_*.h are sources that each instruction set compiles, not interfaces. The
	# public header is a manual.
	function file_end() { if (file !~ /^include\// && lines > (file ~ /\.h$/ && file !~ /optim\/vector_/ ? hmax : smax)) print file, lines }
	FNR == 1 { if (file) file_end(); file = FILENAME; name = ""; open = 0 }
	{ lines = FNR }
	/^[A-Za-z_].*\(/ && !/;[ \t]*(\/\*.*)?$/ && !/^#/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
	/^\{/ { open = FNR }
	/^\}/ { if (open && FNR - open - 1 > fmax) print file ":" name, FNR - open - 1; open = 0 }
	END { file_end() }' "$@"
}

case ${1:-check} in
ratchet)
	{ echo "# Beyond the limits of tests/lib/tidy.sh: these may only shrink. \`make tidy-ratchet\` writes this file."
	  sizes "${sources[@]}" | LC_ALL=C sort; } > .tidy-ratchet
	exit ;;
format)
	exec "$clang_format" -i "${sources[@]}" ;;
esac

while read -r what lines; do
	allowed=$(awk -v w="$what" '$1 == w { print $2 }' .tidy-ratchet 2>/dev/null)
	[ "$lines" -le "${allowed:-0}" ] || bad "$what has $lines lines${allowed:+, it had $allowed}: at most $header_max in a header, $source_max in a source, $function_max in a function"
done < <(sizes "${sources[@]}")

# Who may include what: "folder regex" must not appear in an #include of a file below the folder.
while read -r folder regex; do
	hits=$(printf '%s\n' "${sources[@]}" | grep "^$folder/" | xargs -r grep -nE "^ *# *include *[<\"]($regex)" /dev/null)
	[ -z "$hits" ] || while read -r hit; do bad "$hit: not allowed in $folder/"; done <<< "$hits"
done <<'RULES'
daemon (client|examples|ctl)/|(\.\./)*client/
client (\.\./)*daemon/|core/|config/|store/|cluster/|optim/|obs/|server\.h|worker\.h
proto (\.\./)*(daemon|client)/
include [^s]
proto/base uv\.h|ini\.h|jansson\.h|protobuf-c|wire/|net/
proto/wire uv\.h|net/|unistd\.h|fcntl\.h|sys/socket\.h|poll\.h
daemon/core uv\.h|infiniband|cuda|time\.h|unistd\.h|fcntl\.h|stdlib\.h|malloc\.h|net/|store/|cluster/|base/clock\.h|base/log\.h
daemon/optim uv\.h|net/|stdlib\.h|unistd\.h
RULES
hits=$(printf '%s\n' "${sources[@]}" | grep '^daemon/core/' | xargs -r grep -nE '\b(malloc|calloc|realloc|free|fopen|fprintf|printf|clock_gettime|clock_ns)\(' /dev/null)
[ -z "$hits" ] || while read -r hit; do bad "$hit: daemon/core decides, it does not act"; done <<< "$hits"

while read -r hit; do bad "$hit"; done < <(python3 tests/lib/layers.py 2>&1)

for f in "${sources[@]}"; do
	head -2 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || bad "$f: no SPDX line at the top"
	sed -n 2,3p "$f" | grep -qE '^(/\*|//)' || bad "$f: no opening paragraph: what it owns, who calls it, how it fails"
done
while read -r f; do
	[ ! -f "$f" ] || head -2 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || bad "$f: no SPDX line at the top"
done < <(git ls-files -co --exclude-standard Makefile '*.mk' '*.sh' '*.py' '*.proto' '*.conf' '*.yml' '*.html' 'proto/*.md')
# A line with a string may be longer, because an error text is not broken. UTF-8 counts as
# characters.
hits=$(LC_ALL=C awk -v max=$line_max '
	{ line = $0; n = 0; gsub(/[\200-\277]/, "", line)
	  while ((i = index(line, "\t")) > 0) { n = int((n + i - 1) / 8) * 8 + 8; line = substr(line, i + 1) }
	  if (n + length(line) > max && line !~ /"/) print FILENAME ":" FNR }' "${sources[@]}")
[ -z "$hits" ] || while read -r hit; do bad "$hit: longer than $line_max columns"; done <<< "$hits"

# Relative links of documents must name an existing file and heading. A heading's name is its text
# in small letters, without signs, with dashes for spaces.
mapfile -t documents < <(git ls-files -co --exclude-standard '*.md' | while read -r f; do [ -f "$f" ] && echo "$f"; done)
unfenced() { awk '/^```/ {on = !on; next} !on' "$1"; }
headings() { unfenced "$1" | sed -n 's/^##* //p' | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }
for f in "${documents[@]}"; do
	while read -r link; do
		to=${link%%#*} at=
		[[ $link != *#* ]] || at=${link#*#}
		[ -n "$to" ] && to=$(dirname "$f")/$to || to=$f
		if [ ! -e "$to" ]; then
			bad "$f: link to $link: no such file"
		elif [ -n "$at" ] && ! headings "$to" | grep -qxF -- "$at"; then
			bad "$f: link to $link: no such heading"
		fi
	done < <(unfenced "$f" | tr '\n' ' ' | grep -oE '\]\([^)]*\)' | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+:')
done

extra=$(git ls-files -co --exclude-standard | cut -d/ -f1 | sort -u | grep -vE '^(\..*|daemon|client|proto|include|tests|deploy|Makefile|README\.md)$' | grep -vE '^build$')
[ -z "$extra" ] || bad "not on the top level: $extra"

if [ -z "$clang_format" ]; then
	bad "clang-format is not installed: make deps"
elif ! "$clang_format" --version | grep -q 'version 14\.'; then
	echo "tidy: THE FORMAT IS NOT CHECKED: the sources are as clang-format 14 makes them, and here is $("$clang_format" --version)"
elif [ "${TIDY_FORMAT:-1}" = 1 ]; then
	while read -r f; do bad "$f: make format"; done < <(printf '%s\n' "${sources[@]}" | xargs -n 16 "$clang_format" --dry-run -Werror 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error: code should be.*/\1/p' | sort -u)
fi
echo "tidy: ${#sources[@]} sources, $wrong wrong"
[ "$wrong" = 0 ]
