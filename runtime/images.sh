#!/usr/bin/env bash
# Carries images to where no registry is: all of ours into one file, and all of a file into the engine.
#
#   images.sh save FILE [TAG]   every image called …cellbox-…:TAG, by default :latest; FILE.gz is compressed
#   images.sh load FILE
set -euo pipefail

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
}

[ $# -ge 2 ] || usage
file=$2
case $1 in
  save)
    tag=${3:-latest}
    mapfile -t images < <(docker images --format '{{.Repository}}:{{.Tag}}' |
      grep -E "(^|/)cellbox-[a-z]+:${tag//./\\.}$")
    [ ${#images[@]} -gt 0 ] || { echo "the engine has no image called cellbox-…:$tag" >&2; exit 1; }
    printf 'saving %s\n' "${images[@]}" >&2
    trap 'rm -f "$file.part"' EXIT
    case $file in
      *.gz) docker save "${images[@]}" | gzip -1 >"$file.part" ;;
      *) docker save "${images[@]}" >"$file.part" ;;
    esac
    mv "$file.part" "$file"
    ;;
  load) docker load --input "$file" ;;
  *) usage ;;
esac
