"""Privacy plans, the only code that draws privacy noise, accounting and the ledger."""
