"""Private: the sums over neighbours that one propagation step consists of, one file per map kind."""
