"""Private: the sums over neighbours that a propagation step consists of, a file per map kind."""
