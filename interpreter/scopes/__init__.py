"""The data root: which directories belong to a scope, who owns them, and how they are removed."""
