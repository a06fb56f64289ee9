"""Logs of other programs: JSON lines of prompts, outputs and log-probabilities. Importing this imports no torch.

Three forms are known: our own (`prompt`, `tokens`, `logprobs`), the responses of the OpenAI API and of servers
that follow it, such as vLLM (`choices`), and dumps of vLLM's `RequestOutput` (`outputs`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ConfigError, PromptError, reading, shortened
from specdec_core.interface.settings import SamplingSettings
from specdec_core.study.config.prompt_columns import group_name

"""The most bytes of a file that is imported; it is read line by line."""
_TOKEN_ID = re.compile(r"token_id:([0-9]{1,18})")
"""How vLLM spells a token with `return_tokens_as_token_ids`."""
_LEAST = -100.0
"""The least log-probability: a smaller p is none that was drawn from, and below what float32 holds."""
_ROUNDING = 1e-4
"""By how much a log-probability may be above 0: that of a token with p = 1 in half precision."""
_NO_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1, None),
    "top_k": (-1, 0, None),
    "min_p": (0, None),
    "repetition_penalty": (1, None),
}
"""Values with which a setting of a request does nothing."""
_MUST_BE_OFF: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": (None, {}),
    "use_beam_search": (False, None),
    "echo": (False, None),
    "guided_json": (None,),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
}
"""Settings of a request that `SamplingSettings` lacks, and the values with which they do nothing."""


@dataclass(frozen=True)
class LoggedText:
    """One text of a line.

    Attributes:
        where: File and line, for messages.
        prompt: The prompt: a text, token ids, or the messages of a chat.
        tokens: The tokens, each an id, or a text where the log has no ids.
        logprobs: Their log-probabilities; None where there are none.
        finish: The finish reason as logged.
        group: The values that group its prompt; empty where the line has none.
    """

    where: str
    prompt: str | tuple[int, ...] | tuple[Mapping[str, Any], ...]
    tokens: tuple[int | str, ...]
    logprobs: tuple[float, ...] | None
    finish: str | None
    group: tuple[str, ...] = ()


class LineError(ValueError):
    """A line cannot be used, for the reason in the message."""


def read_log(path: Path, sampling: SamplingSettings) -> Iterator[LoggedText]:
    """Yield the texts of a file.

    Args:
        path: The file, with a JSON object in each line.
        sampling: The settings that the texts were sampled with; a logged request must not say otherwise.

    Raises:
        ConfigError: The file cannot be read, or a line cannot be used; the message begins with file and line.
    """
    with reading(path, ConfigError, "JSON lines"), path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                yield from _texts(where, _object(line), sampling)
            except LineError as error:
                raise ConfigError(f"{where}: {error}") from error
            except RecursionError as error:
                raise ConfigError(f"{where}: this is nested too deeply.") from error


def _object(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"this is not JSON: {shortened(str(error))}.") from error
    if not isinstance(data, dict):
        raise LineError(f"expected a JSON object; given {shortened(line.strip(), 60)}.")
    return data


def _texts(where: str, line: Mapping[str, Any], sampling: SamplingSettings) -> Iterator[LoggedText]:
    """Yield the texts of a line, whichever form it has."""
    body, group = response_of(line), group_of(line)
    request = _mapping(line.get("request", line.get("body", {})), "request")
    _check_request({**request, **line}, sampling)
    if "choices" in body:
        for choice in _list(body["choices"], "choices"):
            made = _choice(_mapping(choice, "choices"))
            yield LoggedText(where, _prompt(choice, body, request, line), *made, group)
    elif "outputs" in line:
        for output in _list(line["outputs"], "outputs"):
            yield LoggedText(where, _prompt(line), *_offline(_mapping(output, "outputs")), group)
    elif "tokens" in line:
        tokens = tuple(_id(token, "tokens") for token in _list(line["tokens"], "tokens"))
        logged = line.get("logprobs")
        probabilities = None if logged is None else _numbers(logged, "logprobs")
        yield LoggedText(where, _prompt(line), tokens, probabilities, line.get("finish_reason"), group)
    else:
        raise LineError(
            "there is neither 'tokens' nor 'choices' nor 'outputs'; given "
            f"{shortened(', '.join(map(repr, line))) or 'nothing'}."
        )


def response_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the response in a line, which may be the line itself.

    Raises:
        LineError: It is not a JSON object.
    """
    body = _mapping(line.get("response", line), "response")
    return _mapping(body.get("body", body), "response.body")


def group_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of a line that group its prompt, `group` or `category`; empty where it has none.

    Raises:
        LineError: They are not one or two texts or numbers.
    """
    name = "group" if line.get("group") is not None else "category"
    value = line.get(name)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if len(values) not in (1, 2):
        raise LineError(f"{name!r} has {len(values)} values; expected one or two.")
    try:
        return tuple(group_name(one, name) for one in values)
    except PromptError as error:
        raise LineError(str(error)) from error


def _choice(choice: Mapping[str, Any]) -> tuple[tuple[int | str, ...], tuple[float, ...] | None, str | None]:
    """Return tokens, log-probabilities and finish reason of a choice of the completions or the chat API."""
    finish, logged = choice.get("finish_reason"), choice.get("logprobs")
    given = choice.get("token_ids")
    ids = None if given is None else tuple(_id(token, "token_ids") for token in _list(given, "token_ids"))
    if logged is None:
        if ids is None:
            raise LineError("this choice has neither 'logprobs' nor 'token_ids'; request the log-probabilities.")
        return ids, None, finish
    logged = _mapping(logged, "logprobs")
    if logged.get("content") is not None:  # chat
        entries = [_mapping(entry, "logprobs.content") for entry in _list(logged["content"], "logprobs.content")]
        texts = [_spelled(entry.get("token"), entry.get("bytes")) for entry in entries]
        values: Sequence[Any] = [entry.get("logprob") for entry in entries]
    else:
        texts = [_spelled(token, None) for token in _list(logged.get("tokens"), "logprobs.tokens")]
        values = _list(logged.get("token_logprobs"), "logprobs.token_logprobs")
    return ids or tuple(texts), _numbers(values, "the log-probabilities"), finish


def _offline(output: Mapping[str, Any]) -> tuple[tuple[int | str, ...], tuple[float, ...] | None, str | None]:
    """Return the same of an output of vLLM's `RequestOutput`, where each token has a mapping of ids to Logprob."""
    tokens = tuple(_id(token, "token_ids") for token in _list(output.get("token_ids"), "token_ids"))
    logged = output.get("logprobs")
    if logged is None:
        return tokens, None, output.get("finish_reason")
    rows = _list(logged, "logprobs")
    if len(rows) != len(tokens):
        raise LineError(f"there are {len(tokens)} tokens and {len(rows)} log-probabilities.")
    values = []
    for token, row in zip(tokens, rows, strict=True):
        entry = _mapping(row, "logprobs").get(str(token))
        values.append(entry.get("logprob") if isinstance(entry, Mapping) else entry)
    return tokens, _numbers(values, "logprobs"), output.get("finish_reason")


def _prompt(*mappings: Mapping[str, Any]) -> str | tuple[int, ...] | tuple[Mapping[str, Any], ...]:
    """Return the prompt: token ids where there are any, else the text or the chat."""
    for data in mappings:
        if data.get("prompt_token_ids") is not None:
            return _ids(data["prompt_token_ids"], "prompt_token_ids")
    for data in mappings:
        prompt = data.get("prompt")
        if isinstance(prompt, str) and prompt:
            _check_characters(prompt, "prompt")
            return prompt
        if prompt is not None:
            return _ids(prompt, "prompt")
        if data.get("messages") is not None:
            messages = _list(data["messages"], "messages")
            _check_characters(messages, "messages")
            return tuple(_mapping(message, "messages") for message in messages)
    raise LineError(
        "the prompt is missing: add 'prompt' (a text or token ids), 'messages' or 'prompt_token_ids' to the line; "
        "a response alone does not repeat it."
    )


def _check_characters(value: Any, name: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise LineError(
            f"{name!r} has half of a surrogate pair (\\ud800 to \\udfff), which is not a character."
        ) from error


def _check_request(request: Mapping[str, Any], sampling: SamplingSettings) -> None:
    """Reject a logged request that says other settings than the command."""
    for name, none in _NO_EFFECT.items():
        if name not in request:
            continue
        said = request[name]
        wanted = getattr(sampling, name)
        if sampling.greedy and name not in ("temperature", "repetition_penalty"):
            continue  # they do not change the argmax
        off = none[0] if wanted is None else wanted
        if said != wanted and not (said in none and off in none):
            shown = shortened(json.dumps(said), 60)
            raise LineError(
                f"the request says {name}: {shown}, and the command {json.dumps(wanted)}; import with "
                f"--{name.replace('_', '-')} {shown}."
            )
    for name, off_values in _MUST_BE_OFF.items():
        if name in request and request[name] not in off_values:
            raise LineError(
                f"the request says {name}: {shortened(json.dumps(request[name]), 60)}, which the settings of a "
                "record cannot express; leave it out when you log texts."
            )


def check_logprob(value: float) -> float:
    """Return a log-probability, at most 0.

    Raises:
        LineError: It is none that a token can have been drawn with.
    """
    if not math.isfinite(value) or value > _ROUNDING:
        raise LineError(f"{value!r} is not a log-probability: it must be a number up to 0.")
    if value < _LEAST:
        raise LineError(
            f"{value!r} is the log-probability of a token that cannot have been drawn: the log holds another "
            "distribution than the one that was sampled from (see --logprobs)."
        )
    return min(value, 0.0)


def _spelled(token: Any, data: Any) -> int | str:
    """Return the id that a token text holds, or the text, in UTF-8 with what is none as surrogates."""
    if isinstance(token, str) and (found := _TOKEN_ID.fullmatch(token)):
        return int(found[1])
    if isinstance(data, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in data):
        return bytes(data).decode("utf-8", "surrogateescape")
    if not isinstance(token, str):
        raise LineError(f"a token is {shortened(json.dumps(token), 40)}; expected a text.")
    if token.startswith("bytes:"):  # how the completions API spells a part of a character
        try:
            raw = token.removeprefix("bytes:").encode("latin-1").decode("unicode_escape").encode("latin-1")
        except (UnicodeError, ValueError) as error:
            raise LineError(f"the token {shortened(token, 40)!r} is not in the form bytes:\\xHH.") from error
        return raw.decode("utf-8", "surrogateescape")
    return token


def _ids(value: Any, name: str) -> tuple[int, ...]:
    ids = tuple(_id(token, name) for token in _list(value, name))
    if not ids:
        raise LineError(f"{name} is empty.")
    return ids


def _id(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LineError(f"{name} holds {shortened(json.dumps(value), 40)}; expected token ids.")
    return value


def _numbers(values: Any, name: str) -> tuple[float, ...]:
    numbers = []
    for value in _list(values, name):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise LineError(
                f"{name} holds {shortened(json.dumps(value), 40)}; expected one number for each token."
            )
        numbers.append(check_logprob(_real(value)))
    return tuple(numbers)


def _real(value: float) -> float:
    """Return a number of JSON as a float; an integer beyond those is infinite, as `1e400` is."""
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def _list(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise LineError(f"{name!r} is {shortened(json.dumps(value), 40)}; expected a list.")
    return value


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise LineError(f"{name!r} is {shortened(json.dumps(value), 40)}; expected a JSON object.")
    return value
