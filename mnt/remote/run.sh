# What `mnt run` puts around a command on a host: plain sh, no Python.
#
# The login shell sees nothing but bootstrap.COMMAND; this text is the first line of stdin (see boot.sh), so it
# ends its commands with `;`. mnt.run.wrapper writes what follows, one line each:
#
#   the mark, which is answered on both streams: what came before it is noise of start-up files;
#   the words of the command, quoted for eval, with "$nl" for each newline;
#   the size of a script in bytes, or 0;
#   `none` or `stream`: what the command's standard input is;
#
# then the script, then standard input in pieces: a line with a size, and that many bytes. Size 0 is its end.
# Once the command has ended, `MARK CODE` stands on standard error. It does not wait for what the command left
# running, as the end of the streams does.
#
# Standard input of this shell stays open for as long as the head is there. Its end means that the head is gone:
# the command is then ended, with all that is left in its process group.
IFS= read -r mark;
IFS= read -r words;
IFS= read -r size;
IFS= read -r input || exit 98;
echo "$mark";
echo "$mark" >&2;
nl=${IFS#??};
eval "set -- $words";
exec 3<&0 4>&2 0</dev/null 2>/dev/null;
# `dd` and not `head -c`, which in busybox reads more than it was told to.
take() { dd bs="$1" count=1 iflag=fullblock <&3; };
# The script is open as descriptor 5, and has no name any more by the time it runs.
if [ "$size" -gt 0 ]; then
  file=$(mktemp) || { echo "mnt: no place for the script in ${TMPDIR:-/tmp}" >&4; exit 126; };
  take "$size" >"$file";
  there=$(wc -c <"$file");
  exec 5<"$file";
  rm -f "$file";
  [ "$there" -eq "$size" ] || { echo "mnt: no place for the script in ${TMPDIR:-/tmp}" >&4; exit 126; };
fi;
# TERM, two seconds, KILL. This subshell outlives the TERM, and is itself in the group.
leash() {
  trap "" HUP INT TERM;
  while IFS= read -r size && [ "$size" -gt 0 ]; do
    take "$size" || { cat >/dev/null; break; };
  done <&3;
  exec >/dev/null;
  while IFS= read -r size; do :; done <&3;
  kill -TERM 0;
  sleep 2;
  kill -KILL 0;
};
# In a subshell, exec runs programs only, never a builtin of this shell. The shell's own remarks go nowhere.
# ksh93 says 256 + N for a signal.
run() {
  (exec "$@" 2>&4 3<&- 4>&-);
  code=$?;
  [ "$code" -lt 256 ] || code=$((code - 128));
  echo "$mark $code" >&4;
};
case $input in
  none)
    leash >/dev/null 4>&- &
    leash=$!;
    run "$@";
    kill -KILL "$leash";
    exit "$code";;
  stream)
    { sh -c 'echo "$PPID"'; leash; } 4>&- | {
      IFS= read -r leash;
      run "$@";
      kill -KILL "$leash";
      exit "$code";
    };;
esac;
