"""Code of a row, the user's and the package's: found, called, and identified by digests."""
