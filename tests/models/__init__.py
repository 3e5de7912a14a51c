"""Models of protocols, explored exhaustively: every interleaving of a small instance, with each rule on and off."""
