#compdef shardctl
# SPDX-License-Identifier: Apache-2.0
# zsh completion for shardctl; installed as share/zsh/vendor-completions/_shardctl. It asks shardctl itself
# which commands and options there are.
local -a plain own
local word
for word in ${words[2,CURRENT-1]}; do
	[[ $word == -* ]] || plain+=($word)
done
if [[ ${words[CURRENT]} == -* ]]; then
	own=(${plain[1]})
	[[ ${plain[1]} == (model|secret|config) ]] && own=(${plain[1,2]})
	compadd -- ${(fu)"$(shardctl $own --help 2>/dev/null | grep -oE '^ +(-[a-zA-Z?], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+')"}
elif (( ! $#plain )); then
	compadd -- ${(fu)"$(shardctl --help 2>/dev/null | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p')"}
elif [[ $#plain -eq 1 && ${plain[1]} == (model|secret|config) ]]; then
	compadd -- ${(fu)"$(shardctl --help 2>/dev/null | sed -n "s/^  ${plain[1]} \([a-z]*\).*/\1/p")"}
elif [[ "$plain" == (save|history|verify|kick|rebalance|model (show|drop|set|pause|resume|kick)) ]]; then
	compadd -- ${(fu)"$(shardctl model list --json --timeout 1 2>/dev/null | grep -o '"name":"[^"]*"' | cut -d'"' -f4)"}
else
	_files
fi
