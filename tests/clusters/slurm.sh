#!/usr/bin/env bash
# Installs Slurm for the tests of --launcher=slurm (as root, on Debian); starts nothing.
set -euo pipefail
apt-get update
apt-get install --yes --no-install-recommends slurm-wlm munge
