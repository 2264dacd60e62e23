"""Files of tenants, reached through descriptors only: names, confined opening, and what is done with what was opened."""
