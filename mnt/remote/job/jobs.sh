# The jobs of this host, by plain sh: `mnt status` of many hosts shall not start a Python on each of them.
#
# The login shell sees nothing but bootstrap.COMMAND; this text is the first line of stdin (see boot.sh), so it
# ends its commands with `;`. mnt.tasks.glance writes what follows, one line each: the mark, the directory of the
# jobs, the name of this host. It makes sense of what comes back, and asks jobctl.py wherever it cannot.
#
# Lines written: `MARK begin EPOCH BOOT_ID`; `MARK job JOB` for each job; their files, each in one line behind its
# name, `JOB/HOST/about.json:{..}`; for each job that may still run `MARK stat JOB ..`, the /proc/PID/stat of its
# supervisor; `MARK end`. The spec itself stays here: there are secrets in it.
IFS= read -r mark;
IFS= read -r jobs;
IFS= read -r host || exit 98;
case $jobs in "~") jobs=$HOME;; "~/"*) jobs=$HOME/${jobs#??};; "~"*) exit 97;; esac;
LC_ALL=C; CDPATH=; export LC_ALL;
read -r boot </proc/sys/kernel/random/boot_id;
echo "$mark begin $(date +%s.%N) $boot";
if cd -P -- "$jobs" 2>/dev/null; then
  set -- */"$host"/spec.json;
  [ $# -le 200 ] || exit 97;
  if [ -e "$1" ] || [ $# -gt 1 ]; then
    for spec in "$@"; do echo "$mark job ${spec%%/*}"; done;
    grep -Hs "" */"$host"/about.json */"$host"/state.json /dev/null;
    for place in /tmp/mnt-*/*/"$host"; do
      job=${place%/*}; job=${job##*/}; state=; line=;
      [ ! -r "$job/$host/state.json" ] || IFS= read -r state <"$job/$host/state.json";
      pid=${state##*\"supervisor\": \{\"pid\": }; pid=${pid%%[!0-9]*};
      [ -z "$pid" ] || [ ! -r "/proc/$pid/stat" ] || { read -r line <"/proc/$pid/stat"; } 2>/dev/null;
      [ -z "$line" ] || echo "$mark stat $job $line";
    done;
  fi;
fi;
echo "$mark end";
