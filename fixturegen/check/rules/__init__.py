"""The catalogue: one module a rule or tight family of rules. Discovered, never listed."""
