# Ends a command's process group when the head is gone, for a command whose standard input comes from the head.
#
# Started like run.sh, in a second session. Lines read: the mark, which is echoed; the process group; and, when the
# command has ended by itself, any line. If stdin ends before that, the group gets TERM, CONT and, two seconds later, KILL.
IFS= read -r mark;
IFS= read -r group || exit 98;
echo "$mark";
trap "" HUP INT TERM;
IFS= read -r line && exit 0;
exec >/dev/null 2>&1;
kill -TERM "-$group";
kill -CONT "-$group";
sleep 2;
kill -KILL "-$group";
