# What must be on the machine before anything is built: found, installed where that is allowed, or
# named with the remedy. Sourced by the scripts beside this folder; sets CARGO_FEATURES.
#
# Inputs: MAY_INSTALL (1 or 0), MAY_SUDO (1 or 0).

RUST_WANTED=1.85

say() { printf '%s\n' "$*"; }
stop() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

# Runs a command as root, or fails when that is not possible.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif [ "$MAY_SUDO" = 1 ] && command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    return 126
  fi
}

can_be_root() {
  [ "$(id -u)" = 0 ] || { [ "$MAY_SUDO" = 1 ] && command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; } ||
    { [ "$MAY_SUDO" = 1 ] && [ -t 0 ] && command -v sudo >/dev/null 2>&1; }
}

debian_like() { [ -r /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; }

apt_updated=0
apt_install() {
  if [ "$apt_updated" = 0 ]; then
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null 2>&1 ||
      say "  (the package lists could not be refreshed; going on with the old ones)"
    apt_updated=1
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

has_package() { command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1" 2>/dev/null; }

# Names of the Debian packages that the build needs and that are missing.
missing_packages() {
  command -v cc >/dev/null 2>&1 || printf 'gcc libc6-dev '
  command -v pkg-config >/dev/null 2>&1 || printf 'pkg-config '
  has_package hwloc || printf 'libhwloc-dev '
  has_package libudev || printf 'libudev-dev '
}

CARGO_FEATURES=()

need_packages() {
  local missing
  missing=$(missing_packages)
  if [ -z "$missing" ]; then
    say "  system packages: all there"
    return
  fi
  # shellcheck disable=SC2086 # a list of words
  if [ "$MAY_INSTALL" = 1 ] && debian_like && can_be_root; then
    say "  system packages: installing $missing"
    apt_install $missing || stop "apt-get could not install: $missing; run 'apt-get install $missing' by hand and look at what it says"
    return
  fi
  command -v cc >/dev/null 2>&1 ||
    stop "no C compiler and linker (cc); install one (Debian: gcc libc6-dev; Fedora: gcc; Arch: gcc), then run this again"
  if [ "$MAY_INSTALL" = 0 ] || debian_like; then
    say "  system packages: missing and not installed here: $missing"
    say "  building without hwloc: NUMA topology comes from sysfs instead (root can mend it: apt-get install $missing)"
    CARGO_FEATURES=(--no-default-features)
    return
  fi
  stop "missing: hwloc >= 2.8 and libudev with their headers, pkg-config (Fedora: hwloc-devel systemd-devel pkgconf; Arch: hwloc systemd-libs pkgconf); install them, or give --no-install to build without hwloc"
}

rust_version() { rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9]*\.[0-9]*\).*/\1/p'; }

at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

rust_is_new_enough() {
  local there
  there=$(rust_version)
  [ -n "$there" ] && command -v cargo >/dev/null 2>&1 && at_least "$there" "$RUST_WANTED"
}

need_rust() {
  local there offered
  [ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
  if rust_is_new_enough; then
    say "  Rust: $(rust_version) (at least $RUST_WANTED is needed)"
    return
  fi
  there=$(rust_version)
  say "  Rust: ${there:-none} found, at least $RUST_WANTED is needed"
  if [ "$MAY_INSTALL" = 1 ]; then
    if debian_like; then
      offered=$(apt-cache policy rustc 2>/dev/null | sed -n 's/^ *Candidate: *\([0-9]*\.[0-9]*\).*/\1/p')
      if [ -n "$offered" ] && at_least "$offered" "$RUST_WANTED" && can_be_root; then
        say "  Rust: installing the distribution's own, $offered (rustc, cargo)"
        apt_install rustc cargo && hash -r && rust_is_new_enough && return
      fi
    fi
    if command -v rustup >/dev/null 2>&1; then
      say "  Rust: installing the stable toolchain with rustup"
      rustup toolchain install stable --profile minimal >/dev/null 2>&1 && rustup default stable >/dev/null 2>&1 && hash -r
      rust_is_new_enough && return
    fi
    if command -v curl >/dev/null 2>&1; then
      say "  Rust: fetching rustup from its project's own site"
      curl --proto '=https' --tlsv1.2 -sSf --max-time 60 https://sh.rustup.rs 2>/dev/null |
        sh -s -- -y -q --profile minimal >/dev/null 2>&1
      PATH="$HOME/.cargo/bin:$PATH"
      hash -r
      rust_is_new_enough && return
    fi
  fi
  stop "no Rust >= $RUST_WANTED and none could be installed; get it with rustup (https://rustup.rs) or, on Debian 13 and later, 'apt-get install rustc cargo', then run this again"
}
