"""The user's ssh_config: the settings for a host.

The rules are those of ssh_config(5) of OpenSSH 9: the first value found wins, IdentityFile accumulates, a
`Host` line matches if one of its patterns does and none of its negated patterns, an included file is under
the condition of the line that includes it. If a file needs more than names (`Match`, CanonicalizeHostname),
`ssh -G` is asked instead.
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
import string
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mnt.errors import UsageError
from mnt.fleet.login.includes import Includes
from mnt.fleet.login.own import check_own
from mnt.paths import expanded
from mnt.remote.common.files import read_bytes, strerror

_USER_CONFIG = "~/.ssh/config"
_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_MOST_INCLUDES = 16  # depth, as in OpenSSH
_NOBODY = "mnt-nobody-is-named"
_SSH_G_TIMEOUT = 20.0  # seconds; a `Match exec` may run any command

_LONGEST_PATTERN = 1024  # a longer one with wildcards matches nothing, as in OpenSSH
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_MOST_FILES = 1000  # that one file includes, and those that they include
# Of all of these together. A host takes some 10 lines.
_MOST_BYTES = 4 * 1024 * 1024
_MOST_LINES = 50_000  # that are not empty
_MOST_PATTERNS = 20_000  # of Host lines
MOST_WILDCARDS = 5000  # patterns with `*` or `?`; it takes some 100 us to compile one
MOST_OF_WILDCARDS = 64 * 1024  # characters of these patterns
_LONGEST_LINE = 64 * 1024  # characters
_LONGEST_WORD = 4096  # characters of a value: as of a path
_MOST_WORDS = 32  # of a value: as many known_hosts files as OpenSSH reads
_MOST_IDENTITIES = 100  # for one host, as in OpenSSH
_FEWER = "remove blocks of hosts that are gone, or name another file: ssh: {config: ..}"

# The keywords that mnt uses. Others are ignored.
KEYWORDS = frozenset(
    {
        "hostname",
        "user",
        "port",
        "identityfile",
        "identitiesonly",
        "identityagent",
        "proxyjump",
        "proxycommand",  # only whether there is one
        "userknownhostsfile",
        "globalknownhostsfile",
        "hostkeyalias",
        "stricthostkeychecking",
        "hashknownhosts",
    }
)

# The first of these that is found disables the other, even with `none` (ssh_config(5)).
_PROXIES = {"proxyjump", "proxycommand"}

# Keyword in lower case -> its words; IdentityFile: one word per file.
Settings = Mapping[str, tuple[str, ...]]


@dataclass
class Block:
    """Lines under the same conditions: lists of `Host` patterns, all of which must match."""

    conditions: tuple[tuple[str, ...], ...]
    lines: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


class NeedsSsh(Exception):
    """The file has a keyword that only ssh itself can evaluate."""


class SshConfig:
    """A configuration file, read once. Thread-safe.

    Args:
        path: the inventory's `ssh.config`; None: no file. With the user's own file the system-wide file is
            read too, as ssh does; any other file is read alone, as with `ssh -F`. The user's own file need
            not exist.

    Raises UsageError for a file that cannot be read or parsed, or that another user could have written: ssh
    refuses such files too, but does not look at the directories above them, nor at the file of `ssh -F`.
    """

    def __init__(self, path: str | None) -> None:
        self._file: str | None = None
        self._blocks: list[Block] | None = []
        if path is None:
            return
        files = [path]
        if path == _USER_CONFIG:
            files = [name for name in (path, _SYSTEM_CONFIG) if os.path.exists(os.path.expanduser(name))]
        else:
            self._file = path
        try:
            self._blocks = [block for name in files for block in parse(name)]
        except NeedsSsh:
            self._blocks = None

    def lookup(
        self, name: str, address: str, *, user: str | None = None, port: int | None = None
    ) -> Settings:
        """The settings for a host with this name and address (often the same).

        HostName is looked up for the address alone: the inventory's address wins over a HostName that the
        file has for the name. Its tokens (`%h`, `%%`) are expanded.

        Args:
            user, port: those that are known already, for `Match user` and the tokens of `Match exec`.
        """
        if self._blocks is None:
            return ask_ssh(name, address, self._file, user=user, port=port)
        found = dict(settings_of(self._blocks, (name, address)))
        found.pop("hostname", None)
        hostname = settings_of(self._blocks, (address,)).get("hostname")
        if hostname:
            tokens = {"%h": address, "%%": "%"}
            found["hostname"] = (re.sub("%[h%]", lambda token: tokens[token[0]], hostname[0]),)
        return found


def parse(path: str) -> list[Block]:
    """The blocks of a file and of the files that it includes, in order. Raises NeedsSsh, UsageError."""
    parser = _Parser()
    blocks = parser.parse(path, (), 0)
    if parser.needs_ssh:
        raise NeedsSsh(parser.needs_ssh)
    return blocks


class _Parser:
    """Parses a file with those that it includes, of which the number and size are limited."""

    def __init__(self) -> None:
        self._files = self._bytes = self._lines = 0
        self._patterns = self._wildcards = self._wild = 0
        self._includes = Includes()
        self._judged: set[str] = set()
        self.needs_ssh = ""  # a keyword; the rest is still parsed, because ssh itself has no limits

    def parse(self, path: str, conditions: tuple[tuple[str, ...], ...], depth: int) -> list[Block]:
        blocks = [Block(conditions)]
        for number, line in enumerate(self._read(path, depth).split("\n"), start=1):
            if not line:
                continue
            where = f"{path}:{number}"
            if "\0" in line:  # ssh would read no further
                raise UsageError(f"{where}: a NUL byte", fix="remove it")
            self._lines += 1
            if self._lines > _MOST_LINES or len(line) > _LONGEST_LINE:
                much = f"{_MOST_LINES:,} lines, or {_LONGEST_LINE:,} characters in one"
                raise UsageError(f"{where}: more than {much}", fix=_FEWER)
            keyword, words = _split(line, where)
            if keyword == "host":
                self._count(words, where)
                blocks.append(Block((*conditions, words)))
            elif keyword == "match" and [word.lower() for word in words] == ["all"]:
                blocks.append(Block(conditions))
            elif keyword == "match" or (keyword == "canonicalizehostname" and words != ("no",)):
                self.needs_ssh = keyword
            elif keyword == "include":
                here = blocks[-1].conditions
                for pattern in words:
                    for name in self._includes.files(_absolute(pattern, path, where), where):
                        blocks += self.parse(name, here, depth + 1)
                blocks.append(Block(here))
            elif keyword == "proxycommand":
                blocks[-1].lines.append((keyword, words))  # of any length: only ssh uses it
            elif keyword in KEYWORDS:
                if len(words) > _MOST_WORDS or max(map(len, words), default=0) > _LONGEST_WORD:
                    much = f"{_MOST_WORDS} words, or {_LONGEST_WORD:,} characters in one"
                    raise UsageError(f"{where}: more than {much}", fix="see man ssh_config")
                blocks[-1].lines.append((keyword, words))
        return [block for block in blocks if block.lines]

    def _count(self, patterns: Sequence[str], where: str) -> None:
        """Refuse more patterns than can be tried on each host."""
        wild = [len(pattern) for pattern in patterns if "*" in pattern or "?" in pattern]
        self._patterns += len(patterns)
        self._wildcards += len(wild)
        self._wild += sum(wild)
        if self._patterns > _MOST_PATTERNS:
            raise UsageError(f"{where}: more than {_MOST_PATTERNS:,} names after Host", fix=_FEWER)
        if self._wildcards > MOST_WILDCARDS or self._wild > MOST_OF_WILDCARDS:
            much = f"{MOST_WILDCARDS:,} patterns with wildcards, or {MOST_OF_WILDCARDS:,} characters in them"
            raise UsageError(f"{where}: more than {much}", fix=_FEWER)

    def _read(self, path: str, depth: int) -> str:
        if depth > _MOST_INCLUDES:
            raise UsageError(f"{path}: too many levels of Include")
        if path not in self._judged:
            check_own(path)
            self._judged.add(path)
        try:
            data = read_bytes(expanded(path), _MOST_BYTES, any_kind=depth == 0)
        except OSError as error:
            raise UsageError(f"{path}: {strerror(error)}", fix="check ssh.config in the inventory") from None
        self._files += 1
        self._bytes += len(data)
        if self._files > _MOST_FILES or self._bytes > _MOST_BYTES:
            raise UsageError(
                f"{path}: with Include, more than {_MOST_FILES} files or {_MOST_BYTES:,} bytes",
                fix="look for a file that includes itself",
            )
        return data.decode("utf-8", "surrogateescape")


# A part of a line: space, a comment, quoted text, a quote that is not closed, plain text.
_PART = re.compile(
    r"(?P<space>\s+)|(?P<comment>#)|\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<open>[\"'])|(?P<plain>[^\s#\"']+)"
)


def _split(line: str, where: str) -> tuple[str, tuple[str, ...]]:
    """A line as its keyword, in lower case, and its words; ("", ()) for an empty line or a comment."""
    match = re.match(r"\s*([^\s#=]+)(?:\s*=\s*|\s+)(.*)", line, re.DOTALL)
    if match is None:
        if line.strip() and not line.lstrip().startswith("#"):
            raise UsageError(f"{where}: no value: {line.strip()!r}", fix="see man ssh_config")
        return "", ()
    if not re.search("[#\"']", match[2]):  # nearly every line: the others take ten times as long
        return match[1].lower(), tuple(match[2].split())
    words: list[list[str]] = [[]]
    for part in _PART.finditer(match[2]):
        if part.lastgroup == "open":
            raise UsageError(f"{where}: a quote is not closed", fix="see man ssh_config")
        if part.lastgroup == "comment":
            break
        if part.lastgroup == "space":
            words.append([])
        else:
            words[-1].append(part[part.lastgroup or 0])
    return match[1].lower(), tuple("".join(parts) for parts in words if parts)


def _absolute(pattern: str, path: str, where: str) -> str:
    """The path of an Include line. A relative one is in ~/.ssh, or in /etc/ssh if the file is there.

    Raises UsageError for a path that no file can have.
    """
    try:
        base = "/etc/ssh" if path.startswith("/etc/ssh/") else expanded("~/.ssh")
        return os.path.join(base, expanded(pattern))
    except OSError as error:
        raise UsageError(f"{where}: Include: {strerror(error)}", fix="correct this line") from None


def settings_of(blocks: Sequence[Block], names: Sequence[str]) -> Settings:
    """The settings in `blocks` for a host known by any of `names`. Raises UsageError for too many keys."""
    found: dict[str, tuple[str, ...]] = {}
    verdicts: dict[int, bool] = {}  # all files that a block includes have its patterns

    def applies(patterns: Sequence[str]) -> bool:
        if id(patterns) not in verdicts:
            verdicts[id(patterns)] = matches(patterns, names)
        return verdicts[id(patterns)]

    for block in blocks:
        if not all(map(applies, block.conditions)):
            continue
        for keyword, words in block.lines:
            if keyword == "identityfile":
                found[keyword] = (*found.get(keyword, ()), *words)
                if len(found[keyword]) > _MOST_IDENTITIES:
                    message = f"{names[0]}: more than {_MOST_IDENTITIES} IdentityFile in ssh_config"
                    raise UsageError(message, fix="see man ssh_config")
            elif keyword not in _PROXIES or not _PROXIES & found.keys():
                found.setdefault(keyword, words)
    if found.get("proxycommand") == ("none",):
        del found["proxycommand"]
    return found


def matches(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Whether OpenSSH's patterns (ssh_config(5), PATTERNS) match a host known by any of `names`."""

    lowered = [lower(name) for name in names]

    def fits(pattern: str) -> bool:
        pattern = lower(pattern)
        if "*" not in pattern and "?" not in pattern:
            return pattern in lowered
        return len(pattern) <= _LONGEST_PATTERN and any(_fits(pattern, name) for name in lowered)

    if any(fits(pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(fits(pattern) for pattern in patterns if not pattern.startswith("!"))


def lower(text: str) -> str:
    """Text with A to Z in lower case; only these, as in OpenSSH: others have no case in a host's name."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def _fits(pattern: str, name: str) -> bool:
    """Whether a pattern with `*` and `?` matches."""
    first, *_, last = re.split("[*?]", pattern)
    return name.startswith(first) and name.endswith(last) and _regex(pattern).match(name) is not None


@lru_cache(MOST_WILDCARDS)
def _regex(pattern: str) -> re.Pattern[str]:
    """It never takes more than len(pattern) x len(name) steps: fnmatch's stars are atomic."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def ask_ssh(
    name: str, address: str, file: str | None, *, user: str | None = None, port: int | None = None
) -> Settings:
    """The settings by `ssh -G`, as `SshConfig.lookup`. Raises UsageError if it fails."""
    address = address.strip("[]")
    # An address may have a zone, fe80::1%eth0, and HostName has tokens (ssh_config(5), TOKENS).
    options = ["-o", f"HostName={address.replace('%', '%%')}"] if address != name else []
    if user is not None:
        options += ["-l", user]
    if port is not None:
        options += ["-p", str(port)]
    found = _asked(name, [] if file is None else ["-F", os.path.expanduser(file)], options)
    if user is None and found.get("user") == (_own_name(),) and not _names_user(name, file, options):
        del found["user"]
    return without_defaults(found)


def _names_user(name: str, file: str | None, options: Sequence[str]) -> bool:
    """Whether a file has a User for the host: without one, `ssh -G` prints the name of whoever asks."""
    files = [file] if file is not None else [_USER_CONFIG, _SYSTEM_CONFIG]
    includes = "".join(f'Match all\nInclude "{os.path.expanduser(each)}"\n' for each in files)
    # A file without a name, which nobody can exchange. Of what ssh inherits, it keeps only the first three.
    with open(os.memfd_create("ssh_config"), "wb", buffering=0) as config:
        config.write(os.fsencode(f"{includes}Match all\nUser {_NOBODY}\n"))
        found = _asked(name, ["-F", "/proc/self/fd/0"], options, stdin=config.fileno())
    return found.get("user") != (_NOBODY,)


def _own_name() -> str:
    """The user that ssh logs in as by default: it asks for no variable of the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _asked(
    name: str, config: Sequence[str], options: Sequence[str], *, stdin: int = subprocess.DEVNULL
) -> dict[str, tuple[str, ...]]:
    """The settings as `ssh -G` prints them. Raises UsageError if it fails."""
    try:
        done = subprocess.run(
            ["ssh", "-G", *config, *options, "--", name],
            stdin=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SSH_G_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(
            "the ssh_config uses Match, which only the OpenSSH client can evaluate, and it is not installed",
            fix="apt-get install openssh-client, or remove Match",
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"ssh -G {name}: no answer within {_SSH_G_TIMEOUT:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise UsageError(f"ssh -G {name}: {last}")
    found: dict[str, tuple[str, ...]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        if keyword == "identityfile":
            found[keyword] = (*found.get(keyword, ()), value)
        elif keyword in KEYWORDS:
            found[keyword] = tuple(value.split())
    return found


# What `ssh -G` prints if nothing is configured (OpenSSH 8.4 to 9.9).
_DEFAULT_IDENTITIES = re.compile(r"~/\.ssh/id_(rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk|xmss)$")
_DEFAULTS = {
    "userknownhostsfile": ("~/.ssh/known_hosts", "~/.ssh/known_hosts2"),
    "globalknownhostsfile": ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
    "proxyjump": ("none",),
}


def without_defaults(found: Settings) -> Settings:
    """Settings of `ssh -G` without its defaults."""

    def is_default(keyword: str, words: tuple[str, ...]) -> bool:
        if keyword == "identityfile":
            return all(_DEFAULT_IDENTITIES.match(name) for name in words)
        return words == tuple(map(os.path.expanduser, _DEFAULTS.get(keyword, ())))

    return {keyword: words for keyword, words in found.items() if not is_default(keyword, words)}
