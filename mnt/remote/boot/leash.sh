# Ends a command's process group when the head is gone: for a command whose own standard input is the head's.
#
# Started like run.sh, beside it. Lines read: the mark, which is answered; the process group; and, once the
# command has ended by itself, any line. Should stdin end before, the group gets TERM and, two seconds later, KILL.
IFS= read -r mark;
IFS= read -r group || exit 98;
echo "$mark";
trap "" HUP INT TERM;
IFS= read -r line && exit 0;
exec >/dev/null 2>&1;
kill -TERM "-$group";
sleep 2;
kill -KILL "-$group";
