"""Trust in host keys, and logins by key: `mnt trust` and `mnt ssh-setup`."""
