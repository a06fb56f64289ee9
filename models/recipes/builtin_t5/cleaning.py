"""Normalize messages and filter the pairs for translation."""

from __future__ import annotations

import html
import re

from recipes.builtin_t5.docstrings import normal

LONGEST = 60  # words
PLACEHOLDER = re.compile(
    r"%(?:\d+\$)?(?:\([^)]*\)|\{[^}]*\})?[-+#0]*[\d.*]*(?:hh|h|ll|l|z|j|t|q)?[a-zA-Z](?![a-zA-Z])"
    r"|%(?:\d+\$)?(?:\([^)]*\)|\{[^}]*\})?[ds]"
    r"|\$?\{\{?[^{}]*\}\}?|\$\d|<ph[^>]*>"
)
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
FORMATTING = re.compile(r"</?(?:strong|b|i|em|code|kbd|u|p|small)>")
ADDRESS = re.compile(r"\w+://\S+|www\.\S+")
ENGLISH_WORDS = re.compile(r"\b(?:the|of|and|to|is|are|this|with|for|not|you|your|be|or)\b", re.IGNORECASE)
GERMAN_WORDS = re.compile(
    r"\b(?:der|die|das|den|dem|des|und|ist|sind|nicht|ein|eine|einen|einer|mit|für|von|zu|im|auf|wird|werden"
    r"|kann|oder|Sie|wurde|keine|kein|als|bei|aus|zum|zur)\b|[äöüß]",
    re.IGNORECASE,
)


def tidy(text: str, accelerators: bool) -> str:
    """Return a message on one line, without entities, link targets and accelerator keys."""
    text = html.unescape(text).replace("\u00a0", " ").replace("\u00ad", "").replace("\u200b", "")
    text = FORMATTING.sub("", re.sub(r"<br\s*/?>", " ", text))
    text = re.sub(r"\[([^\]]*)\]\((?:[^()\s]|\([^()]*\))*\)", r"\1", text)
    if accelerators:
        text = re.sub(r"\s*\(&&?\w\)", "", text)
        text = re.sub(r"&&?(?=\w)", "", text)
    return " ".join(text.split())


def placeholders(text: str) -> list[str]:
    """Return the placeholders of a message, sorted, without the numbers of their order."""
    return sorted(re.sub(r"%\d+\$", "%", found) for found in PLACEHOLDER.findall(text))


def prose_key(text: str) -> str:
    """Return the words of a text without placeholders, digits and signs; near-duplicates have equal keys."""
    return normal(TAG.sub(" ", PLACEHOLDER.sub(" ", text)))


def fault(english: str, german: str) -> str | None:
    """Return why a tidied pair is not usable, or None."""
    words = len(english.split()), len(german.split())
    if not english or not german:
        return "not translated"
    if re.search(r"\{\s*\w+,\s*(?:plural|select|number|date|selectordinal)", english + german):
        return "plural or choice in the message"
    if prose_key(english) == prose_key(german):
        return "the same in both languages"
    if max(words) > LONGEST:
        return "too long"
    if placeholders(english) != placeholders(german):
        return "other placeholders"
    for text in (english, german):
        if sum(map(len, TAG.findall(text))) > 0.15 * len(text) or re.search(r"<\w+ [^>]*=", text):
            return "markup"
        if len(ADDRESS.findall(text)) > 1 or sum(map(len, ADDRESS.findall(text))) > 0.3 * len(text):
            return "addresses"
        signs = re.sub(r"\s", "", PLACEHOLDER.sub("", text))
        if len(re.findall(r"[^\W\d_]", signs)) < 0.6 * len(signs):
            return "few letters"
    if len(TAG.findall(english)) != len(TAG.findall(german)):
        return "other markup"
    if abs(english.count(", ") - german.count(", ")) > 3:
        return "a list of words"
    ratio = len(german) / len(english)
    if words[0] >= 3 and not 0.4 <= ratio <= 3.0:
        return "lengths differ"
    if words[0] >= 5 and len(ENGLISH_WORDS.findall(german)) >= 2 and not GERMAN_WORDS.search(german):
        return "not translated"
    return None
