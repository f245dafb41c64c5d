"""The forms of what hosts and the head tell each other, where both check them. Runs on a host: Python 3.8."""

from __future__ import annotations

JOB_NAME = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z"  # also the name of a directory
ABBREVIATION = 3  # characters of an abbreviated name of a job, at least
HOST = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}"  # within a text
HOST_NAME = rf"\A{HOST}\Z"  # also the name of a directory, and in an inventory
MOST_PID = 2**22  # PID_MAX_LIMIT, proc(5)
CALENDAR_END = 253402214400  # epoch seconds: the last day of the year 9999
EXPOSED = "another user could exchange it"  # why boot.sh does not run an interpreter begins with this
CONNECTED = "connected"  # the state of the link between two supervisors that hear each other
MOST_USES = 10  # of a release that are listed
LOG_JSON = 320 * 1024  # bytes in JSON of a part of a log
NICS = 384  # of a host that are told
ADDRESSES = 64  # of a NIC and family, or of a name
ENVIRONMENTS = 64  # of Python, of a host
STORAGE = 32  # mounts of a host whose files other hosts may have too
LONGEST_PATH = 4096  # characters; PATH_MAX of Linux, in bytes
FETCH_PIECE = 192 * 1024  # bytes of a file in a frame; base64 makes them 256 KiB
FETCH_FILES = 100_000  # that a host sends at most
FETCH_LIST = 16 * 1024 * 1024  # bytes of their names, as `held` counts them


def may_mean(text: str, job: str) -> bool:
    """Whether a text may mean a job: its name, the beginning of it, or of what follows its last `-`."""
    if len(text) < ABBREVIATION:
        return text == job
    return job.startswith(text) or job.rpartition("-")[2].startswith(text)


def held(text: str | None) -> int:
    """Bytes of memory that the characters of a text take: the widest makes all of them as wide (PEP 393)."""
    if not text or text.isascii():
        return len(text or "")
    return len(text) * (4 if max(text) > "\uffff" else 2)


def _address_pattern() -> str:
    """The pattern of a numeric IPv4 or IPv6 address (RFC 4291, section 2.2), the latter with a zone or not.

    The addresses that `ipaddress` of Python 3.11 accepts: that of Python 3.8 accepts others, and no zones.
    """
    octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    v4, group = rf"{octet}(?:\.{octet}){{3}}", "[0-9a-fA-F]{1,4}"
    forms = [rf"(?:{group}:){{6}}(?:{group}:{group}|{v4})"]
    for left in range(8):  # groups before the "::", which stands for at least one
        before = rf"(?:{group}:){{{left - 1}}}{group}" if left else ""
        after = [
            rf"(?:{group}:){{0,{most}}}{end}"
            for most, end in ((6 - left, group), (5 - left, v4))
            if most >= 0
        ]
        forms.append(rf"{before}::(?:{'|'.join([*after, ''])})")
    return rf"\A(?:{v4}|(?:{'|'.join(forms)})(?:%[A-Za-z0-9_.-]{{1,64}})?)\Z"


ADDRESS = _address_pattern()
