# Who else could exchange what is at a path: the rule of mnt.remote.common.owners, in plain sh.
#
# boot.sh and run.sh begin with this text (mnt.tasks), playbooks/tasks/image.sh gets it as a variable. As boot.sh, it is
# one line when it is sent: each command ends with `;`.
nl=${IFS#??};
listed() { getent "$@" 2>/dev/null || cat "/etc/$1"; };
# Whether this user's own group has this id, and no other member: useradd makes such groups.
own_group() {
  [ "$me" = "$(id -u)" ] && [ "$1" = "$(id -g)" ] && [ "$(id -gn)" = "$(id -un)" ] || return 1;
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
  login=$(listed passwd "$1" | while IFS=: read -r name secret id rest; do [ "$id" != "$1" ] || echo "$name"; done);
  case " $(id -G -- "${login%%"$nl"*}" 2>/dev/null) " in *" $shared "*) ;; *) return 1;; esac;
};
# Reads lines of /proc/self/mountinfo: 1 if one is of a file system (FUSE) of a user who is not accepted, whose word its
# owners and modes are; 2 if there is no line; else 0.
judge_mounts() {
  none=2;
  while IFS= read -r line; do
    none=0 line=${line##* - };
    case $line in "fuse "*user_id=*|fuse.*user_id=*|fuseblk*user_id=*)
      line=${line##*user_id=};
      case $accepted in *" ${line%%,*} "*) ;; *) return 1;; esac;;
    esac;
  done;
  return $none;
};
# The same for the mount of descriptor 9, which is pinned by it. One that is not listed was unmounted (umount -l) when it
# was entered; that of / may not be listed in a chroot. (Before Linux 5.8 an unmount may hide another line: so it is
# looked for twice.)
judge_held() {
  key= new=;
  { read -r key; read -r key; read -r key new; } </proc/self/fdinfo/9;
  [ "$key" = mnt_id: ] && [ -n "$new" ] || return 2;
  [ -n "$mount" ] || top=$new mount=$new;
  [ "$new" != "$mount" ] || return 0;
  mount=$new;
  [ "$new" != "$top" ] || return 0;
  grep -a "^$new " /proc/self/mountinfo | judge_mounts;
  code=$?;
  [ $code = 2 ] || return $code;
  grep -a "^$new " /proc/self/mountinfo | judge_mounts;
};
# Says who could exchange what is at a path ($1), or a directory or a link on the way there, besides root, the user $2
# (uid), and whom `owner` and `group` name if they are not empty; nothing, with 0, if nobody could. With 3 it says
# `LEVEL does not exist`. Each level is entered from the one above it, and judged as what was entered; it must still have
# its path afterwards. (`ls` of busybox does not show that there is an access control list: there it counts as the mode
# of the group.)
stranger() (
  set -f;
  LC_ALL=C PATH=/usr/bin:/bin:$PATH;
  export LC_ALL;
  me=$2 here=/ left=$1 name=. links=0 mount= top=;
  case $left in /*) ;; *) left=$PWD/$left;; esac;
  accepted=" 0 $me ";
  [ -z "$owner" ] || accepted="$accepted$(id -u -- "$owner" 2>/dev/null || echo "$owner") ";
  read -r first outside count </proc/self/uid_map;
  [ "$first $outside $count" = "0 0 4294967295" ] || accepted="$accepted$(cat /proc/sys/kernel/overflowuid) ";
  shared=;
  [ -z "$group" ] || shared=$(listed group "$group" | while IFS=: read -r name secret id rest; do
    [ "$name" != "$group" ] || echo "$id"; done);
  shared=${shared%%"$nl"*};
  grep -aq " - fuse.*,user_id=" /proc/self/mountinfo;
  fuse=$?;
  cd / || exit 1;
  while :; do
    code=0 found= type=;
    if [ "$fuse" != 1 ] && [ "$here" != / ]; then
      grep -aF " $here " /proc/self/mountinfo | judge_mounts;
      [ $? != 1 ] || { echo "another user has mounted a file system on $here"; exit 1; };
    fi;
    if [ -L "./$name" ]; then
      at=./$name found=$(ls -ldn -- "./$name") type=l;
    elif [ -d "./$name" ]; then
      cd -P -- "./$name" 2>/dev/null || { echo "$here cannot be entered"; exit 1; };
      code=2;
      if [ -r . ]; then
        { judge_held; code=$?; } 9<.;
      else
        case $here in *[\\[:space:]]*) ;; *)
          { grep -a "^$mount " /proc/self/mountinfo; grep -aF " $here " /proc/self/mountinfo; } | judge_mounts;
          code=$?;;
        esac;
      fi;
      at=. found=$(ls -ldn . /proc/self/cwd; echo .) type=d;
      case $found in *" -> $here$nl.") ;; *) found=;; esac;
    elif [ -f "./$name" ]; then
      at=./$name type=-;
      { judge_held;
        code=$?;
        found=$(ls -ldnL /proc/self/fd/9 9<&9);
        [ "$(readlink -n /proc/self/fd/9 9<&9; echo .)" = "$here." ] || found=;
      } 9<"./$name";
    elif [ ! -e "./$name" ]; then
      echo "$here does not exist"; exit 3;
    fi;
    case $code in
      0) ;;
      1) echo "another user has mounted a file system on $here"; exit 1;;
      *) echo "it is unknown who has mounted what is at $here"; exit 1;;
    esac;
    set -- $found;
    case $# in [0-3]) type=none;; esac;
    case ${1-} in "$type"*) ;; *) echo "$here cannot be looked at"; exit 1;; esac;
    case $accepted in
      *" $3 "*) ;;
      *) member "$3" || { echo "$here belongs to $(stat -c %U -- "$at") (uid $3)"; exit 1; };;
    esac;
    case $1 in
      l*|d????????[tT]*) ;;
      ????????w*) echo "all users can write to $here"; exit 1;;
      ?????w????+*) echo "its access control list lets others write to $here"; exit 1;;
      ?????w*) [ "$4" = "$shared" ] || own_group "$4" || { echo "its group (gid $4) can write to $here"; exit 1; };;
    esac;
    if [ $type = l ]; then
      links=$((links + 1));
      [ "$links" -le 40 ] || { echo "$here leads nowhere"; exit 1; };
      target=$(readlink -n -- "./$name"; echo .);
      left=${target%.}/$left;
      here=${here%/*};
      case $left in /*) here=/ mount=$top; cd /;; esac;
    fi;
    while :; do
      while [ "$left" != "${left#/}" ]; do left=${left#/}; done;
      [ -n "$left" ] || exit 0;
      name=${left%%/*};
      left=${left#"$name"};
      case $name in
        .) continue;;
        ..) left=${here%/*}/$left here=/ mount=$top; cd /; continue;;
      esac;
      here=${here%/}/$name;
      break;
    done;
  done;
);
