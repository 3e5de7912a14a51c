"""Identities and rights: which principal a peer is, what its role may do, the audit of denials. Loop thread only."""
