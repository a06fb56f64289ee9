"""Structured output from Python: see docs/structured-output.md."""

# --8<-- [start:constraint]
from specdec_core import Decoder, load_model

target = load_model("builtin:target")
decoder = Decoder(target, {"name": "transformer", "model": "builtin:drafter"}, gamma=4)
result = decoder.generate("# Released in ", constraint={"regex": "(January|March|July) (19|20)[0-9]{2}"})
print(result.text, result[0].finish_reason)
# --8<-- [end:constraint]

# --8<-- [start:batch]
from pydantic import BaseModel, Field


class Book(BaseModel, extra="forbid"):
    """A record of the library."""

    title: str = Field(max_length=24)
    year: int = Field(ge=1900, le=2030)


prompts = ["book = ", "answer = ", "def main():"]
constraints = [{"json_schema": Book.model_json_schema()}, {"regex": "yes|no"}, None]
batch = decoder.generate(prompts, constraints=constraints, max_new_tokens=40)
book = Book.model_validate_json(batch[0].text)
print(book, "|", batch[1].text, "|", batch.metrics.forced, "tokens forced")
# --8<-- [end:batch]
