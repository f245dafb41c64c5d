# What `mnt run` puts around a command on a host: plain sh, no Python.
#
# The login shell sees nothing but bootstrap.COMMAND; this text is the first line of stdin (see boot.sh), so it
# ends its commands with `;`. mnt.tasks.wrapper writes what follows, one line each:
#
#   the mark, which is answered on both streams: what came before it is noise of start-up files;
#   the words of the command, quoted for eval, with "$nl" for each newline;
#   the size of a script in bytes, or 0;
#   `none` or `stream`: what the command's standard input is;
#
# then the script. With `stream` a line follows once the head has its leash.sh in place, and then standard input.
# With `none` nothing follows, and the end of stdin means that the head is gone: the command is then ended, with all
# that is left in its process group.
#
# Lines written: `MARK GROUP` on standard output, the process group; `MARK` on standard error; and there, once the
# command has ended, `MARK CODE`. It does not wait for what the command left running, as the end of the streams does.
IFS= read -r mark;
IFS= read -r words;
IFS= read -r size;
IFS= read -r input || exit 98;
read -r pid name state parent group rest <"/proc/$$/stat";
echo "$mark $group";
echo "$mark" >&2;
nl=${IFS#??};
eval "set -- $words";
exec 3<&0 4>&2 0</dev/null 2>/dev/null;
# The script is open as descriptor 5, and has no name any more by the time it runs. `dd` and not `head -c`, which
# in busybox reads more than it was told to.
if [ "$size" -gt 0 ]; then
  file=$(mktemp) || { echo "mnt: no place for the script in ${TMPDIR:-/tmp}" >&4; exit 126; };
  dd bs="$size" count=1 iflag=fullblock <&3 >"$file";
  there=$(wc -c <"$file");
  exec 5<"$file";
  rm -f "$file";
  [ "$there" -eq "$size" ] || { echo "mnt: no place for the script in ${TMPDIR:-/tmp}" >&4; exit 126; };
fi;
# TERM, two seconds, KILL. This subshell outlives the TERM, and is itself in the group.
leash() {
  trap "" HUP INT TERM;
  while IFS= read -r line; do :; done <&3;
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
if [ "$input" = none ]; then
  leash >/dev/null 4>&- &
  leash=$!;
  run "$@";
  kill -KILL "$leash";
else
  IFS= read -r line <&3 || exit 98;
  run "$@" <&3;
fi;
exit "$code";
