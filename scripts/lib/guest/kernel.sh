# The points of `scripts/guest kernel`. Sourced by scripts/guest; run.sh and machine.sh say what
# `point`, `guest`, `hca` and `fail` are.
#
# Functions 0 and 1 are joined by a wire: eth0 stays in the guest's own network namespace, eth1 goes
# into another one. Functions 2 and 3 (not in the short form) have captures for wires, and the
# kernel's bridge between them.

FIRMWARE_MINOR=33.1048
SPEED=25000
MAC=(02:50:4f:4c:4c:01 02:50:4f:4c:4c:02 02:50:4f:4c:4c:03 02:50:4f:4c:4c:04)
# The other side's network namespace.
SIDE="ip netns exec side"

firmware_version() {
  case $MODEL in
    cx4lx) echo 14.$FIRMWARE_MINOR ;;
    cx5) echo 16.$FIRMWARE_MINOR ;;
    cx6dx) echo 22.$FIRMWARE_MINOR ;;
    cx7) echo 28.$FIRMWARE_MINOR ;;
  esac
}

# What the kernel said of mlx5 since the last call, at warning level or above, unless it matches $1.
complaints() {
  guest 'dmesg -r -c' || return 1
  printf '%s\n' "$GUEST_OUT" >>"$WORK/kernel.log"
  local found
  found=$(sed -n 's/^<[0-4]>//p' <<<"$GUEST_OUT" | grep -iE 'mlx5|BUG|Call Trace|WARNING' | grep -vE "${1:-^$}" || true)
  [ -z "$found" ] || fail "$found"
}

run_kernel() {
  local number count=4 wires settings adapters=()
  CAPTURE=
  if [ "$SHORT" = 1 ]; then
    count=2
    wires=wire0=pair,wire1=pair
  else
    CAPTURE=${POLLUX_CAPTURE:-$(default_capture)}
    [ -r "$CAPTURE" ] || stop "no capture to send: $CAPTURE; run 'cargo fetch', or name one with POLLUX_CAPTURE"
    # Under a name without commas.
    ln -s "$CAPTURE" "$WORK/capture"
    wires="wire0=pair,wire1=pair,wire2=pcap,in2=$WORK/capture,rate2=1000,wire3=pcap,out3=$WORK/bridged.pcapng"
  fi
  # Several queues of this driver share a doorbell page, so their records have to be looked at.
  settings="ports=$count,model=$MODEL,strict=off,firmware=$(firmware_version),speed=$SPEED,$wires"
  for ((number = 0; number < count; number++)); do
    settings+=,mac$number=${MAC[number]}
    mapfile -t -O "${#adapters[@]}" adapters < <(adapter "$number" "$WORK/hca$number")
  done
  start_hca "$settings" "$count"
  # The link is up as soon as the driver has begun, and a bridge forwards nothing until it has heard
  # of the carrier: the capture waits until then.
  [ "$SHORT" = 1 ] || hca hold 2 || stop "the wire of the capture cannot be held: $HCA_OUT"
  make_disk
  FUNCTIONS=$count
  point "the guest boots Linux $KERNEL" start_guest "${adapters[@]}"
  point "mlx5_core probes $count functions ($MODEL) without a complaint" probe
  point "firmware version, MAC addresses and link speed are as configured" identity
  point "the link comes up" link_up
  point "ping loses nothing" ping_all
  if [ "$SHORT" = 1 ]; then
    point "1 MB over TCP arrives unchanged, both ways" tcp 1
  else
    point "16 MB over TCP arrive unchanged, both ways" tcp 16
    point "the same with an MTU of 9000" jumbo
    point "two channels share 64 flows" spread
    point "a VLAN interface talks, tags put in and taken out by the adapter" vlan
    point "foreign unicast arrives in promiscuous mode, and only then" promiscuous
    point "interrupts are held back as ethtool -C says" moderation
    point "ethtool -S counts what the emulator counts" counters
    point "down and up ten times" down_and_up
    point "page requests are obeyed: give and take" page_requests
    point "a storm of page requests, of several functions, is weathered under traffic" page_storm
    point "the kernel's bridge takes the capture" bridge
    point "a function-level reset is noticed, and the function works after it" function_reset
  fi
  point "rmmod leaves no page, no object and no complaint" removal
  [ "$SHORT" = 1 ] || point "the capture left the bridge unchanged" bridged
  if [ "$BLESS" = 1 ] && [ "$FAILED" = 0 ]; then keep_commands; fi
  point "the commands are of the kinds of the run that is kept" same_commands
}

default_capture() {
  local manifest
  manifest=$(cargo metadata --locked --format-version 1 2>/dev/null | tr ',' '\n' |
    sed -n 's/.*"manifest_path":"\([^"]*pcap-parser-0\.17\.0\/Cargo\.toml\)".*/\1/p' | head -n 1)
  printf '%s\n' "${manifest%/Cargo.toml}/assets/wireshark_samples-test.pcapng"
}

probe() {
  guest 'dmesg -c >/dev/null
    # No traffic but the tests'"'"' own.
    echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
    echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
    # Frames leave in the order in which they came: no fair queueing.
    echo pfifo_fast >/proc/sys/net/core/default_qdisc
    mount -t debugfs debug /sys/kernel/debug
    modprobe mlx5_core
    for dev in /sys/bus/pci/drivers/mlx5_core/0*; do
      echo "${dev##*/} $(ls $dev/net)"
    done' || return 1
  local there
  there=$(grep -c ' eth' <<<"$GUEST_OUT")
  [ "$there" = "$FUNCTIONS" ] || fail "$there network interfaces, $FUNCTIONS functions: $GUEST_OUT"
  complaints
}

identity() {
  local number wanted
  wanted=$(firmware_version)
  guest 'for n in $(seq 0 '$((FUNCTIONS - 1))'); do
    echo "eth$n $(ethtool -i eth$n | sed -n "s/^firmware-version: \([^ ]*\).*/\1/p") $(cat /sys/class/net/eth$n/address)"
  done'
  for ((number = 0; number < FUNCTIONS; number++)); do
    grep -qx "eth$number $wanted ${MAC[number]}" <<<"$GUEST_OUT" || fail "wanted: eth$number $wanted ${MAC[number]}; seen: $GUEST_OUT"
  done
  # Without a link there is no speed.
  guest "ip netns add side
    ip link set eth1 netns side
    ip link set eth0 up
    ip addr add 10.1.0.1/24 dev eth0
    $SIDE ip addr add 10.1.0.2/24 dev eth1
    $SIDE ip link set lo up
    $SIDE ip link set eth1 up
    for try in \$(seq 50); do [ \"\$(cat /sys/class/net/eth0/carrier)\" = 1 ] && break; sleep 0.1; done
    cat /sys/class/net/eth0/speed" || return 1
  [ "${GUEST_OUT##*$'\n'}" = $SPEED ] || fail "speed $GUEST_OUT, wanted $SPEED"
}

# Waits until both ends of the joined pair have a carrier.
carriers() {
  guest "for try in \$(seq 100); do
      [ \"\$(cat /sys/class/net/eth0/carrier) \$($SIDE cat /sys/class/net/eth1/carrier)\" = '1 1' ] && exit 0
      sleep 0.1
    done
    exit 1" || fail "no carrier within 10 s"
}

link_up() { carriers && complaints; }

ping_all() { # size of the payload, other side's address
  guest "ping -q -c 20 -i 0.1 -s ${1:-56} ${2:-10.1.0.2}" || { fail "$GUEST_OUT"; return 1; }
  grep -q '20 packets transmitted, 20 packets received, 0% packet loss' <<<"$GUEST_OUT" || fail "$GUEST_OUT"
}

# So many MB from either side to the other, compared by checksum.
tcp() {
  local GUEST_PATIENCE=180
  guest "mkdir -p /tmp/www
    [ -s /tmp/www/$1 ] || dd if=/dev/urandom of=/tmp/www/$1 bs=1M count=$1 2>/dev/null
    pidof httpd >/dev/null || { httpd -p 10.1.0.1:80 -h /tmp/www; $SIDE httpd -p 10.1.0.2:80 -h /tmp/www; }
    wget -q -O /tmp/there http://10.1.0.2/$1
    $SIDE wget -q -O /tmp/back http://10.1.0.1/$1
    sha256sum <\"/tmp/www/$1\"; sha256sum <\"/tmp/there\"; sha256sum <\"/tmp/back\"
    stat -c %s /tmp/there /tmp/back
    rm -f /tmp/there /tmp/back" || return 1
  local sums
  mapfile -t sums <<<"$GUEST_OUT"
  [ "${#sums[@]}" = 5 ] && [ "${sums[0]}" = "${sums[1]}" ] && [ "${sums[0]}" = "${sums[2]}" ] &&
    [ "${sums[3]} ${sums[4]}" = "$(($1 << 20)) $(($1 << 20))" ] || { fail "$GUEST_OUT"; return 1; }
  complaints
}

jumbo() {
  guest "ip link set eth0 mtu 9000; $SIDE ip link set eth1 mtu 9000" || return 1
  carriers && settled && ping_all 8900 && tcp 16
}

# Until the neighbours know each other again.
settled() {
  guest 'for try in $(seq 20); do ping -q -c 1 -W 1 10.1.0.2 >/dev/null && exit 0; done; exit 1' || fail "no ping within 20 s"
}

# The value of one counter of ethtool -S.
stat_of() { sed -n "s/^ *$1: \([0-9]*\)\$/\1/p" <<<"$2"; }

spread() {
  guest 'ethtool -L eth0 combined 2; ethtool -l eth0 | tail -n 2'
  grep -q 'Combined:.*2' <<<"$GUEST_OUT" || fail "no two channels: $GUEST_OUT"
  carriers && settled || return 1
  local before after number share
  guest 'ethtool -S eth0' && before=$GUEST_OUT
  # Nobody listens on the port: a SYN each, and a refusal back.
  guest "for flow in \$(seq 20001 20064); do $SIDE nc -p \$flow -w 2 10.1.0.1 9 </dev/null 2>/dev/null; done
    sleep 1; ethtool -S eth0"
  after=$GUEST_OUT
  for number in 0 1; do
    share=$(($(stat_of "rx${number}_packets" "$after") - $(stat_of "rx${number}_packets" "$before")))
    [ $share -ge 16 ] || fail "channel $number received $share packets of 64 flows"
  done
  complaints
}

vlan() {
  local tags
  guest "modprobe 8021q
    ip link add link eth0 name tagged type vlan id 77 && ip addr add 10.1.77.1/24 dev tagged && ip link set tagged up
    $SIDE ip link add link eth1 name tagged type vlan id 77 && $SIDE ip addr add 10.1.77.2/24 dev tagged && $SIDE ip link set tagged up
    ping -q -c 1 -W 2 10.1.77.2" >/dev/null
  ping_all 56 10.1.77.2 || return 1
  guest 'ethtool -S eth0'
  for tags in tx_added_vlan_packets rx_removed_vlan_packets; do
    [ "$(stat_of $tags "$GUEST_OUT")" -ge 20 ] || fail "$tags is $(stat_of $tags "$GUEST_OUT")"
  done
  guest "ip link del tagged; $SIDE ip link del tagged"
  complaints
}

promiscuous() {
  local seen=() mode
  guest "$SIDE ip neigh replace 10.1.0.99 lladdr 02:de:ad:be:ef:01 dev eth1"
  for mode in off on off; do
    guest "ip link set eth0 promisc $mode; sleep 0.5
      before=\$(cat /sys/class/net/eth0/statistics/rx_packets)
      $SIDE ping -q -c 5 -i 0.1 -W 1 10.1.0.99 >/dev/null
      sleep 0.3
      echo \$((\$(cat /sys/class/net/eth0/statistics/rx_packets) - before))"
    seen+=("$GUEST_OUT")
  done
  [ "${seen[*]}" = "0 5 0" ] || fail "foreign packets received with promiscuous mode off, on, off: ${seen[*]}; wanted 0 5 0"
  # The driver says so itself, at warning level, whenever it strips tags.
  complaints 'S-tagged traffic will be dropped'
}

# The driver's period begins with the first completion, so that no answer can come before its end.
moderation() {
  local usecs took=()
  guest 'ethtool --set-priv-flags eth0 rx_cqe_moder on' || { fail "$GUEST_OUT"; return 1; }
  for usecs in 0 4000; do
    guest "ethtool -C eth0 adaptive-rx off adaptive-tx off rx-usecs $usecs rx-frames 64 || exit 1
      ethtool -c eth0 | grep '^rx-usecs:'
      ping -q -c 20 -i 0.1 10.1.0.2" || { fail "$GUEST_OUT"; return 1; }
    grep -qE "^rx-usecs:[[:space:]]+$usecs\$" <<<"$GUEST_OUT" || fail "rx-usecs is not $usecs: $GUEST_OUT"
    took+=("$(sed -n 's|^round-trip min/avg/max = [0-9.]*/\([0-9]*\)\.\([0-9]*\)/.*|\1\2|p' <<<"$GUEST_OUT")")
  done
  # Not the fastest one: somebody else's packet may have come just before it, and its wait was short.
  [ "${took[1]}" -ge 4000 ] || fail "with a wait of 4000 us an answer took ${took[1]} us on average (without: ${took[0]})"
  guest 'ethtool -C eth0 adaptive-rx on adaptive-tx on'
  complaints
}

counters() {
  local kernel wire name
  # What a driver's statistics hold may be a moment old.
  guest 'sleep 1; ethtool -S eth0' && kernel=$GUEST_OUT
  hca wire 0 || fail "$HCA_OUT"
  wire=$HCA_OUT
  same() { [ "$2" = "$3" ] || fail "$1: the kernel says $2, the emulator $3"; }
  same "frames sent" "$(stat_of tx_packets_phy "$kernel")" "$(field out "$wire")"
  same "bytes sent" $(($(stat_of tx_bytes_phy "$kernel") - 4 * $(stat_of tx_packets_phy "$kernel"))) "$(field bytes_out "$wire")"
  same "frames received" "$(stat_of rx_packets "$kernel")" "$(field in "$wire")"
  # Tags that were taken out are not in the driver's count.
  same "bytes received" $(($(stat_of rx_bytes "$kernel") + 4 * $(stat_of rx_removed_vlan_packets "$kernel"))) "$(field bytes_in "$wire")"
  same "frames on the line" "$(stat_of rx_packets_phy "$kernel")" $(($(field in "$wire") + $(field dropped "$wire")))
  for name in rx tx; do
    same "$name by the virtual port" \
      $(($(stat_of ${name}_vport_unicast_packets "$kernel") + $(stat_of ${name}_vport_multicast_packets "$kernel") + $(stat_of ${name}_vport_broadcast_packets "$kernel"))) \
      "$(stat_of ${name}_packets "$kernel")"
  done
  complaints
}

down_and_up() {
  local before GUEST_PATIENCE=180
  guest 'ethtool -S eth0' && before=$(stat_of link_down_events_phy "$GUEST_OUT")
  guest 'for turn in $(seq 10); do ip link set eth0 down || exit 1; ip link set eth0 up || exit 1; done; ip addr show dev eth0' || return 1
  carriers && settled && ping_all || return 1
  guest 'ethtool -S eth0'
  local downs=$(($(stat_of link_down_events_phy "$GUEST_OUT") - before))
  [ $downs -ge 10 ] || fail "the link went down $downs times"
  complaints
}

# Pages as the emulator counts them, once the kernel had time to obey.
pages_become() {
  local try
  for ((try = 0; try < 100; try++)); do
    hca report 0 && [ "$(field pages "$HCA_OUT")" = "$1" ] && return 0
    sleep 0.1
  done
  fail "$(field pages "$HCA_OUT") pages, wanted $1"
}

page_requests() {
  local before kernel turn
  hca report 0
  before=$(field pages "$HCA_OUT")
  kernel_pages() { guest 'cat /sys/kernel/debug/mlx5/0000:01:00.0/pages/fw_pages_total'; kernel=$GUEST_OUT; }
  kernel_pages
  [ "$kernel" = "$before" ] || fail "the kernel says that it gave $kernel pages, the emulator has $before"
  hca demand 0 give 100 && pages_become $((before + 100)) || return 1
  hca demand 0 take 100 && pages_become "$before" || return 1
  # More than fits one command of either side, and many at once.
  hca demand 0 give 3000 && pages_become $((before + 3000)) || return 1
  hca demand 0 take 3000 && pages_become "$before" || return 1
  for turn in 1 2 3 4 5 6 7 8 9 10; do
    hca demand 0 give $((turn * 7))
    hca demand 0 take $((turn * 7))
  done
  pages_become "$before" && ping_all || return 1
  kernel_pages
  [ "$kernel" = "$before" ] || fail "after the storm the kernel counts $kernel pages, the emulator $before"
  complaints
}

# Some 100 MB of the guest's memory go to the firmware and come back, several times and partly at
# once, for this function and for ids behind it; the wire is used meanwhile.
page_storm() {
  local before kernel waves GUEST_PATIENCE=180
  kernel_total() { guest 'cat /sys/kernel/debug/mlx5/0000:01:00.0/pages/fw_pages_total'; kernel=$GUEST_OUT; }
  hca report 0
  before=$(field pages "$HCA_OUT")
  waves=0:give:20000+5000:take:20000+5100:give:300:8+5600:take:300:8
  waves+=+5700:give:9000:3+5800:take:4000:3+5900:give:50:20+6500:take:5000:3+7000:take:50:20
  hca storm 0 "$waves" || { fail "$HCA_OUT"; return 1; }
  # All of it is out at some moment.
  pages_become $((before + 20000)) || return 1
  ping_all || return 1
  sleep 8
  pages_become "$before" || return 1
  kernel_total
  [ "$kernel" = "$before" ] || fail "after the storm the kernel counts $kernel pages, the emulator $before"
  ping_all && complaints
}

bridge() {
  local try wire GUEST_PATIENCE=120
  guest 'modprobe bridge
    ip link add br0 type bridge ageing_time 0 mcast_snooping 0 group_fwd_mask 65528
    for n in 2 3; do
      ethtool -L eth$n combined 1
      ethtool -K eth$n gro off
      ip link set eth$n mtu 9000
      ip link set eth$n master br0
      bridge link set dev eth$n learning off flood on mcast_flood on bcast_flood on
    done
    ip link set br0 mtu 9000 up
    ip link set eth3 up
    for try in $(seq 50); do [ "$(cat /sys/class/net/eth3/carrier)" = 1 ] && break; sleep 0.1; done
    ip link set eth2 up
    for try in $(seq 100); do
      [ "$(cat /sys/class/net/eth2/brport/state) $(cat /sys/class/net/eth3/brport/state)" = "3 3" ] && exit 0
      sleep 0.1
    done
    exit 1' || { fail "the ports of the bridge do not forward: $GUEST_OUT"; return 1; }
  hca go 2 || fail "$HCA_OUT"
  for ((try = 0; try < 600; try++)); do
    hca wire 2
    [ "$(field drained "$HCA_OUT")" = 1 ] && [ "$(field waiting "$HCA_OUT")" = 0 ] && break
    sleep 0.2
  done
  wire=$HCA_OUT
  [ "$(field drained "$wire")" = 1 ] || fail "the capture did not go in: $wire"
  guest 'sleep 2; ip link set eth2 down; ip link set eth3 down; ip link del br0'
  # What the driver says of every promiscuous port.
  complaints 'S-tagged traffic will be dropped'
}

# The emulator closes the capture when it stops.
bridged() {
  local proof=${HCA%/*}/capture-proof
  stop_guest
  stop_hca
  "$proof" --transform none "$CAPTURE" "$WORK/bridged.pcapng" >"$WORK/proof" 2>&1 || fail "$(tail -n 8 "$WORK/proof")"
}

function_reset() {
  local noticed GUEST_PATIENCE=120
  guest 'cat /sys/bus/pci/devices/0000:01:00.0/reset_method; echo flr >/sys/bus/pci/devices/0000:01:00.0/reset_method
    echo 1 >/sys/bus/pci/devices/0000:01:00.0/reset || exit 1
    for try in $(seq 60); do dmesg | grep -qiE "mlx5_core 0000:01:00.0.*(health|compromised|recover|fatal|sync reset|Fatal)" && break; sleep 0.5; done
    dmesg -r | grep -i mlx5_core' || return 1
  noticed=$GUEST_OUT
  grep -qiE 'health|fatal|recover' <<<"$noticed" || fail "nothing noticed within 30 s: $noticed"
  guest 'sleep 5
    echo 0000:01:00.0 >/sys/bus/pci/drivers/mlx5_core/unbind
    dmesg -c >/dev/null
    echo 0000:01:00.0 >/sys/bus/pci/drivers/mlx5_core/bind || exit 1
    ip link set eth0 mtu 9000
    ip addr add 10.1.0.1/24 dev eth0
    ip link set eth0 up' || return 1
  carriers && settled && ping_all && complaints
}

removal() {
  local number
  guest 'pidof httpd | xargs -r kill; rmmod mlx5_core' || { fail "$GUEST_OUT"; return 1; }
  for ((number = 0; number < FUNCTIONS; number++)); do
    hca report "$number"
    [ "$(field pages "$HCA_OUT") $(field objects "$HCA_OUT")" = "0 0" ] || fail "function $number: $HCA_OUT"
  done
  guest 'dmesg' && ! grep -q 'FW pages counter' <<<"$GUEST_OUT" || fail "pages were left: $GUEST_OUT"
  complaints
}
