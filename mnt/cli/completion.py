"""`mnt completion`: what makes a shell complete the words of `mnt`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from mnt import ui


class _Bash(BashComplete):
    """Bash splits words before `@`, and after `:` and `=`, and expects what replaces the last part.

    What it inserts is not quoted (`printf %q` would, also each comma): so words with other characters are no
    offers. Files are completed by readline, which quotes them.
    The name of the function, and the variables, are those of click 8.
    """

    source_template = """\
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} words number typed before= kind value
    read -ra words <<<"$line"
    number=$((${#words[@]} - 1))
    case $line in *[[:space:]]) number=${#words[@]} ;; esac
    typed=${words[number]:-}
    case $typed in
        *@*) before=${typed%%"@${typed##*@}"} ;;
        *[:=]*) before=${typed%%"${typed##*[:=]}"} ;;
    esac
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) case $value in
                *[!][A-Za-z0-9_.,@:=+/-]*) ;;
                *) COMPREPLY+=("${value#"$before"}") ;;
            esac ;;
        esac
    done < <(COMP_WORDS=$line COMP_CWORD=$number %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Fish(FishComplete):
    """click 8 splits an offer at each comma; in a hostlist there are several."""

    source_template = """\
function %(complete_func)s
    set -l words (commandline -cp) (commandline -ct)
    for offer in (env %(complete_var)s=fish_complete COMP_WORDS=$words[1] COMP_CWORD=$words[2] %(prog_name)s)
        set -l parts (string split -m 1 , $offer)
        switch $parts[1]
            case dir
                __fish_complete_directories $words[2]
            case file
                __fish_complete_path $words[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments '(%(complete_func)s)'
"""


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": _Fish}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options, hosts, groups, checks and jobs of `mnt`.

    \b
    bash, in ~/.bashrc:    eval "$(mnt completion bash)"
    zsh, in ~/.zshrc:      eval "$(mnt completion zsh)"
    fish:                  mnt completion fish > ~/.config/fish/completions/mnt.fish
    """
    from mnt.cli import cli

    ui.lines(_SHELLS[shell](cli, {}, "mnt", "_MNT_COMPLETE").source().strip("\n"))
