# The wrapper of `mnt run` around a command on a host: plain sh, no Python.
#
# The login shell gets only bootstrap.COMMAND; this text, after judge.sh if there is a script, is the first line of stdin
# (see boot.sh), so each command ends with `;`. mnt.tasks.wrapper writes the lines that follow:
#
#   the mark, which is echoed on both streams: what comes before it is noise of start-up files;
#   the words of the command, quoted for eval, with "$nl" for each newline;
#   the size of a script in bytes, or 0;
#   `none` or `stream`: what the command's standard input is;
#
# then the script. With `stream` a line follows when the head's leash.sh runs, and then standard input. With `none`
# nothing follows, and the end of stdin means that the head is gone: the command then ends, with all processes that
# are left in its process group.
#
# Lines written: `MARK GROUP` on standard output, the process group; `MARK` on standard error; and there, when the
# command has ended, `MARK CODE`: at once, while the streams may stay open for processes that it left running.
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
# The script is open as descriptor 5, and its file is removed before it runs. `dd`, because `head -c` of busybox reads
# more than it was told to.
if [ "$size" -gt 0 ]; then
  top=${TMPDIR:-/tmp} owner= group=;
  stranger "$top" "$(id -u)" >/dev/null || top=/tmp;
  stranger "$top" "$(id -u)" >/dev/null || { echo "mnt: other users could exchange the script in /tmp" >&4; exit 126; };
  file=$(mktemp "$top/mnt.XXXXXXXXXX") || { echo "mnt: no place for the script in $top" >&4; exit 126; };
  dd bs="$size" count=1 iflag=fullblock <&3 >"$file";
  there=$(wc -c <"$file");
  exec 5<"$file";
  rm -f "$file";
  [ "$there" -eq "$size" ] || { echo "mnt: no place for the script in $top" >&4; exit 126; };
fi;
# TERM, CONT for what was stopped, two seconds, KILL. This subshell outlives the TERM, and is itself in the group.
leash() {
  trap "" HUP INT TERM;
  while IFS= read -r line; do :; done <&3;
  kill -TERM 0;
  kill -CONT 0;
  sleep 2;
  kill -KILL 0;
};
# In a subshell, exec runs only programs, never a builtin of this shell. The shell's own messages are discarded.
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
