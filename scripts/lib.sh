# shellcheck shell=bash
# What the scripts beside this file share; sourced, never run.

say() { printf '%s %s: %s\n' "$(date +%T)" "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

# The version in Cargo.toml, which is also the image tag, the chart's version and its appVersion.
crate_version() { sed -n '/^\[package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

# Installs the Debian packages that are missing; elsewhere says which ones are needed.
need_debian() {
	local missing=() package
	for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package"); done
	((${#missing[@]})) || return 0
	if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		say "not installed, and this is no Debian root: ${missing[*]} (going on without)"
		return 0
	fi
	say "installing ${missing[*]}"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
