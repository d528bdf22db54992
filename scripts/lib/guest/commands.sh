# The commands of a run, and how they differ from those of the run that is kept. Sourced by
# scripts/guest.
#
# A kept log is the device's own log of function 0 over a whole run, in order: name, variant,
# register, input bytes, status. What statistics ask for again and again is left out, and equal
# neighbours are one line with a count. There are no addresses and no times in it.

KEPT=scripts/lib/guest/commands-$MODEL.txt
# Asked whenever somebody looks at statistics, which is a matter of time.
STATISTICS='reg=PPCNT|^QUERY_VPORT_COUNTER|^QUERY_Q_COUNTER|^QUERY_VNIC_ENV|^QUERY_FLOW_COUNTER'

# Log of the emulator -> the kept form.
normal_log() { sed -n 's/^emu0 //p' "$1" | sed 's/ syndrome=0x0$//' | grep -vE "$STATISTICS" | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)/\2 x\1/'; }

# Kept form -> each kind of command once, with how often it was sent.
kinds() {
  awk '!/^#/ { count = $NF; sub(/ x[0-9]+$/, ""); sub(/^x/, "", count); sum[$0] += count }
    END { for (kind in sum) print kind "\t" sum[kind] }' "$1" | sort
}

keep_commands() {
  {
    printf '# Commands of function 0 (%s) in a clean run of scripts/guest kernel; written by --bless.\n' "$MODEL"
    printf '# linux %s\n' "$KERNEL"
    normal_log "$WORK/commands"
  } >"$KEPT"
  {
    sed -n '/^#/p' pmd/emu/tests/exercised/linux.txt
    awk '/ status=OK( |$)/ { if ($2 == "ACCESS_REG") { sub("reg=", "", $4); print $4 ":" ($3 == "op_mod=0x1" ? "read" : "write") } print $2 }' \
      "$WORK/commands" | sort -u
  } >"$WORK/exercised"
  cp "$WORK/exercised" pmd/emu/tests/exercised/linux.txt
}

# A command of a new kind, one that is refused, and (in a whole run) one that is no longer sent are
# failures; another number of them is told. Another kernel may well send others: all is told then.
same_commands() {
  local now=$WORK/commands.now line wanted judge=fail
  [ -f "$KEPT" ] || { say "     (no kept commands for $MODEL; --bless keeps these)"; return 0; }
  normal_log "$WORK/commands" >"$now"
  wanted=$(sed -n 's/^# linux //p' "$KEPT")
  if [ "$wanted" != "$KERNEL" ]; then
    say "     (kept with Linux $wanted, this is $KERNEL)"
    judge=note
  fi
  note() { say "     note: $*"; }
  join -t "$(printf '\t')" -a 1 -a 2 -e - -o 0,1.2,2.2 <(kinds "$KEPT") <(kinds "$now") >"$WORK/kinds"
  while IFS=$'\t' read -r line kept seen; do
    case "$kept $seen $SHORT" in
      "- "*) $judge "sent $seen times, and never in the kept run: $line" || true ;;
      *" - 1") ;;
      *" - 0") $judge "sent $kept times in the kept run, and never in this one: $line" || true ;;
      *" 0") [ "$kept" = "$seen" ] || printf '%s: %s, kept %s\n' "$line" "$seen" "$kept" >>"$WORK/counts" ;;
    esac
  done <"$WORK/kinds"
  if [ "$SHORT" = 0 ] && ! diff <(grep -v '^#' "$KEPT") "$now" >"$WORK/order"; then
    say "     note: same kinds; $(grep -c '^[<>]' "$WORK/order") lines stand elsewhere or in another number, $(grep -c . "$WORK/counts" 2>/dev/null || echo 0) kinds were sent in another number (see order and counts in the logs)"
  fi
  [ ${#WHY[@]} = 0 ]
}
