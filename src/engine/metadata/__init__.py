"""Small facts that must survive and be agreed upon: one interface, kept in SQLite or in memory."""
