"""The longest match in some texts, found by trying every position."""


def search(texts, tokens, longest):
    """Return the length of the longest match, and every continuation of it."""
    for size in range(min(longest, len(tokens)), 0, -1):
        found = [
            text[end:]
            for text in texts
            for end in range(size, len(text))
            if text[end - size : end] == tokens[-size:]
        ]
        if found:
            return size, found
    return 0, []
