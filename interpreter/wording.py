"""Words for numbers of things, as operators read them. Pure."""


def counted(number: int, noun: str) -> str:
    """Return ``1 sandbox``, ``2 sandboxes``: for nouns whose plural ends in s, or in es after x and s."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('x', 's')) else 's'}"
