"""StockArithmetic-v1: a fictitious inventory exercise with an exact verifier."""
