"""Participation in transactions: headers, operation records, and each segment's undecided messages."""
