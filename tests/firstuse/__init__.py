"""What new users do first, as they would do it."""
