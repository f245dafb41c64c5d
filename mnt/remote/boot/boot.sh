# First stage on a host: plain sh that finds a Python, which reads the rest of stdin.
#
# The login shell gets only bootstrap.COMMAND. This text is the first line of stdin: its lines joined by spaces,
# without the comments, so each command ends with `;`. `read -r` reads one byte at a time, so that nothing after
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
nl=${IFS#??};
listed() { getent "$@" 2>/dev/null || cat "/etc/$1"; };
# Whether this user's own group has this id, and no other member: useradd makes such groups.
own_group() {
  [ "$1" = "$(id -g)" ] && [ "$(id -gn)" = "$(id -un)" ] || return 1;
  { listed group "$1"; listed group; } | (while IFS=: read -r name secret id members; do
    [ "$id" != "$1" ] || [ -z "$members" ] || [ "$members" = "$(id -un)" ] || exit 1;
  done) || return 1;
  listed passwd | (while IFS=: read -r name secret id gid rest; do
    [ "$gid" != "$1" ] || [ "$id" = "$me" ] || exit 1;
  done);
};
# Whether a user, by uid, is a member of the group that the inventory names.
member() {
  [ -n "$shared" ] || return 1;
  name=$(listed passwd "$1" | while IFS=: read -r name secret id rest; do [ "$id" != "$1" ] || echo "$name"; done);
  case " $(id -G -- "${name%%"$nl"*}" 2>/dev/null) " in *" $shared "*) ;; *) return 1;; esac;
};
# Who else could exchange what is at a path, or a directory or a link on the way there: see mnt.remote.common.owners. The
# levels are judged from / on, so that nobody else can exchange one that is judged. It prints nothing if nobody could.
# (`ls` of busybox does not show that there is an access control list: there it counts as the mode of the group.)
stranger() (
  [ "$owner" != "*" ] || exit 0;
  set -f;
  PATH=/usr/bin:/bin:$PATH;
  me=$(id -u) here=/ left=$1 links=0;
  case $left in /*) ;; *) left=$PWD/$left;; esac;
  accepted=" 0 $me ";
  [ -z "$owner" ] || accepted="$accepted$(id -u -- "$owner" 2>/dev/null || echo "$owner") ";
  read -r first outside count </proc/self/uid_map;
  [ "$first $outside $count" = "0 0 4294967295" ] || accepted="$accepted$(cat /proc/sys/kernel/overflowuid) ";
  shared=;
  [ -z "$group" ] || shared=$(listed group "$group" | while IFS=: read -r name secret id rest; do
    [ "$name" != "$group" ] || echo "$id"; done);
  shared=${shared%%"$nl"*};
  mounted=$(grep " fuse" /proc/self/mounts | while read -r source point kind options rest; do
    case $kind,$options in
      fuse,*user_id=*|fuse.*,*user_id=*|fuseblk,*user_id=*)
        id=${options##*user_id=};
        case $accepted in *" ${id%%,*} "*) ;; *) printf "%b%s" "$point" "$nl";; esac;;
    esac;
  done);
  while :; do
    case $nl$mounted$nl in *"$nl$here$nl"*) echo "another user has mounted a file system on $here"; exit;; esac;
    set -- $(LC_ALL=C ls -ldn -- "$here" 2>/dev/null);
    [ $# -gt 4 ] || { echo "$here cannot be looked at"; exit; };
    case $accepted in
      *" $3 "*) ;;
      *) member "$3" || { echo "$here belongs to $(stat -c %U -- "$here") (uid $3)"; exit; };;
    esac;
    case $1 in
      l*|d????????[tT]*) ;;
      ????????w*) echo "all users can write to $here"; exit;;
      ?????w????+*) echo "its access control list lets others write to $here"; exit;;
      ?????w*) [ "$4" = "$shared" ] || own_group "$4" || { echo "its group (gid $4) can write to $here"; exit; };;
    esac;
    case $1 in l*)
      links=$((links + 1));
      [ "$links" -le 40 ] || { echo "$here leads nowhere"; exit; };
      target=$(readlink -n -- "$here"; echo .);
      left=${target%.}/$left;
      case $left in /*) here=/;; *) here=${here%/*};; esac;;
    esac;
    while :; do
      while [ "$left" != "${left#/}" ]; do left=${left#/}; done;
      [ -n "$left" ] || exit 0;
      name=${left%%/*};
      left=${left#"$name"};
      case $name in .) continue;; ..) here=${here%/*}; continue;; esac;
      here=${here%/}/$name;
      break;
    done;
  done;
);
# Python exits with 0 after an answer, with 97 if it is too old, with 98 if stdin has ended. One that another user could
# exchange is not run: whoever that is could run code as this user.
try() {
  if path=$(command -v "$1" 2>/dev/null); then
    if problem=$(stranger "$path") && [ -z "$problem" ]; then
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
