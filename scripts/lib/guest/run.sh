# One run: its folder, the emulator, points, and how it ends. Sourced by scripts/guest.

PIDS=()
PASSED=0
FAILED=0
WHY=()
HCA=

# Where the logs of the last run stay.
LOGS=${TMPDIR:-/tmp}/pollux-guest-logs

begin() {
  WORK=$(mktemp -d "${TMPDIR:-/tmp}/pollux-guest.XXXXXX")
  RUN_STARTED=$SECONDS
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  if [ -n "${POLLUX_HCA:-}" ]; then
    # Somebody built the programs already.
    HCA=$POLLUX_HCA
  else
    say "building the emulator"
    cargo build --release --locked --quiet -p pollux-hca -p pollux-testpmd --no-default-features ||
      stop "the build failed; the compiler's messages are above"
    HCA=${CARGO_TARGET_DIR:-target}/release/pollux-hca
  fi
  [ -x "$HCA" ] || stop "no emulator at $HCA"
}

finish() {
  local status=$? pid log
  trap - EXIT INT TERM HUP
  set +e
  stop_guest
  for pid in "${PIDS[@]+"${PIDS[@]}"}"; do
    kill "$pid" 2>/dev/null
  done
  for pid in "${PIDS[@]+"${PIDS[@]}"}"; do
    local patience=50
    while kill -0 "$pid" 2>/dev/null && [ $patience -gt 0 ]; do
      sleep 0.1
      patience=$((patience - 1))
    done
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  rm -rf "$LOGS"
  mkdir -p "$LOGS"
  for log in console transcript kernel.log qemu.log hca.log commands kinds counts order proof bridged.pcapng; do
    [ ! -s "$WORK/$log" ] || cp "$WORK/$log" "$LOGS/"
  done
  [ $status = 0 ] || printf 'logs of this run: %s\n' "$LOGS" >&2
  rm -rf "${WORK:?}"
  exit $status
}

# Becomes a program that does not outlive this script, however that ends. Only behind an ampersand.
bound() {
  if setpriv --pdeathsig KILL true 2>/dev/null; then
    exec setpriv --pdeathsig KILL "$@"
  fi
  exec "$@"
}

# Starts the emulator with as many sockets as functions: SETTINGS, COUNT.
start_hca() {
  local number sockets=() deadline=$((SECONDS + 20))
  for ((number = 0; number < $2; number++)); do sockets+=(--socket "$WORK/hca$number"); done
  bound "$HCA" "${sockets[@]}" --device "$1" --control "$WORK/control" --log-commands "$WORK/commands" \
    </dev/null >"$WORK/hca.log" 2>&1 &
  HCA_PID=$!
  PIDS+=("$HCA_PID")
  until grep -qs '^ready' "$WORK/hca.log"; do
    kill -0 "$HCA_PID" 2>/dev/null && [ $SECONDS -lt $deadline ] || stop "the emulator does not start: $(tail -n 3 "$WORK/hca.log")"
    sleep 0.1
  done
}

stop_hca() {
  local deadline=$((SECONDS + 10))
  kill "$HCA_PID" 2>/dev/null || true
  while kill -0 "$HCA_PID" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
}

# Asks the emulator one line; the answer is in HCA_OUT.
hca() {
  HCA_OUT=$("$HCA" --control "$WORK/control" --ask "$*" 2>&1)
}

# The value of KEY in "KEY=value KEY=value ...".
field() { sed -n "s/^\(.* \)\{0,1\}$1=\([^ ]*\).*/\2/p" <<<"$2"; }

# A failure inside a point: what was seen.
fail() {
  WHY+=("$*")
  return 1
}

# Runs a point: a sentence, then the function that decides.
point() {
  local sentence=$1 started=$SECONDS status=0 line
  shift
  WHY=()
  if [ -n "${GUEST_LOST:-}" ]; then
    FAILED=$((FAILED + 1))
    printf 'FAIL %s: the guest is gone\n' "$sentence"
    return 0
  fi
  # As a condition, so that a failing command inside is the point's business, not the script's.
  "$@" || status=1
  if [ $status = 0 ] && [ ${#WHY[@]} = 0 ]; then
    PASSED=$((PASSED + 1))
    printf 'PASS %s (%s s)\n' "$sentence" $((SECONDS - started))
  else
    FAILED=$((FAILED + 1))
    printf 'FAIL %s (%s s)\n' "$sentence" $((SECONDS - started))
    [ ${#WHY[@]} -gt 0 ] || WHY=("last output: ${GUEST_OUT:-}")
    for line in "${WHY[@]}"; do printf '%s\n' "$line" | sed 's/^/     /'; done
  fi
}

summary() {
  if [ "$KEEP" = 1 ]; then
    say "guest and emulator go on running; logs and sockets are in $WORK; Enter ends them"
    read -r _ || true
  fi
  printf '%s passed, %s failed (%s s)\n' "$PASSED" "$FAILED" $((SECONDS - RUN_STARTED))
  [ "$FAILED" = 0 ]
}
