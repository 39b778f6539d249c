# SPDX-License-Identifier: Apache-2.0
# bash completion for shardctl; installed as share/bash-completion/completions/shardctl. tests/proc/ctl.sh compares it with --help.
_shardctl_models()
{
	"${COMP_WORDS[0]}" model list --json --timeout 1 2>/dev/null | grep -o '"name": *"[^"]*"' | cut -d'"' -f4
}
_shardctl_nodes()
{
	"${COMP_WORDS[0]}" members --json --timeout 1 2>/dev/null | grep -o '"name": *"[^"]*", *"address"' | cut -d'"' -f4
}
_shardctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= sub= i
	local common="--address --secret --tls --json --timeout --help --usage --version" words=
	local commands="status members events top model kick drain rebalance save verify history replay restore checkpoints export import plan doctor bench config secret help"
	COMPREPLY=()
	# readline splits at = : the option is one or two words back
	[ "$prev" = = ] && prev=${COMP_WORDS[COMP_CWORD-2]}
	[ "$cur" = = ] && cur=
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-a | --address | --secret | --tls | --timeout | --config | --config-dir | --set | --interval | --sort | --filter | --color | --why | --tag | --dir | --client | --name | --model | --settings | --step | --image | --node | --from | --to | --history | --gradients | \
			--grad | --dtype | --max-shard-size) ((i++)) ;;
		-* | =) ;;
		*) if [ -z "$command" ]; then command=${COMP_WORDS[i]}; else sub+=${sub:+ }${COMP_WORDS[i]}; fi ;;
		esac
	done
	case $prev in
	--from) [ "$command" = replay ] && mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--tls) mapfile -t COMPREPLY < <(compgen -W "off psk" -- "$cur"; compgen -d -- "$cur"); return ;;
	--config | --secret | --history) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--dir | --client | --gradients | --config-dir) mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	--tag) # of the folder that was named
		[ -d "$sub" ] && words=$(cd "$sub" && printf '%s\n' */manifest.json | sed -n 's,/manifest.json$,,p' | grep -v '^\*$') ;;
	--dtype | --grad-dtype | --image | --grad) words="bf16 fp16 fp32" ;;
	--optimizer) words="adamw adam sgd adagrad lion" ;;
	--huge-pages | --gpu-direct) words="yes no" ;;
	--color) words="auto always never" ;;
	--sort) words="wait rank node rate chunks" ;;
	-a | --address)
		words="unix:${SHARD_SOCKET:-/run/shardd/shardd.sock} 127.0.0.1:29700 spawn:" ;;
	--timeout | --set | --interval | --filter | --why | --params | --fp32-params | --ranks | --nodes | --local | --chunk-elems | --replicas | --layer | --tensors | --max-staleness | --grad-codec | --image-codec | --nvme-share | --nvme-cache | --nvme-durable | --gpu-share | --steps | \
		--name | --model | --settings | --step | --max-shard-size | --to) return ;;
	--node) words="all $(_shardctl_nodes)" ;;
	*)
		case $command in
		"") words="$commands $common" ;;
		status) words="--all --color $common" ;;
		top) words="--once --all --interval --sort --reverse --filter --color $common" ;;
		plan) words="--params --fp32-params --ranks --nodes --local --dtype --grad-dtype --optimizer --chunk-elems --replicas --layer --tensors --max-staleness --grad-codec --image-codec --nvme-share --nvme-cache --nvme-durable --gpu-share --gpu-direct
			--huge-pages $common" ;;
		doctor) words="--config --color $common" ;;
		bench) words="--params --ranks --steps --optimizer --image --grad $common" ;;
		model)
			words=$common
			case $sub in
			show*) words="--tensors $words" ;;
			drop*) words="--force $words" ;;
			kick*) words="--why $words" ;;
			esac
			case $sub in
			"") words="list show drop set pause resume kick $words" ;;
			show | drop | set | pause | resume | kick)
				[[ $cur == -* ]] || words=$(_shardctl_models) ;;
			set\ *\ *) words="default $words" ;;
			set\ *) words="lr clip $words" ;;
			esac ;;
		kick)
			words="--why $common"
			[[ $cur == -* || -n $sub ]] || words=$(_shardctl_models) ;;
		drain)
			words="--undo --no-wait $common"
			[[ $cur == -* || -n $sub ]] || words=$(_shardctl_nodes) ;;
		rebalance)
			words="--dry-run --no-wait $common"
			[[ $cur == -* || -n $sub ]] || words=$(_shardctl_models) ;;
		save)
			words="--dir --tag --client --force $common"
			[[ $cur == -* || -n $sub ]] || words=$(_shardctl_models) ;;
		history)
			words="--node --from --to $common"
			[[ $cur == -* || -n $sub ]] || words=$(_shardctl_models) ;;
		replay)
			words="--history --from --gradients $common"
			if [[ $cur != -* ]]; then
				mapfile -t COMPREPLY < <(compgen -f -- "$cur")
				return
			fi ;;
		verify)
			words=$common
			[[ $cur == -* ]] || words=$(_shardctl_models) ;;
		restore | checkpoints | export | import)
			case $command in
			restore) words="--tag --name --force $common" ;;
			checkpoints) words="--model --verify $common" ;;
			export) words="--tag --dtype --max-shard-size --force $common" ;;
			import) words="--name --settings --image --grad --step --tag --allow-nonfinite --force $common" ;;
			esac
			if [[ $cur != -* ]]; then
				mapfile -t COMPREPLY < <(compgen -f -- "$cur")
				return
			fi ;;
		config)
			words=$common
			case $sub in
			check*) words="--config-dir --print $words" ;;
			explain*) words="--config --config-dir --set $words" ;;
			esac
			if [ -z "$sub" ]; then
				words="check explain $words"
			elif [[ $cur != -* ]]; then
				mapfile -t COMPREPLY < <(compgen -f -- "$cur")
				return
			fi ;;
		secret)
			words=$common
			case $sub in
			new*) words="--force $words" ;;
			rotate*) words="--swap --drop $words" ;;
			esac
			if [ -z "$sub" ]; then
				words="new rotate $words"
			elif [[ $cur != -* ]]; then
				mapfile -t COMPREPLY < <(compgen -f -- "$cur")
				return
			fi ;;
		help)
			case $sub in
			"") words="$commands $common" ;;
			model) words="list show drop set pause resume kick $common" ;;
			config) words="check explain $common" ;;
			secret) words="new rotate $common" ;;
			*) words=$common ;;
			esac ;;
		*) words=$common ;;
		esac ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
	# options are offered where nothing else is, or to who has begun one
	if [[ $cur != -* ]]; then
		words=
		for i in "${COMPREPLY[@]}"; do [[ $i == -* ]] || words+="$i"$'\n'; done
		[ -z "$words" ] || mapfile -t COMPREPLY <<<"${words%$'\n'}"
	fi
	# one that ends in a port or path has its colon cut off by readline
	declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$cur"
	return 0
}
complete -o filenames -F _shardctl shardctl
