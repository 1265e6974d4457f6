#!/bin/sh
# Run README's quickstart in a fresh Debian 12, as a new user would, and print the time of each step. Needs root and debootstrap.
# Usage: scripts/first_user.sh FOLDER    (FOLDER: for the fresh system, about 2 GB; a second run installs nothing again)
set -eu
checkout=$(cd "$(dirname "$0")/.." && pwd)
root=$1

if [ ! -d "$root/usr" ]; then
    # the mirror and the settings of this machine, since a machine may reach no other
    mirror=$(apt-get indextargets --format '$(SITE)' | head -n 1)
    debootstrap --variant=minbase --include=git,make,python3,ca-certificates bookworm "$root" "$mirror" >/dev/null
fi
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt /etc/apt/sources.list; do
    if [ -e "$file" ]; then cp "$file" "$root$file"; fi
done
for folder in /etc/apt/sources.list.d /etc/apt/apt.conf.d; do
    if [ -d "$folder" ]; then cp -r "$folder" "$root/etc/apt/"; fi
done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
trap 'umount -l "$root/dev" "$root/proc"' EXIT

rm -rf "$root/root/forebay" "$root/root/quickstart"
git clone -q "$checkout" "$root/root/forebay"
python3 - "$checkout/README.md" >"$root/root/quickstart.sh" <<'PYTHON'
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
section = text.partition("## Quickstart")[2].partition("\n## ")[0]
print("cd ~/forebay")
print('timed() { begun=$(date +%s); "$@" || { echo "exit code $?: $*"; exit 1; }; echo "--- $(($(date +%s) - begun)) s: $*"; }')
for language, code in re.findall(r"^ *```(sh|python)\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE):
    if language == "python":
        lines = [line[2:] for line in code.splitlines()]
        print("cat >records.py <<'END'\n" + "\n".join(lines) + "\nEND\ntimed python records.py")
        continue
    for line in code.splitlines():
        command = line.partition("#")[0].strip()
        print(command if command.startswith((".", "cd ", "mkdir ")) else f"timed {command}")
PYTHON
chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 TERM=dumb \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt bash /root/quickstart.sh
