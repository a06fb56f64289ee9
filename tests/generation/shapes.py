"""Requirements of transformers' generation tests, for plain `generate` and for ours.

Each shape calls `Case.plain` and `Case.ours`, and raises an AssertionError where they differ.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from specdec_core import generate_with
from specdec_core.models import load_model
from tests.generation.families import MULTIMODAL, build, noisy
from tests.multimodal import IMAGE, prompts

NEW = 12
PROMPTS = [[5, 6, 7, 5, 6, 7], [9, 8, 30, 9, 8, 30]]
PADDED, MASK = [[0, 0, 7, 5, 6, 7], [9, 8, 30, 9, 8, 30]], [[0, 0, 1, 1, 1, 1], [1] * 6]


class PlainError(Exception):
    """transformers does not do for a family what a shape asks for."""


class Case:
    """A family, with what decodes it.

    Args:
        family: One of `FAMILIES`.
        folder: Where the weights of a draft model go.
    """

    def __init__(self, family: str, folder: str) -> None:
        self.family, self.model = family, build(family)
        self.encoder = bool(self.model.config.is_encoder_decoder)
        self.assistant = noisy(self.model)
        self.assistant.save_pretrained(folder)
        self.tokenizer = load_model("builtin:drafter").tokenizer
        self.drafted = generate_with(
            {"name": "transformer", "model": folder}, gamma=4, tokenizer=self.tokenizer, strict=True
        )
        self.copied = generate_with("prompt-copy", gamma=4, tokenizer=self.tokenizer, strict=True)

    def plain(self, **settings: Any) -> Any:
        """Return what plain `generate` does.

        Raises:
            PlainError: It raises.
        """
        try:
            return self._generate(**settings)
        except Exception as error:
            raise PlainError(f"{type(error).__name__}: {error}") from error

    def ours(self, **settings: Any) -> Any:
        """Return what `generate` does with a drafter."""
        return self._generate(**{"custom_generate": self.drafted, **settings})

    def _generate(self, **settings: Any) -> Any:
        ids = {"input_ids": torch.tensor(PROMPTS), "max_new_tokens": NEW, "do_sample": False}
        if "input_ids" not in settings and "attention_mask" not in settings:
            ids["attention_mask"] = torch.ones(2, 6, dtype=torch.long)
        given = {name: value for name, value in (ids | settings).items() if value is not None or name not in ids}
        return self.model.generate(**given)

    def same(self, **settings: Any) -> Any:
        """Check that both return the same ids; return them."""
        expected = self.plain(**settings)
        assert self.ours(**settings).tolist() == expected.tolist(), "the ids are others"
        return expected

    def new(self, ids: torch.Tensor) -> list[list[int]]:
        """Return the tokens that were generated."""
        return ids[:, 1 if self.encoder else 6 :].tolist()


def same_dict(case: Case, *, drawn: bool = False, **settings: Any) -> None:
    """Check that output classes, ids, scores and logits are the same."""
    settings |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, output = case.plain(**settings), case.ours(**settings)
    assert type(output) is type(expected)
    assert output.sequences.tolist() == expected.sequences.tolist(), "the ids are others"
    begin = output.sequences.shape[1] - len(output.scores)
    for row, tokens in enumerate(output.sequences[:, begin:].tolist()):
        length = tokens.index(1) + 1 if 1 in tokens else len(tokens)
        for name in ("scores", "logits"):
            found, right = ([step[row] for step in getattr(one, name)[:length]] for one in (output, expected))
            torch.testing.assert_close(torch.stack(found), torch.stack(right), atol=1e-3, rtol=1e-3)


class Recorder:
    """A streamer that keeps what it gets."""

    def __init__(self):
        self.got = []

    def put(self, value):
        self.got.append(value.tolist())

    def end(self):
        self.got.append("end")


class Lift(LogitsProcessor):
    """Adds to each logit by what the text is."""

    def __call__(self, input_ids, scores):
        return scores + ((input_ids.sum(dim=1, keepdim=True) + torch.arange(scores.shape[1])) % 5)


class AtColumn(StoppingCriteria):
    """Ends all rows at a column."""

    def __call__(self, input_ids, scores, **_):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 11)


def greedy_padded(case: Case) -> None:
    case.same(input_ids=torch.tensor(PADDED), attention_mask=torch.tensor(MASK))


def padded_row_alone(case: Case) -> None:
    rows = case.new(case.ours(input_ids=torch.tensor(PADDED), attention_mask=torch.tensor(MASK)))
    if not case.encoder:
        alone = case.plain(input_ids=torch.tensor([PADDED[0][2:]]), attention_mask=torch.ones(1, 4))
        tokens = alone[0, 4:].tolist()
        assert rows[0][: len(tokens)] == tokens, "the padded row has other ids than alone"


def sample(case: Case) -> None:
    torch.manual_seed(0)
    output = case.ours(do_sample=True, num_return_sequences=2, return_dict_in_generate=True, output_scores=True)
    plain = case.plain(do_sample=True, num_return_sequences=2, return_dict_in_generate=True, output_scores=True)
    assert type(output) is type(plain)
    assert output.sequences.dtype == plain.sequences.dtype
    assert len(output.sequences) == len(plain.sequences) == 4
    assert output.scores[0].shape == plain.scores[0].shape


def eos(case: Case) -> None:
    free = case.new(case.plain(eos_token_id=None))
    case.same(eos_token_id=[free[0][3], free[1][6]], pad_token_id=0)


def stop_strings(case: Case) -> None:
    word = case.tokenizer.decode([case.new(case.plain(eos_token_id=None))[0][4]])
    case.same(stop_strings=[word], tokenizer=case.tokenizer)


def streamer(case: Case) -> None:
    plain, ours = Recorder(), Recorder()
    one = {"input_ids": torch.tensor(PROMPTS[:1]), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    case.plain(streamer=plain, **one)
    case.ours(streamer=ours, **one)
    assert ours.got == plain.got


def prompt_lookup(case: Case) -> None:
    one = {"input_ids": torch.tensor(PROMPTS[:1]), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    expected = case.plain(prompt_lookup_num_tokens=3, **one)
    assert case.ours(custom_generate=case.copied, **one).tolist() == expected.tolist()


def assisted(case: Case) -> None:
    one = {"input_ids": torch.tensor(PROMPTS[:1]), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    assert case.ours(**one).tolist() == case.plain(assistant_model=case.assistant, **one).tolist()


def transition_scores(case: Case) -> None:
    settings = {"return_dict_in_generate": True, "output_scores": True, "eos_token_id": None}
    plain, ours = (call(**settings) for call in (case.plain, case.ours))
    found, right = (
        case.model.compute_transition_scores(one.sequences, one.scores, normalize_logits=True)
        for one in (ours, plain)
    )
    torch.testing.assert_close(found, right, atol=1e-3, rtol=1e-3)


def continued(case: Case) -> None:
    output = case.plain(return_dict_in_generate=True, eos_token_id=None)
    if output.past_key_values is None:
        raise PlainError("the model returns no cache")
    name = "decoder_input_ids" if case.encoder else "input_ids"
    settings = {name: output.sequences, "past_key_values": output.past_key_values}
    case.ours(**settings, attention_mask=None if case.encoder else torch.ones_like(output.sequences))


def embedded(case: Case) -> None:
    vectors = case.model.get_input_embeddings()(torch.tensor(PROMPTS))
    case.same(input_ids=None, inputs_embeds=vectors)


def without_ids(case: Case) -> None:
    case.same(input_ids=None, attention_mask=None, bos_token_id=3)


def encoder_outputs(case: Case) -> None:
    given = {"input_ids": torch.tensor(PROMPTS), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    with torch.no_grad():
        states = case.model.get_encoder()(**given)
    case.same(encoder_outputs=states)


def with_(call: Callable[..., Any] = Case.same, **settings: Any) -> Callable[[Case], Any]:
    """Return a shape that decodes with some settings of `generate`."""
    return lambda case: call(case, **settings)


PENALTIES = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[5], [3, 4]]}
LIFTED = {"logits_processor": [Lift()]}
BEGUN = torch.tensor([[2, 5, 6], [2, 7, 8]])
ZEROS = torch.zeros(2, 6, dtype=torch.long)

SHAPES: dict[str, Callable[[Case], Any]] = {
    "greedy": with_(),
    "greedy, dict outputs": with_(same_dict),
    "greedy, padded on the left": greedy_padded,
    "padded row as alone": padded_row_alone,
    "greedy, no cache": with_(use_cache=False),
    "greedy, static cache": with_(cache_implementation="static"),
    "greedy, a start for the decoder": with_(decoder_input_ids=BEGUN),
    "greedy, encoder outputs": encoder_outputs,
    "sample": sample,
    "sample, one token left, dict outputs": with_(same_dict, do_sample=True, top_k=1, temperature=0.7),
    "num_return_sequences": with_(do_sample=True, top_k=1, num_return_sequences=3),
    "assisted": assisted,
    "prompt lookup": prompt_lookup,
    "end-of-sequence ids": eos,
    "stop strings": stop_strings,
    "stopping criteria": with_(stopping_criteria=[AtColumn()]),
    "lengths": with_(max_new_tokens=None, max_length=16, min_length=12, eos_token_id=[1, 5]),
    "penalties": with_(**PENALTIES),
    "penalties, dict outputs": with_(same_dict, **PENALTIES),
    "logits processor": with_(**LIFTED),
    "prefix_allowed_tokens_fn": with_(prefix_allowed_tokens_fn=lambda row, ids: [3 + len(ids) % 4, 20 + row]),
    "transition scores": transition_scores,
    "streamer": streamer,
    "no input ids": without_ids,
    "inputs_embeds": embedded,
    "token types": with_(token_type_ids=ZEROS),
    "images": lambda case: case.same(**prompts(case.family, [[5, IMAGE, 6, 7], [IMAGE, 5, IMAGE]])),
    "continued from a cache": continued,
    "beam search": with_(num_beams=2),
    "beam search, sampled": with_(num_beams=2, do_sample=True),
    "constrained beam search": with_(Case.ours, num_beams=2, force_words_ids=[[5]]),
    "contrastive search": with_(Case.ours, penalty_alpha=0.6, top_k=4),
    "DoLa": with_(Case.ours, dola_layers="low"),
    "assistant beside a drafter": lambda case: case.ours(assistant_model=case.assistant),
    "prompt lookup beside a drafter": with_(Case.ours, prompt_lookup_num_tokens=3),
    "attentions": with_(Case.ours, output_attentions=True, return_dict_in_generate=True),
    "hidden states": with_(Case.ours, output_hidden_states=True, return_dict_in_generate=True),
    "guidance": with_(guidance_scale=1.5),
    "prompt in chunks": with_(prefill_chunk_size=2),
    "padded on the right": with_(
        Case.ours, input_ids=torch.tensor(PADDED).flip(1), attention_mask=torch.tensor(MASK).flip(1)
    ),
}
"""By name, what is asked."""


def applies(shape: str, case: Case) -> bool:
    """Return whether a family can be asked for something at all, without us."""
    if shape in ("greedy, encoder outputs", "greedy, a start for the decoder"):
        return case.encoder
    if shape in ("padded on the right", "padded row as alone", "prompt in chunks", "no input ids"):
        return not case.encoder
    return shape != "images" or case.family in MULTIMODAL
