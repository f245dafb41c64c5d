"""`mnt fetch`: files of the hosts, brought to the head. `places` and `plan` are pure; `store` writes here."""
