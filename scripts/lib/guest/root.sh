# Where QEMU, the guest's kernel and its programs come from. Sourced by scripts/guest.
#
# Inputs: ROOT (folder of the extracted packages), MAY_INSTALL (1 or 0).
# need_root sets: QEMU (command as a list), KERNEL (version), VMLINUX (uncompressed kernel).
#
# The packages are Debian unstable's, extracted and never installed: no maintainer script runs, no
# chroot is needed, and nobody has to be root. Programs run through the folder's own loader.

# The first QEMU with the device vfio-user-pci.
QEMU_WANTED=10.1
SUITE=sid
MIRROR=${POLLUX_GUEST_MIRROR:-http://deb.debian.org/debian}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
LIBRARIES=usr/lib/x86_64-linux-gnu
# A change here makes a new folder necessary.
ROOT_FORMAT=2
GUEST_PACKAGES=(linux-image-amd64 kmod busybox-static bash dash pciutils iproute2 ethtool util-linux zstd)

# Runs a program of the root folder by its own loader and libraries.
from_root() {
  local program=$1
  shift
  "$ROOT/lib64/ld-linux-x86-64.so.2" --argv0 "${program##*/}" --library-path "$ROOT/$LIBRARIES" "$ROOT/$program" "$@"
}

qemu_version() { "$@" --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9]*\.[0-9]*\).*/\1/p'; }

# QEMU on the PATH, when it is new enough and has the device.
system_qemu() {
  local there
  command -v qemu-system-x86_64 >/dev/null 2>&1 || return 1
  there=$(qemu_version qemu-system-x86_64)
  [ -n "$there" ] && at_least "$there" "$QEMU_WANTED" || return 1
  qemu-system-x86_64 -device help 2>/dev/null | grep -q '"vfio-user-pci"'
}

root_is_complete() {
  [ -f "$ROOT/.pollux-guest" ] && [ "$(sed -n 's/^format //p' "$ROOT/.pollux-guest")" = $ROOT_FORMAT ] &&
    { system_qemu || [ -x "$ROOT/usr/bin/qemu-system-x86_64" ]; }
}

# Says why the pieces cannot be had, loudly, and ends with the status that means so.
not_run() {
  printf '\n=====================================================================\n' >&2
  printf 'NOT RUN: %s\n' "$*" >&2
  printf '=====================================================================\n' >&2
  exit 3
}

# The kernel inside a bzImage, uncompressed: QEMU starts that in a third of the time.
uncompress_kernel() {
  local image=$1 out=$2 sectors offset length
  sectors=$(od -An -tu1 -j 497 -N1 "$image")
  offset=$(($(od -An -tu4 -j 584 -N4 "$image") + (sectors + 1) * 512))
  length=$(od -An -tu4 -j 588 -N4 "$image")
  # The payload's last word is its uncompressed size.
  head -c $((offset + length - 4)) "$image" | tail -c +$((offset + 1)) | from_root usr/bin/zstd -dcq >"$out.new" || return 1
  mv "$out.new" "$out"
}

build_root() {
  local apt=$ROOT.apt packages=("${GUEST_PACKAGES[@]}") package kernel image started=$SECONDS
  command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 ||
    not_run "no QEMU >= $QEMU_WANTED with kernel in $ROOT, and no apt-get and dpkg-deb to fetch them; run this on a Debian-like machine, or copy such a folder and name it with --root"
  [ -r $KEYRING ] || not_run "the keys of Debian's archive are missing ($KEYRING); install debian-archive-keyring"
  [ "$MAY_INSTALL" = 1 ] || not_run "$ROOT is not there or incomplete, and --no-install was given"
  system_qemu || packages+=(qemu-system-x86)
  say "building $ROOT from Debian $SUITE (about 300 MB to fetch)"
  rm -rf "$apt" "$ROOT.new"
  mkdir -p "$apt"/{lists/partial,cache/archives/partial,etc} "$ROOT.new" || not_run "cannot write to ${ROOT%/*}"
  : >"$apt/status"
  echo "deb [signed-by=$KEYRING] $MIRROR $SUITE main" >"$apt/sources.list"
  local options=(-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferencesparts=/dev/null -o Dir::Etc::preferences=/dev/null
    -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
    -o Dir::Cache::archives=archives -o APT::Architecture=amd64 -o APT::Architectures::=amd64
    -o APT::Install-Recommends=false -o Debug::NoLocking=1 -o APT::Sandbox::User=
    -o Acquire::Languages=none -o APT::Get::List-Cleanup=0)
  apt-get "${options[@]}" update -qq >"$apt/log" 2>&1 ||
    { tail -n 5 "$apt/log" >&2; not_run "the package lists of $MIRROR $SUITE cannot be read"; }
  apt-get "${options[@]}" install -y -qq --download-only "${packages[@]}" >>"$apt/log" 2>&1 ||
    { tail -n 5 "$apt/log" >&2; not_run "the packages cannot be fetched: ${packages[*]}"; }
  # As the installed system has it: one tree under usr.
  local name
  mkdir -p "$ROOT.new"/usr/{bin,sbin,lib,lib64}
  for name in bin sbin lib lib64; do ln -s "usr/$name" "$ROOT.new/$name"; done
  for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -C "$ROOT.new" --keep-directory-symlink -xf - \
      --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' ||
      not_run "$package cannot be extracted"
    dpkg-deb --show --showformat '${Package} ${Version}\n' "$package"
  done >"$ROOT.new/versions"
  rm -rf "$ROOT"
  mv "$ROOT.new" "$ROOT"
  kernel=$(kernel_version)
  [ -n "$kernel" ] || not_run "the packages brought no kernel with the module mlx5_core"
  from_root usr/bin/kmod --version >/dev/null || not_run "the programs in $ROOT do not run on this machine"
  depmod_in "$ROOT" "$kernel" || not_run "depmod fails in $ROOT"
  # Where the package has it depends on its age.
  image=$ROOT/lib/modules/$kernel/vmlinuz
  [ -f "$image" ] || image=$ROOT/boot/vmlinuz-$kernel
  [ -f "$image" ] || not_run "the packages brought modules of $kernel, and no kernel"
  uncompress_kernel "$image" "$ROOT/vmlinux" || not_run "no uncompressed kernel could be made of $image"
  printf 'format %s\nkernel %s\nbuilt %s\n' $ROOT_FORMAT "$kernel" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$ROOT/.pollux-guest"
  rm -rf "$apt"
  say "built in $((SECONDS - started)) s, $(du -sh "$ROOT" | cut -f1); versions in $ROOT/versions"
}

# kmod goes by the name it is called under.
depmod_in() {
  "$ROOT/lib64/ld-linux-x86-64.so.2" --argv0 depmod --library-path "$ROOT/$LIBRARIES" "$ROOT/usr/bin/kmod" -b "$1" "$2"
}

module_files() { # names of modules -> paths of them and of what they need, in order of loading
  local module
  for module; do
    "$ROOT/lib64/ld-linux-x86-64.so.2" --argv0 modprobe --library-path "$ROOT/$LIBRARIES" "$ROOT/usr/bin/kmod" \
      -d "$ROOT" -S "$KERNEL" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  done | awk '!seen[$0]++'
}

# The newest kernel of the root folder that has the driver.
kernel_version() {
  local folder
  for folder in "$ROOT"/lib/modules/*; do
    compgen -G "$folder/kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko*" >/dev/null && printf '%s\n' "${folder##*/}"
  done | sort -V | tail -n 1
}

need_root() {
  [ "$(uname -sm)" = "Linux x86_64" ] || not_run "the guest needs Linux on x86-64, this is $(uname -sm)"
  root_is_complete || build_root
  KERNEL=$(kernel_version)
  VMLINUX=$ROOT/vmlinux
  if system_qemu; then
    QEMU=(qemu-system-x86_64)
  else
    QEMU=("$ROOT/lib64/ld-linux-x86-64.so.2" --library-path "$ROOT/$LIBRARIES" "$ROOT/usr/bin/qemu-system-x86_64"
      -L "$ROOT/usr/share/qemu" -L "$ROOT/usr/share/seabios")
    export QEMU_MODULE_DIR=$ROOT/$LIBRARIES/qemu
  fi
}
