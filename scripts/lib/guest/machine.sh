# The guest: its initial memory disk, QEMU, and the line on which commands go in. Sourced by
# scripts/guest.
#
# Inputs: ROOT, KERNEL, VMLINUX, QEMU (see root.sh), WORK (a folder of this run).
#
# The guest runs an agent (guest.d/init) on its second serial port: it reads a shell script up to a
# line "@@RUN n", runs it, and answers with the output and "@@END n STATUS". So all decisions are
# taken here, on the host's side.

# Modules that the guest may load.
GUEST_MODULES=(mlx5_core 8021q bridge vfio vfio_iommu_type1 vfio-pci)
# Programs of the root folder that the guest has beside busybox.
GUEST_PROGRAMS=(usr/bin/dash usr/bin/ip usr/sbin/bridge usr/sbin/ethtool usr/bin/lspci)

copy_program() { # program -> it and its libraries in the disk
  local program=$1 library
  [ -e "$ROOT/$program" ] || program=${program/usr\/bin/usr\/sbin}
  cp -L "$ROOT/$program" "$DISK/bin/"
  "$ROOT/lib64/ld-linux-x86-64.so.2" --library-path "$ROOT/$LIBRARIES" --list "$ROOT/$program" 2>/dev/null |
    sed -n 's/^.* => \([^ ]*\) .*/\1/p' | while read -r library; do
    [ -e "$DISK/lib/${library##*/}" ] || cp -L "$library" "$DISK/lib/"
  done
}

# Extra files come as FROM:TO arguments.
make_disk() {
  local program module pair
  DISK=$WORK/disk
  mkdir -p "$DISK"/{bin,lib,lib64,proc,sys,dev,tmp,etc,run,usr/share/misc}
  ln -s bin "$DISK/sbin"
  ln -s ../bin "$DISK/usr/bin"
  ln -s ../bin "$DISK/usr/sbin"
  ln -s ../lib "$DISK/usr/lib"
  cp -L "$ROOT/lib64/ld-linux-x86-64.so.2" "$DISK/lib64/"
  cp "$ROOT/bin/busybox" "$DISK/bin/busybox"
  for program in "${GUEST_PROGRAMS[@]}"; do copy_program "$program"; done
  module_files "${GUEST_MODULES[@]}" | while read -r module; do
    local to=$DISK/lib/modules/${module#*/lib/modules/}
    mkdir -p "${to%/*}"
    case $module in
      *.xz) xz -dc "$module" >"${to%.xz}" ;;
      *.zst) from_root usr/bin/zstd -dcq "$module" >"${to%.zst}" ;;
      *) cp "$module" "$to" ;;
    esac
  done
  cp "$ROOT/lib/modules/$KERNEL"/modules.{order,builtin,builtin.modinfo} "$DISK/lib/modules/$KERNEL/"
  depmod_in "$DISK" "$KERNEL"
  cp scripts/lib/guest/init "$DISK/init"
  chmod 755 "$DISK/init"
  for pair; do
    mkdir -p "$DISK/$(dirname "${pair#*:}")"
    cp -L "${pair%%:*}" "$DISK/${pair#*:}"
  done
  (cd "$DISK" && find . -print0 | "$ROOT/bin/busybox" cpio -0 -o -H newc 2>/dev/null | gzip -1) >"$WORK/disk.gz"
  rm -rf "$DISK"
}

# Starts the guest; arguments are added to QEMU's. MEMORY_MB may be set, IOMMU too.
start_guest() {
  local memory=${MEMORY_MB:-768} half kernel_line
  half=$((memory / 2))
  mkfifo "$WORK/agent.in" "$WORK/agent.out"
  exec {TO_GUEST}<>"$WORK/agent.in" {FROM_GUEST}<>"$WORK/agent.out"
  kernel_line="console=ttyS0 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check apparmor=0 audit=0 loglevel=4 net.ifnames=0 ${GUEST_KERNEL_LINE:-}"
  bound nice -n 5 "${QEMU[@]}" -accel tcg,thread=multi -machine q35 -nodefaults -no-user-config -display none -no-reboot \
    -chardev "file,id=console,path=$WORK/console" -serial chardev:console \
    -chardev "pipe,id=agent,path=$WORK/agent" -serial chardev:agent \
    -kernel "$VMLINUX" -initrd "$WORK/disk.gz" -append "$kernel_line" \
    -cpu qemu64,+x2apic,+rdtscp,+ssse3,+sse4.1,+sse4.2,+popcnt -smp 2,sockets=2 -m "$memory" \
    -object "memory-backend-memfd,id=m0,size=${half}M,share=on" -object "memory-backend-memfd,id=m1,size=${half}M,share=on" \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
    "$@" </dev/null >"$WORK/qemu.log" 2>&1 &
  QEMU_PID=$!
  PIDS+=("$QEMU_PID")
  # However it ends, the shell has nothing to say about it.
  disown "$QEMU_PID"
  GUEST_TURN=0
  wait_for_line '@@READY' "${BOOT_PATIENCE:-120}" || return 1
}

# Reads the agent's lines up to one that begins with $1, for at most $2 seconds; what came before it
# is in GUEST_OUT, the rest of that line in GUEST_TAIL.
wait_for_line() {
  local line part="" lines=() deadline=$((SECONDS + $2))
  GUEST_TAIL=
  while :; do
    if IFS= read -r -t 2 -u "$FROM_GUEST" line; then
      line=$part$line
      part=
      case $line in
        "$1"*)
          GUEST_TAIL=${line#"$1"}
          GUEST_OUT=$(printf '%s\n' "${lines[@]+"${lines[@]}"}")
          return 0
          ;;
      esac
      lines+=("$line")
      continue
    fi
    # What had come of a line when the time was up.
    part+=$line
    if ! kill -0 "$QEMU_PID" 2>/dev/null; then
      GUEST_OUT="QEMU has ended: $(tail -n 3 "$WORK/qemu.log")"
      return 1
    elif [ $SECONDS -ge $deadline ]; then
      GUEST_OUT=$(printf '%s\n' "${lines[@]+"${lines[@]}"}" "no answer within $2 s")
      return 1
    fi
  done
}

# Runs a shell script in the guest; its output is in GUEST_OUT, its status is the function's.
# GUEST_PATIENCE: seconds to wait.
guest() {
  GUEST_TURN=$((GUEST_TURN + 1))
  printf '%s\n@@RUN %s\n' "$1" "$GUEST_TURN" >&"$TO_GUEST"
  wait_for_line "@@END $GUEST_TURN " "${GUEST_PATIENCE:-60}" || { GUEST_LOST=1; return 124; }
  {
    printf -- '--- %s\n%s\n--- status %s\n' "$1" "$GUEST_OUT" "$GUEST_TAIL"
  } >>"$WORK/transcript"
  return "$GUEST_TAIL"
}

stop_guest() {
  [ -n "${QEMU_PID:-}" ] || return 0
  if [ -z "${GUEST_LOST:-}" ] && kill -0 "$QEMU_PID" 2>/dev/null; then
    printf 'poweroff -f\n@@RUN 0\n' >&"$TO_GUEST"
    local deadline=$((SECONDS + 10))
    while kill -0 "$QEMU_PID" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
  fi
  kill "$QEMU_PID" 2>/dev/null || true
  wait "$QEMU_PID" 2>/dev/null || true
  QEMU_PID=
}

# A root port of its own and the function behind it: behind the root complex itself the kernel
# complains of an unknown link.
adapter() { # number, socket
  printf '%s\n' -device "pcie-root-port,id=rp$1,bus=pcie.0,chassis=$(($1 + 1)),slot=$(($1 + 1))" \
    -device "{\"driver\":\"vfio-user-pci\",\"id\":\"hca$1\",\"bus\":\"rp$1\",\"socket\":{\"path\":\"$2\",\"type\":\"unix\"}}"
}
