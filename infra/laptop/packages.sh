#!/bin/sh
# Installs the system packages that are missing, when it may (root or passwordless sudo); else prints the one line that
# does it and ends with code 1. `packages.sh test` also asks for the browser that the tests click in, and for the
# libraries of FFmpeg, with which LeRobot decodes.
set -eu
PATH="$PATH:/usr/sbin:/sbin"

missing=""
need() { missing="$missing $1"; }
has_library() { ldconfig -p | grep -qF "$1"; }

command -v python3 >/dev/null || need python3
python3 -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
case "${MEGAHOUR_MUJOCO_GL:-egl}" in
  egl)
    has_library libEGL.so.1 || need libegl1
    # Mesa's drivers come with this one.
    has_library libGL.so.1 || need libgl1
    ;;
  osmesa) has_library libOSMesa.so || need libosmesa6 ;;
esac
if [ "${1:-}" = test ]; then
  command -v chromium >/dev/null || command -v google-chrome >/dev/null || need "chromium fonts-dejavu-core"
  command -v ffmpeg >/dev/null || need ffmpeg
fi

[ -n "$missing" ] || exit 0
if command -v apt-get >/dev/null; then
  if [ "$(id -u)" = 0 ]; then
    as_root=env
  elif sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
  fi
fi
if [ -z "${as_root:-}" ]; then
  echo "System packages are missing. Install them, then start this again:" >&2
  echo "sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi
echo "Installing system packages:$missing"
# The words of $as_root and $missing are separate arguments.
# shellcheck disable=SC2086
$as_root DEBIAN_FRONTEND=noninteractive apt-get update -q
# shellcheck disable=SC2086
$as_root DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing </dev/null
