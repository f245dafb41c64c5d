"""Which host keys are trusted, and who may log in: `mnt trust` and `mnt ssh-setup`."""
