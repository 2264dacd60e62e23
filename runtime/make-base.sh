#!/usr/bin/env bash
# Makes the base image debian:trixie-slim from Debian's packages, for where no image can be pulled: as root, on a Debian or
# Ubuntu, two minutes. The host's own certificate authorities go in, so that TLS works behind a proxy that re-signs it.
#
#   make-base.sh [NAME]  NAME is the image's; - writes it to the standard output, for docker import
#   MIRROR=…             where the packages are; by default where apt of this host has Debian's from
set -euo pipefail

NAME=${1:-debian:trixie-slim}
SUITE=trixie

say() { printf '%s\n' "$*" >&2; }

[ "$(id -u)" = 0 ] || { say "make-base.sh has to be root, to install packages into a directory"; exit 1; }
if ! command -v debootstrap >/dev/null; then
  say "installing debootstrap"
  apt-get install -y -qq --no-install-recommends debootstrap >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }
fi
# The index targets of apt know it whatever form its sources are written in.
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Created-By: Packages' 2>/dev/null | sed -n 1p)}
[ -n "$MIRROR" ] || { say "apt of this host does not know where Debian's packages are: give MIRROR="; exit 1; }

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

say "unpacking Debian $SUITE"
debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" "$MIRROR" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; exit 1; }

# What the slim images leave out, now and with every package that is installed later.
cat >"$root/etc/dpkg/dpkg.cfg.d/docker" <<'CONF'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/linda/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
CONF
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l ! -name copyright -delete
find "$root/usr/share/doc" -depth -type d -empty -delete
for folder in groff info linda lintian locale man; do
  rm -rf "$root/usr/share/$folder"
done
mkdir -p "$root/usr/share/man/man1" # packages with alternatives want it

cat >"$root/usr/sbin/policy-rc.d" <<'CONF'
#!/bin/sh
exit 101
CONF
chmod 0755 "$root/usr/sbin/policy-rc.d"
printf '%s\n' 'Acquire::Languages "none";' 'APT::Install-Recommends "false";' >"$root/etc/apt/apt.conf.d/docker"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/docker-speed"

rm -f "$root/etc/apt/sources.list"
cat >"$root/etc/apt/sources.list.d/debian.sources" <<CONF
Types: deb
URIs: $MIRROR
Suites: $SUITE $SUITE-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
CONF
# Where the mirror has the security archive too, it lies beside it.
if /usr/lib/apt/apt-helper download-file "$MIRROR-security/dists/$SUITE-security/InRelease" "$work/InRelease" &>/dev/null; then
  sed "s|^URIs:.*|URIs: $MIRROR-security|; s|^Suites:.*|Suites: $SUITE-security|; 1i\\\n" \
    "$root/etc/apt/sources.list.d/debian.sources" >"$work/security"
  cat "$work/security" >>"$root/etc/apt/sources.list.d/debian.sources"
fi

# Renamed: what the host calls them is its own business.
number=0
for certificate in /usr/local/share/ca-certificates/*.crt /etc/pki/ca-trust/source/anchors/*; do
  [ -f "$certificate" ] || continue
  number=$((number + 1))
  install -m 0644 "$certificate" "$root/usr/local/share/ca-certificates/host-$number.crt"
done
chroot "$root" update-ca-certificates >/dev/null 2>&1

rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/var/cache/ldconfig/*
rm -f "$root"/etc/machine-id "$root"/etc/resolv.conf "$root"/etc/hostname
: >"$root/etc/machine-id"
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} + # nobody in a sandbox becomes somebody else

if [ "$NAME" = - ]; then
  tar --numeric-owner -C "$root" -c .
  exit
fi
say "importing it as $NAME"
tar --numeric-owner -C "$root" -c . | docker import --change 'CMD ["bash"]' - "$NAME" >/dev/null
