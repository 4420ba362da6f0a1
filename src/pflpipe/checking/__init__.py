"""The check of a certificate. It imports nothing else of the package, so that it is a second
opinion."""
