"""The whole product: a real service in a process of its own, real bubblewrap sandboxes, HTTP from outside."""
