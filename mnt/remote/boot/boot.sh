# First stage on a host: plain sh that finds a Python, which reads the rest of stdin.
#
# The login shell gets only bootstrap.COMMAND. judge.sh and this text are the first line of stdin: their lines joined by
# spaces, without the comments, so each command ends with `;`. `read -r` reads one byte at a time, so that nothing after
# the lines that are read here is lost.
#
# Lines read: the mark; the process group of an attempt that hung, or nothing; why the configured interpreter
# is not tried, or nothing; the user besides this one and root whose interpreter is run, or nothing, or * for anybody's;
# the group whose members' is, or nothing; the Python stub; the number of words of the interpreter; the words.
#
# Lines written: `MARK sh PID`, `MARK tried CODE WORDS`, `MARK fact KEY VALUE`, `MARK none`.
IFS= read -r mark;
IFS= read -r stale;
IFS= read -r why;
IFS= read -r owner;
IFS= read -r group;
IFS= read -r stub;
IFS= read -r count || exit 98;
echo "$mark sh $$";
[ -z "$stale" ] || kill -9 "-$stale" 2>/dev/null;
set --;
while [ "$count" -gt 0 ]; do
  IFS= read -r word || exit 98;
  case $word in "~/"*) word=$HOME/${word#??};; esac;
  set -- "$@" "$word";
  count=$((count - 1));
done;
# A job has none of these (spec.SESSION_VARIABLES): what a start-up file sets could stop Python, or name other packages.
unset PYTHONHOME PYTHONPATH PYTHONUTF8 PYTHONIOENCODING PYTHONHASHSEED PYTHONWARNINGS PYTHONINSPECT;
# Python exits with 0 after an answer, with 97 if it is too old, with 98 if stdin has ended. One that another user could
# exchange is not run: whoever that is could run code as this user.
try() {
  if path=$(command -v "$1" 2>/dev/null); then
    if [ "$owner" = "*" ] || problem=$(stranger "$path" "$(id -u)"); then
      "$@" -c "$stub" "$why" "$@" && exit 0;
      code=$?;
    else
      code=96;
    fi;
    case $code in
      96) reason="another user could exchange it: ${problem:-it cannot be judged}";;
      97) reason="older than Python 3.8: $*";;
      98) exit 98;;
      126|127) reason="cannot be run: $*";;
      *) reason="exit code $code: $*";;
    esac;
  else
    code=127;
    reason="not found: $1";
  fi;
  echo "$mark tried $code $*";
  [ -n "$why" ] || why=$reason;
};
[ $# -eq 0 ] || try "$@";
names="python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8";
for candidate in $names /usr/bin/python3 /usr/local/bin/python3 "$HOME/.local/bin/python3"; do
  try "$candidate";
done;
echo "$mark fact hostname $(uname -n)";
echo "$mark fact kernel $(uname -s -r)";
[ ! -r /etc/os-release ] || (. /etc/os-release; echo "$mark fact os $PRETTY_NAME");
echo "$mark none";
