"""Write `messages.txt` again."""

from tests.golden import PATH, messages

PATH.write_text(messages(), "utf-8")
