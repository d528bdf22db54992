# The points of `scripts/guest vfio`: Pollux on the emulated adapter, through the guest's real
# vfio-pci behind a virtual IOMMU. Sourced by scripts/guest; run.sh and machine.sh say what `point`,
# `guest`, `hca` and `fail` are.
#
# All functions hang on NUMA node 1, each behind a root port of its own, except 2 and 3, which are the
# two ports of one card and so one IOMMU group:
#
#   0  81:00.0  the capture comes in        1  82:00.0  the capture goes out
#   2  83:00.0  } joined by a wire          3  83:00.1  }
#   4  84:00.0  sends to itself
#
# and for the driver's tests, in whole runs only:
#
#   5  85:00.0  sends to itself, another model
#   6  86:00.0  } joined by a wire that     7  86:00.1  }
#               } loses, the first one without a MAC address

ADDRESS=(0000:81:00.0 0000:82:00.0 0000:83:00.0 0000:83:00.1 0000:84:00.0)
MORE=(0000:85:00.0 0000:86:00.0 0000:86:00.1)
HUGEPAGES=160

run_vfio() {
  # A core that polls leaves the guest's other programs little of a slow machine.
  local adapters=() ports="0 1 2 4" seconds="3" settings number other=cx4lx GUEST_PATIENCE=240 TEST_PATIENCE=200
  CAPTURE=${POLLUX_CAPTURE:-$(default_capture)}
  settings="model=$MODEL,wire0=pcap,in0=\"$CAPTURE\",wire1=pcap,out1=\"$WORK/out.pcapng\",wire2=pair,wire3=pair,speed2=25000,speed3=25000,wire4=loop"
  OFFERED="wire=loop@4@${ADDRESS[4]};model=$MODEL,wire=loop@4@${ADDRESS[4]}"
  number="2@${ADDRESS[2]},${ADDRESS[3]}"
  OFFERED+=";ports=2,wire=pair@$number;ports=2,wire=pair,model=$MODEL@$number;ports=2,wire=pair,speed=25000@$number"
  if [ "$SHORT" = 1 ]; then
    start_hca "$settings,ports=6,wire5=null" 6 # pairs count by two; nobody asks for the last
  else
    [ "$MODEL" != cx4lx ] || other=cx7
    settings+=",ports=8,wire5=loop,model5=$other,wire6=pair,wire7=pair,lossy6=on,lossy7=on,mac6=00:00:00:00:00:00"
    ADDRESS+=("${MORE[@]}")
    number="6@${ADDRESS[6]},${ADDRESS[7]}"
    OFFERED+=";model=$other,wire=loop@5@${ADDRESS[5]};ports=2,wire=pair,lossy=on@$number;ports=2,wire=pair,mac0=00:00:00:00:00:00@$number"
    if [ "$MODEL" = cx5 ]; then
      settings+=",mac0=02:11:22:33:44:55,firmware0=16.35.2000"
      OFFERED+=";model=cx5,mac=02:11:22:33:44:55,firmware=16.35.2000@0@${ADDRESS[0]}"
    fi
    ports+=" 5 6"
    seconds+=" 7"
    start_hca "$settings" 8
  fi
  adapters=(-device intel-iommu,intremap=on,caching-mode=on
    -device pxb-pcie,id=far,bus_nr=0x80,numa_node=1,bus=pcie.0
    # Hot unplug by the root port itself and not by ACPI, as on a server.
    -global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off)
  # Bus numbers follow the order of the root ports.
  for number in $ports; do
    adapters+=(-device "pcie-root-port,id=rp$number,bus=far,chassis=$((number + 1)),slot=$((number + 1))"
      -device "{\"driver\":\"vfio-user-pci\",\"id\":\"hca$number\",\"bus\":\"rp$number\",\"addr\":\"0x0\",\"multifunction\":true,\"socket\":{\"path\":\"$WORK/hca$number\",\"type\":\"unix\"}}")
  done
  # Second functions of the adapters before them.
  for number in $seconds; do
    adapters+=(-device "{\"driver\":\"vfio-user-pci\",\"id\":\"hca$number\",\"bus\":\"rp$((number - 1))\",\"addr\":\"0x0.0x1\",\"multifunction\":true,\"socket\":{\"path\":\"$WORK/hca$number\",\"type\":\"unix\"}}")
  done
  # QEMU's own console for pulling an adapter, and the emulator's control line for the driver's tests.
  mkfifo "$WORK/monitor.in" "$WORK/monitor.out" "$WORK/line.in" "$WORK/line.out"
  adapters+=(-chardev "pipe,id=monitor,path=$WORK/monitor" -mon chardev=monitor,mode=readline
    -chardev "pipe,id=line,path=$WORK/line" -serial chardev:line)
  exec {MONITOR}<>"$WORK/monitor.in" {MONITOR_OUT}<>"$WORK/monitor.out"
  bound cat <&"$MONITOR_OUT" >"$WORK/monitor.log" &
  PIDS+=("$!")
  relay &
  PIDS+=("$!")

  GUEST_PROGRAMS+=(usr/bin/bash usr/bin/setpriv usr/bin/taskset)
  local extra=("${HCA%/*}/pollux-testpmd:bin/pollux-testpmd" scripts/host:bin/host
    "$ROOT/$LIBRARIES/libgcc_s.so.1:lib/libgcc_s.so.1" "$ROOT/$LIBRARIES/libm.so.6:lib/libm.so.6")
  if [ "$SHORT" = 0 ]; then
    driver_tests || stop "the driver's tests were not built"
    extra+=("$WORK/driver:bin/driver-tests")
  fi
  make_disk "${extra[@]}"
  GUEST_KERNEL_LINE="intel_iommu=on"
  MEMORY_MB=1536
  point "the guest boots Linux $KERNEL with a virtual IOMMU and two NUMA nodes" start_guest "${adapters[@]}"
  point "scripts/host says what is to do, and does it" prepare
  point "testpmd starts on two adapters, its packets on their NUMA node" bring_up
  point "the capture comes in, addresses swapped, and goes out unchanged otherwise" forwarded
  point "MSI-X wakes the control threads" interrupts
  point "SIGKILL in the middle: nothing is lost, and the next run works at once" killed
  if [ "$SHORT" = 0 ]; then
    point "two functions of one group, and a container of its own for each of two" containers
    point "messages: not bound, no permission, group not viable, mapping limit, locked memory" messages
    point "a reset from outside while it runs is noticed, and the adapter works after it" reset_under_way
    point "memory without a mapping, also one removed under traffic: the adapter reports the address, the driver queue, cause and address" unreachable
    point "the driver's tests pass over vfio" over_vfio
    point "scripts/host gives adapters back to the kernel's driver" given_back
  fi
  point "nothing is left: no page, no object, no hugepage" nothing_left
  if [ "$SHORT" = 0 ]; then
    # Last: QEMU 11.1 may abort some time after a vfio-user device was pulled.
    point "an adapter that is pulled while it runs: told, let go, and gone" pulled
  fi
}

# The driver's tests as a program for the guest.
driver_tests() {
  local program
  program=$(cargo test --locked --no-run -p pollux --test driver 2>&1 | sed -n 's/.*(\(.*driver-[0-9a-f]*\)).*/\1/p' | tail -n 1)
  [ -x "$program" ] && strip -o "$WORK/driver" "$program"
}

# Answers what the guest asks on its third serial port.
relay() {
  local line part=
  exec {ASKED}<>"$WORK/line.out" {ANSWERS}<>"$WORK/line.in"
  # The script itself is looked after now and then; nobody else ends this.
  while kill -0 $$ 2>/dev/null; do
    IFS= read -r -t 5 line <&"$ASKED" || { part+=$line; continue; }
    line=$part${line%$'\r'}
    part=
    [ -n "$line" ] || continue
    if HCA_OUT=$("$HCA" --control "$WORK/control" --ask "$line" 2>&1); then
      printf 'ok %s\n' "$HCA_OUT"
    else
      printf 'error %s\n' "$HCA_OUT"
    fi >&"$ANSWERS"
  done
}

prepare() {
  guest "echo 8 >/proc/sys/kernel/printk; modprobe vfio-pci disable_idle_d3=1; modprobe vfio_iommu_type1; host check" && fail "nothing to do: $GUEST_OUT"
  grep -q '^OK    IOMMU: on' <<<"$GUEST_OUT" || fail "$GUEST_OUT"
  grep -q '^TO DO hugepages: none' <<<"$GUEST_OUT" || fail "$GUEST_OUT"
  grep -q "^OK    ${ADDRESS[0]} NUMA node: 1" <<<"$GUEST_OUT" || fail "$GUEST_OUT"
  guest "host hugepages $HUGEPAGES --node 1 && host bind ${ADDRESS[*]} && host check" || { fail "$GUEST_OUT"; return 1; }
  [ "${GUEST_OUT##*$'\n'}" = ready ] || fail "$GUEST_OUT"
}

# Free hugepages of node 1.
free_pages() { guest 'cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages' && FREE=$GUEST_OUT; }

# Starts testpmd in the guest's background: devices and options. It ends with a line on its input.
testpmd() {
  guest "rm -f /tmp/in /tmp/status; mkfifo /tmp/in
    (sleep 100000 >/tmp/in & echo \$! >/tmp/holder
     pollux-testpmd -l 0,1 --log-level=info $* </tmp/in >/tmp/out 2>&1; echo \$? >/tmp/status; kill \$(cat /tmp/holder)) >/dev/null 2>&1 &
    for try in \$(seq 300); do
      grep -q 'Press enter' /tmp/out 2>/dev/null && exit 0
      [ -s /tmp/status ] && break
      sleep 0.1
    done
    cat /tmp/out; exit 1"
}
# Its status and output once it has ended.
ended() {
  guest "for try in \$(seq ${1:-300}); do [ -s /tmp/status ] && break; sleep 0.1; done
    cat /tmp/out; exit \$(cat /tmp/status || echo 99)"
}
end_testpmd() { guest 'echo >/tmp/in' && ended; }

bring_up() {
  free_pages && [ "$FREE" = $HUGEPAGES ] || fail "$FREE free hugepages"
  # The ring holds the whole capture, so that a slow machine drops nothing.
  testpmd "-a ${ADDRESS[0]} -a ${ADDRESS[1]} -- --forward-mode=macswap --txd=8192 --total-num-mbufs=20000" || { fail "$GUEST_OUT"; return 1; }
  guest 'cat /tmp/out; echo; grep -h huge /proc/$(pidof pollux-testpmd)/numa_maps' || { fail "$GUEST_OUT"; return 1; }
  local maps
  maps=$(grep ' huge ' <<<"$GUEST_OUT" || true)
  grep -q 'N1=' <<<"$maps" || fail "no hugepage on node 1: $GUEST_OUT"
  ! grep -q 'N0=' <<<"$maps" || fail "hugepages on node 0: $maps"
  grep -q "EMULATED.*${ADDRESS[0]}" <<<"$GUEST_OUT" || fail "the banner does not say EMULATED ${ADDRESS[0]}: $GUEST_OUT"
  grep -q 'NUMA node 1' <<<"$GUEST_OUT" || fail "the banner does not say node 1: $GUEST_OUT"
}

forwarded() {
  local try proof=${HCA%/*}/capture-proof
  for ((try = 0; try < 600; try++)); do
    hca wire 0
    [ "$(field drained "$HCA_OUT")" = 1 ] && [ "$(field waiting "$HCA_OUT")" = 0 ] && break
    sleep 0.2
  done
  local came
  came=$(field in "$HCA_OUT")
  for ((try = 0; try < 100; try++)); do
    hca wire 1
    [ "$(field out "$HCA_OUT")" = "$came" ] && break
    sleep 0.1
  done
  guest 'grep vfio-msix /proc/interrupts'
  INTERRUPTS=$GUEST_OUT
  end_testpmd || { fail "$GUEST_OUT"; return 1; }
  grep -q "RX-packets: $came " <<<"$GUEST_OUT" || fail "testpmd does not say that it received $came packets: $GUEST_OUT"
  "$proof" "$CAPTURE" "$WORK/out.pcapng" >"$WORK/proof" 2>&1 || fail "$(tail -n 8 "$WORK/proof")"
}

interrupts() {
  local function
  for function in 0 1; do
    awk -v a="${ADDRESS[function]}" 'index($0, a) { for (i = 2; i <= 3; i++) n += $i } END { exit n == 0 }' <<<"$INTERRUPTS" ||
      fail "no interrupt of ${ADDRESS[function]}: $INTERRUPTS"
  done
}

killed() {
  free_pages && [ "$FREE" = $HUGEPAGES ] || fail "$FREE of $HUGEPAGES hugepages free before"
  testpmd "-a ${ADDRESS[2]} -a ${ADDRESS[3]} -- --forward-mode=io --tx-first" || { fail "$GUEST_OUT"; return 1; }
  # Packets go round; then it dies.
  local before
  hca wire 2 && before=$(field in "$HCA_OUT")
  sleep 1
  hca wire 2 && [ "$(field in "$HCA_OUT")" -gt "$before" ] || fail "no traffic: $HCA_OUT"
  guest 'kill -9 $(pidof pollux-testpmd)'
  ended && fail "it survived"
  free_pages && [ "$FREE" = $HUGEPAGES ] || fail "$FREE of $HUGEPAGES hugepages free after"
  testpmd "-a ${ADDRESS[2]} -a ${ADDRESS[3]} -- --forward-mode=io --tx-first" || { fail "$GUEST_OUT"; return 1; }
  hca wire 2 && before=$(field in "$HCA_OUT")
  sleep 1
  hca wire 2 && [ "$(field in "$HCA_OUT")" -gt "$before" ] || fail "no traffic in the second run: $HCA_OUT"
  end_testpmd || fail "$GUEST_OUT"
  free_pages && [ "$FREE" = $HUGEPAGES ] || fail "$FREE of $HUGEPAGES hugepages free at the end"
}

containers() {
  local devices before
  # Both ports of one card share a group and so a container; two cards may share one or not.
  for devices in "-a ${ADDRESS[2]} -a ${ADDRESS[3]}" "-a ${ADDRESS[2]},container=shared -a ${ADDRESS[4]}" "-a ${ADDRESS[4]} -a ${ADDRESS[0]},container=own"; do
    testpmd "$devices -- --forward-mode=rxonly" || { fail "$devices: $GUEST_OUT"; continue; }
    guest 'ls -l /proc/$(pidof pollux-testpmd)/fd | grep -c /dev/vfio/vfio'
    case $devices in *own*) before=2 ;; *) before=1 ;; esac
    # Each container is held by its functions and its mappings, through one descriptor.
    [ "$GUEST_OUT" = $before ] || fail "$devices: $GUEST_OUT containers open, wanted $before"
    end_testpmd || fail "$devices: $GUEST_OUT"
  done
}

# What testpmd answers to a bad start: arguments, status, words of the one line.
refused() {
  local wanted=$2 words=$3
  guest "$4 pollux-testpmd -l 0 $1 </dev/null"
  local status=$?
  [ $status = "$wanted" ] || fail "$1: status $status, wanted $wanted: $GUEST_OUT"
  grep -qE "$words" <<<"$GUEST_OUT" || fail "$1: no \"$words\" in: $GUEST_OUT"
}

messages() {
  local device=${ADDRESS[4]}
  guest "modprobe mlx5_core; host unbind $device" || fail "$GUEST_OUT"
  refused "-a $device" 2 'is bound to mlx5_core, not to vfio-pci; scripts/host bind' ''
  guest "host bind $device" || fail "$GUEST_OUT"
  guest "chmod 666 /dev/vfio/vfio"
  refused "--no-huge -a $device" 1 '/dev/vfio/[0-9]+: .*Permission denied|EACCES.*' 'setpriv --reuid 1000 --regid 1000 --clear-groups'
  # A group with a function of the kernel's driver in it.
  guest "host unbind ${ADDRESS[3]}" || fail "$GUEST_OUT"
  refused "-a ${ADDRESS[2]}" 2 "cannot be given to user space while it holds ${ADDRESS[3]} \\(driver mlx5_core\\)" ''
  guest "host bind ${ADDRESS[3]}" || fail "$GUEST_OUT"
  guest 'echo 2 >/sys/module/vfio_iommu_type1/parameters/dma_entry_limit'
  refused "-a $device" 1 'holds 2 mappings and takes no more' ''
  guest 'echo 65535 >/sys/module/vfio_iommu_type1/parameters/dma_entry_limit'
  guest "host bind $device --owner 1000" || fail "$GUEST_OUT"
  refused "--no-huge -a $device" 1 'limit of 65536 bytes of locked memory' 'ulimit -l 64; setpriv --reuid 1000 --regid 1000 --clear-groups'
  guest "chown 0 /dev/vfio/*"
}

reset_under_way() {
  testpmd "-a ${ADDRESS[4]} -- --forward-mode=io --port-topology=loop --tx-first" || { fail "$GUEST_OUT"; return 1; }
  # As somebody else's hand would do it, on the card itself.
  guest "cd /sys/bus/pci/devices/${ADDRESS[4]} && cat reset_method && echo 1 >reset" || fail "no reset: $GUEST_OUT"
  # Function-level reset comes first of all that the kernel knows for it.
  case $GUEST_OUT in flr*) ;; *) fail "no function-level reset: $GUEST_OUT" ;; esac
  ended 400
  grep -q 'the device has failed' <<<"$GUEST_OUT" || fail "nothing told: $GUEST_OUT"
  grep -q 'Bye' <<<"$GUEST_OUT" || fail "not closed: $GUEST_OUT"
  testpmd "-a ${ADDRESS[4]} -- --forward-mode=io --port-topology=loop --tx-first" || { fail "after it: $GUEST_OUT"; return 1; }
  end_testpmd || fail "after it: $GUEST_OUT"
}

pulled() {
  testpmd "-a ${ADDRESS[0]} -- --forward-mode=rxonly" || { fail "$GUEST_OUT"; return 1; }
  printf 'device_del hca0\n' >&"$MONITOR"
  ended 400
  grep -q 'the platform wants the adapter back' <<<"$GUEST_OUT" || fail "nothing told: $GUEST_OUT"
  grep -q 'Bye' <<<"$GUEST_OUT" || fail "not closed: $GUEST_OUT"
  guest "for try in \$(seq 100); do [ -e /sys/bus/pci/devices/${ADDRESS[0]} ] || exit 0; sleep 0.1; done; exit 1" || fail "${ADDRESS[0]} is still there"
  free_pages && [ "$FREE" = $HUGEPAGES ] || fail "$FREE of $HUGEPAGES hugepages free"
}

# One of the driver's tests, with a limit. The guest's status: 0 passed, 77 no adapter with its
# settings, anything else failed.
driver_test() {
  guest "export POLLUX_VFIO='$OFFERED' POLLUX_VFIO_CONTROL=/dev/ttyS2
    stty -F /dev/ttyS2 raw -echo 115200
    rm -f /tmp/status
    (timeout -s KILL $TEST_PATIENCE driver-tests --ignored --exact $1 --nocapture >/tmp/test 2>&1
     echo \$? >/tmp/status) &
    for try in \$(seq $((TEST_PATIENCE * 4))); do
      [ ! -s /tmp/status ] || break
      sleep 0.2
    done
    [ -s /tmp/status ] || for thread in /proc/\$(pidof driver-tests)/task/*; do
      echo \"\$(cat \$thread/comm) is in \$(cat \$thread/wchan), system call \$(cat \$thread/syscall)\"
    done
    wait
    status=\$(cat /tmp/status)
    [ \$status = 0 ] || tail -n 12 /tmp/test
    exit \$status"
}

unreachable() {
  local test function address seen
  for test in memory_taken_away_fails_the_queue_by_name memory_taken_from_under_posted_buffers_fails_the_receive_queue_by_name; do
    driver_test "running::over_vfio::$test" || fail "$GUEST_OUT"
    guest 'grep "^failure: " /tmp/test' || fail "the driver says nothing: $GUEST_OUT"
    say "     $GUEST_OUT"
    # What the driver named is what the emulator saw from outside.
    case $GUEST_OUT in *"TX queue"*) function=4 ;; *) function=3 ;; esac
    address=$(sed -n 's/.*device address \(0x[0-9a-f]*\).*/\1/p' <<<"$GUEST_OUT")
    hca report $function
    seen=$(field dma_fault "$HCA_OUT")
    # The same pool of buffers: others met the same fate since.
    [ -n "$address" ] && [ $(((seen - address) / 4194304)) = 0 ] || fail "the driver named $address, the emulator $seen"
  done
}

over_vfio() {
  local tests test started status passed=0 failed=0 absent=()
  guest "driver-tests --ignored --list over_vfio:: 2>/dev/null | sed -n 's/: test\$//p'"
  tests=$GUEST_OUT
  for test in $tests; do
    started=$SECONDS
    driver_test "$test"
    status=$?
    case $status in
      0)
        passed=$((passed + 1))
        say "     passed $test ($((SECONDS - started)) s)"
        ;;
      77) absent+=("$test") ;;
      *)
        failed=$((failed + 1))
        say "     FAILED $test ($((SECONDS - started)) s)"
        fail "$test: $GUEST_OUT"
        ;;
    esac
    [ -z "${GUEST_LOST:-}" ] || break
  done
  for test in "${absent[@]+"${absent[@]}"}"; do
    case $test in
      *connectx* | *says_what_it_is) say "     not here: $test (another --model has it)" ;;
      cards::*) say "     not here: $test (an adapter made wrong for it alone)" ;;
      *capture*) say "     not here: $test (its files are the emulator's; the point of the capture is this)" ;;
      # There is an adapter for everything else.
      *) fail "$test found no adapter" ;;
    esac
  done
  say "     $passed driver tests passed over vfio, $failed failed, ${#absent[@]} are for other adapters"
  [ "$passed" -ge 45 ] || fail "only $passed tests passed"
}

given_back() {
  guest "modprobe mlx5_core; host unbind ${ADDRESS[*]:1} && ls -d /sys/bus/pci/drivers/mlx5_core/0000:8*" || { fail "$GUEST_OUT"; return 1; }
  [ "$(grep -c '^/sys/bus' <<<"$GUEST_OUT")" = $((${#ADDRESS[@]} - 1)) ] || fail "$GUEST_OUT"
  guest 'rmmod mlx5_core' || fail "$GUEST_OUT"
}

nothing_left() {
  local number
  for number in 0 1 2 3 4; do
    hca report "$number"
    [ "$(field pages "$HCA_OUT") $(field objects "$HCA_OUT")" = "0 0" ] || fail "function $number: $HCA_OUT"
  done
  free_pages && [ "$FREE" = $HUGEPAGES ] || fail "$FREE of $HUGEPAGES hugepages free"
  guest 'dmesg | grep -E "BUG|WARNING|Call Trace|DMAR.*fault"' && fail "the kernel complains: $GUEST_OUT"
  return 0
}
