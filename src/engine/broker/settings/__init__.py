"""What an operator sets, and what guards each port: configuration, tokens, TLS, failed attempts."""
