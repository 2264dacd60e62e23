"""Executions: what one is and becomes, its events, its result while it is kept, and the work of running it."""
