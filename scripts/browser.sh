#!/usr/bin/env bash
# Installs what the tests of the job's page and of its metrics need, from Debian (needs root).
set -euo pipefail
apt-get update -qq
apt-get install --yes --no-install-recommends chromium prometheus fonts-liberation
