# SPDX-License-Identifier: Apache-2.0
# fish completion for shardctl; installed as share/fish/vendor_completions.d/shardctl.fish. It asks shardctl
# itself which commands and options there are.
function __shardctl_words
    set -l words (commandline -opc)
    set -e words[1]
    string match -v -- '-*' $words
end
function __shardctl_commands
    shardctl --help 2>/dev/null | string match -rg '^  ([a-z]+) ' | sort -u
end
function __shardctl_subs
    shardctl --help 2>/dev/null | string match -rg "^  $argv[1] ([a-z]+)\b"
end
function __shardctl_options
    set -l words (__shardctl_words)
    contains -- "$words[1]" model secret config; or set words $words[1]
    shardctl $words[1..2] --help 2>/dev/null | string match -rg '^ +(?:-[a-zA-Z?], )?(--[a-z0-9-]+)' | sort -u
end
function __shardctl_models
    shardctl model list --json --timeout 1 2>/dev/null | string match -arg '"name":"([^"]*)"'
end
complete -c shardctl -n 'test (count (__shardctl_words)) = 0' -f -a '(__shardctl_commands)'
for group in model secret config
    complete -c shardctl -n "test \"\$(__shardctl_words)\" = $group" -f -a "(__shardctl_subs $group)"
end
for command in save history verify kick rebalance 'model show' 'model drop' 'model set' 'model pause' 'model resume' 'model kick'
    complete -c shardctl -n "test \"\$(__shardctl_words)\" = '$command'" -f -a '(__shardctl_models)'
end
complete -c shardctl -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__shardctl_options)'
