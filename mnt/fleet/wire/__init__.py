"""What a login gives: a transport, commands over its channels, and OpenSSH's client in their place."""
