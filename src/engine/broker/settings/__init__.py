"""Configuration and access control: settings, tokens, TLS, failed attempts. Loop thread only."""
