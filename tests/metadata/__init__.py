"""The conformance suite of metadata stores."""
