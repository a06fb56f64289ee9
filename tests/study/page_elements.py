"""The elements of a page."""

import re
from html.parser import HTMLParser


class Elements(HTMLParser):
    """All elements of a page, with their attributes and text; fails where they are not closed in turn."""

    VOID = ("meta", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.open, self.all, self.texts = [], [], []
        self.feed(re.sub("</?bdi>", "", text))  # around a name, within a sentence
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes), tuple(self.open)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.all.append((tag, dict(attributes), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and data.strip():
            self.texts.append(data.strip())

    def of(self, *tags):
        return [attributes for tag, attributes, _ in self.all if tag in tags]
