"""The mutations: small, plausible mistakes in the parts that correctness rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
        name: What the mistake is, in a few words.
        file: Path from the root of the repository.
        old: Text that occurs in the file exactly once.
        new: Text that replaces it.
        why: What goes wrong for the user if nothing sees the mistake.
        tests: Arguments for pytest: the tests most likely to fail, the fastest first.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


RULES = "specdec_core/interface/rules.py"
ACCEPTANCE = "specdec_core/verification/acceptance.py"
DISTRIBUTIONS = "specdec_core/verification/distributions.py"
BATCH = "specdec_core/decoding/batch.py"
DRAFTING = "specdec_core/decoding/drafting.py"
DRAFT_RECORD = "specdec_core/decoding/draft_record.py"
PROPOSER = "specdec_core/decoding/proposer.py"
DECODER = "specdec_core/decoding/decoder.py"
STOPPING = "specdec_core/decoding/stopping.py"
METRICS = "specdec_core/decoding/metrics.py"
GENERATORS = "specdec_core/sampling/generators.py"
CONSTRAINTS = "specdec_core/sampling/constraints.py"
LOGITS = "specdec_core/sampling/logits.py"
BACKOFF = "specdec_core/sampling/backoff.py"
SESSION = "specdec_core/models/session.py"
FORWARD = "specdec_core/models/forward.py"
STATIC = "specdec_core/models/static.py"
GRAPHS = "specdec_core/models/cuda_graphs.py"
ENCODER = "specdec_core/models/encoder.py"
POSITIONS = "specdec_core/models/positions.py"
OVERRIDES = "specdec_core/models/overrides.py"
CHECKPOINT = "specdec_core/models/checkpoint.py"
LOADED = "specdec_core/models/loaded.py"
PROBE = "specdec_core/models/probe.py"
TREE = "specdec_core/verification/tree.py"
TREE_DRAFTING = "specdec_core/decoding/tree_drafting.py"
BEAM_SEARCH = "specdec_core/decoding/beams/search.py"
BEAM_BATCH = "specdec_core/decoding/beams/batch.py"
RUNNER = "specdec_core/study/run/runner.py"
RECORDER = "specdec_core/record/recorder.py"
SHARDS = "specdec_core/record/shards.py"
TOKEN_TEXTS = "specdec_core/record/token_texts.py"
IMPORTING = "specdec_core/study/run/importing.py"
CHAIN = "drafters/specdec_drafters/chain/drafter.py"
SHARED = "drafters/specdec_drafters/translated/shared.py"
TRANSLATED = "drafters/specdec_drafters/translated/drafter.py"
HEADS = "drafters/specdec_drafters/heads/drafter.py"
DRAFT_HEADS = "drafters/specdec_drafters/common/draft_heads.py"
DFLASH = "drafters/specdec_drafters/dflash/drafter.py"
DFLASH_HEAD = "drafters/specdec_drafters/dflash/model.py"
EAGLE3 = "drafters/specdec_drafters/eagle3/drafter.py"
MTP = "drafters/specdec_drafters/mtp/checkpoint.py"
MTP_HEAD = "drafters/specdec_drafters/mtp/model.py"
EAGLE3_TRAINING = "drafters/specdec_drafters/eagle3/training.py"
CACHE = "specdec_core/models/cache.py"
MODEL_DRAFTER = "drafters/specdec_drafters/common/model_drafter.py"
VARIANTS = "specdec_core/models/variants.py"
AUTOMATON = "drafters/specdec_drafters/prompt_copy/suffix_automaton.py"
RETRIEVAL = "drafters/specdec_drafters/common/retrieval.py"
SUFFIX = "drafters/specdec_drafters/suffix/drafter.py"
TABLES = "drafters/specdec_drafters/ngram/tables.py"
KNESER_NEY = "drafters/specdec_drafters/ngram/kneser_ney.py"

BLOCK = "plugins/specdec_plugins/rules/block.py"
DRAWING = "specdec_core/verification/drawing.py"
ON_CPU = "specdec_core/verification/on_cpu.py"
CPU_TESTS = ("tests/verification/test_on_cpu.py",)
ALLOWING = "specdec_core/verification/allowing.py"
VERIFIER = "specdec_core/decoding/verifier.py"
ALONG = "specdec_core/replay/along.py"
FORCED = "specdec_core/replay/forced.py"
REPLAY = "specdec_core/replay/drafter.py"
ODDS = "specdec_core/replay/odds.py"
PREPARING = "specdec_core/replay/preparing.py"
REPLAYED_LAW = "specdec_core/theory/replay.py"
RACING = "specdec_core/theory/racing.py"
PROCESSORS = "specdec_core/decoding/custom_generate/processors.py"
COLUMNS = "specdec_core/decoding/custom_generate/columns.py"
CALL = "specdec_core/decoding/custom_generate/call.py"
FUNCTION = "specdec_core/decoding/custom_generate/function.py"
CANDIDATES = "drafters/specdec_drafters/candidates/drafter.py"

RULE_TESTS = ("tests/verification",)
TREE_TESTS = ("tests/verification/test_tree.py",)
LOSSLESS_TESTS = ("tests/decoding/test_lossless_core.py",)
LOOP_TESTS = ("tests/decoding/test_loop.py",)
MODEL_TESTS = ("tests/models/test_session.py",)
COMPILE_TESTS = ("tests/models/test_compile.py",)
LENGTH_TESTS = ("tests/models/test_length.py",)
HIERARCHY_TESTS = ("tests/drafters/test_hierarchical.py",)
GENERATE_TESTS = ("tests/decoding/test_custom_generate.py",)
CANDIDATE_TESTS = ("tests/drafters/test_candidates.py",)
TRANSLATED_TESTS = ("tests/drafters/test_translated.py",)
REPLAY_TESTS = ("tests/replay/test_law.py",)
REPLAYED_RULE_TESTS = ("tests/replay/test_rules.py",)

MUTATIONS = (
    # What q is.
    Mutation(
        "q before top-p",
        DRAFTING,
        "            token = self._draw(q)\n        return token.to(logits.device)",
        "            token = self._draw(q)\n"
        '            other = LogitsToProbs(self._to_probs.settings.model_copy(update={"top_p": None}))\n'
        "            self._record.buffer[:, len(self._record) - 1] = other(given, prefixes)\n"
        "        return token.to(logits.device)",
        "Tokens are drawn from one q and compared with another: the output is not p.",
        LOSSLESS_TESTS,
    ),
    Mutation(
        "q before top-k",
        DRAFTING,
        "            token = self._draw(q)\n        return token.to(logits.device)",
        "            token = self._draw(q)\n"
        '            other = LogitsToProbs(self._to_probs.settings.model_copy(update={"top_k": None}))\n'
        "            self._record.buffer[:, len(self._record) - 1] = other(given, prefixes)\n"
        "        return token.to(logits.device)",
        "Tokens are drawn from one q and compared with another: the output is not p.",
        LOSSLESS_TESTS,
    ),
    Mutation(
        "q of the previous position",
        DRAFT_RECORD,
        "        return Dense(self.buffer[:, : len(places)])",
        "        return Dense(self.buffer[:, : len(places)].roll(1, dims=1))",
        "Each token is compared with the q of its neighbour: the output is not p.",
        LOSSLESS_TESTS,
    ),
    Mutation(
        "top-k for the target only",
        DECODER,
        "LogitsToProbs(draft_sampling or settings, processors)",
        'LogitsToProbs((draft_sampling or settings).model_copy(update={"top_k": None}), processors)',
        "Still exact, but drafts hold tokens that the target rules out: acceptance falls.",
        ("tests/decoding/test_loop.py", "tests/decoding/test_drafting.py"),
    ),
    Mutation(
        "processors see the committed prefix only",
        BATCH,
        "            row.tokens + draft[:position]\n",
        "            row.tokens\n",
        "A repetition penalty ignores the draft tokens before each position: the output is not p.",
        LOSSLESS_TESTS,
    ),
    # Algorithm 1.
    Mutation(
        "residual of a point mass not clamped",
        DISTRIBUTIONS,
        "        return p.scatter_add(1, token[:, None], -share).clamp_(min=0)",
        "        return p.scatter_add(1, token[:, None], -share)",
        "Negative weights: recovered tokens have the wrong distribution.",
        RULE_TESTS,
    ),
    Mutation(
        "residual of a sparse q not clamped",
        DISTRIBUTIONS,
        "    return p.scatter_add(1, at_places(q.ids, position), -share * q_at).clamp_(min=0)",
        "    return p.scatter_add(1, at_places(q.ids, position), -share * q_at)",
        "Negative weights: recovered tokens have the wrong distribution.",
        RULE_TESTS,
    ),
    Mutation(
        "residual of a dense q not clamped",
        DISTRIBUTIONS,
        "torch.addcmul(p, share, q_at, value=-1).clamp_(min=0)",
        "torch.addcmul(p, share, q_at, value=-1)",
        "Negative weights: recovered tokens have the wrong distribution.",
        RULE_TESTS,
    ),
    Mutation(
        "residual of a back-off q not clamped",
        DISTRIBUTIONS,
        ".addcmul_(share, q_at, value=-1)).clamp_(min=0)",
        ".addcmul_(share, q_at, value=-1))",
        "Negative weights: recovered tokens have the wrong distribution.",
        RULE_TESTS,
    ),
    Mutation(
        "recovered token drawn from p",
        ACCEPTANCE,
        "draw_next(weights, proposal, p, accepted, uniforms)",
        "draw_next(p_next, proposal, p, accepted, uniforms)",
        "What q already gave is given again: the output is not p.",
        RULE_TESTS,
    ),
    Mutation(
        "bonus token from the wrong position",
        ACCEPTANCE,
        "    p_next = at_places(p, accepted)",
        "    p_next = at_places(p, rejected_at)",
        "After a fully accepted draft, the next token is drawn from the distribution before it.",
        RULE_TESTS,
    ),
    Mutation(
        "token of probability 0 accepted",
        ACCEPTANCE,
        "uniforms[:, :width] * q_x < p_x",
        "uniforms[:, :width] * q_x <= p_x",
        "Where the uniform number is 0, a token that top-k ruled out is accepted.",
        RULE_TESTS,
    ),
    Mutation(
        "acceptance compares the wrong way round",
        ACCEPTANCE,
        "uniforms[:, :width] * q_x < p_x",
        "uniforms[:, :width] * q_x > p_x",
        "Likely tokens are rejected, unlikely ones accepted.",
        RULE_TESTS,
    ),
    Mutation(
        "uniform of the comparison reused for the recovered token",
        DRAWING,
        "draw_with_total(weights, uniforms[:, width])",
        "draw_with_total(weights, uniforms.gather(1, accepted.clamp(max=width - 1)[:, None])[:, 0])",
        "After a rejection the number is known to be large: recovered tokens lean to high ids.",
        RULE_TESTS,
    ),
    Mutation(
        "tokens beyond a row's draft verified",
        DRAWING,
        "    if min(lengths) < width:\n",
        "    if max(lengths) < width:\n",
        "Padding is accepted as a draft where drafts differ in length.",
        RULE_TESTS,
    ),
    Mutation(
        "back-off weight ignored in the acceptance",
        DISTRIBUTIONS,
        "    backed_off = q.backoff_weight[:, :width] * q.lower_order[tokens]",
        "    backed_off = q.lower_order[tokens].clone()",
        "Tokens that an n-gram table does not list are compared with the wrong q.",
        RULE_TESTS,
    ),
    Mutation(
        "the residual of a single sequence from the first position",
        DISTRIBUTIONS,
        "values[:, int(places)]",
        "values[:, 0]",
        "At batch size 1, recovered and bonus tokens come from the distribution before the draft.",
        ("tests/verification/test_acceptance.py",),
    ),
    Mutation(
        "the recovered token on a CPU is drawn from p",
        ON_CPU,
        "        if n < len(draft):\n            weights = weights.copy()",
        "        if False:\n            weights = weights.copy()",
        "What q already gave is given again: the output is not p.",
        CPU_TESTS,
    ),
    Mutation(
        "the residual on a CPU takes q of the next position",
        ON_CPU,
        "weights -= q[row, n]",
        "weights -= q[row, min(n + 1, len(draft) - 1)]",
        "Recovered tokens have the wrong distribution where drafts are longer than one token.",
        CPU_TESTS,
    ),
    Mutation(
        "a draft on a CPU is compared with p in float32",
        ON_CPU,
        "if not r[n] * q_x < float(p_row[n, x]):",
        "if not r[n] * q_x < p_row[n, x]:",
        "Where p is q and the number is close to 1, a token is rejected that must be accepted.",
        CPU_TESTS,
    ),
    Mutation(
        "p changed where a CPU verifies",
        ON_CPU,
        "            weights = weights.copy()\n",
        "",
        "A hierarchy passes on the residual as q: the level above accepts by the wrong ratio.",
        CPU_TESTS,
    ),
    Mutation(
        "tokens beyond a row's draft verified on a CPU",
        ON_CPU,
        "drafts[row][: proposal.lengths[row]]",
        "drafts[row]",
        "Padding is accepted as a draft where drafts differ in length.",
        CPU_TESTS,
    ),
    Mutation(
        "a greedy draft on a CPU compared with the position before",
        ON_CPU,
        "drafts[row][n] == choices[n]:",
        "drafts[row][n] == choices[max(n - 1, 0)]:",
        "The second draft token must repeat the first one to be accepted.",
        CPU_TESTS,
    ),
    Mutation(
        "a draw does not know what lies before its chunk",
        GENERATORS,
        "float(running[chunk - 1]) if chunk else 0.0",
        "0.0",
        "Within a chunk of the vocabulary the last token of all with weight is drawn.",
        ("tests/sampling/test_generators.py",),
    ),
    Mutation(
        "a draw leads out of its chunk by rounding",
        GENERATORS,
        "min(wanted - before, MAX_UNIFORM * float(inside[-1]))",
        "wanted - before",
        "Once in many draws, a token that has no probability is emitted.",
        ("tests/sampling/test_generators.py",),
    ),
    Mutation(
        "greedy ties broken to the other side",
        LOGITS,
        "        return torch.from_numpy(scores.detach().numpy().argmax(axis=-1))",
        "        backwards = scores.detach().numpy()[..., ::-1]\n"
        "        return scores.shape[-1] - 1 - torch.from_numpy(backwards.argmax(axis=-1))",
        "Greedy decoding differs from the model's own `generate` where two tokens score the same.",
        ("tests/sampling/test_logits.py",),
    ),
    # Lenience.
    Mutation(
        "lenience applied twice",
        ACCEPTANCE,
        "        q_x = lenience * q_x",
        "        q_x = lenience * lenience * q_x",
        "Drafts are accepted with l squared: the bound p(x) / l does not hold.",
        RULE_TESTS,
    ),
    Mutation(
        "lenience in the residual",
        ACCEPTANCE,
        "x, rejected_at, accepted < lengths)",
        "x, rejected_at, (accepted < lengths) * (1 if lenience is None else at_places(lenience, rejected_at)))",
        "The output deviates more from p than the reported bound.",
        RULE_TESTS,
    ),
    Mutation(
        "deviation counted beyond the first rejection",
        BATCH,
        "sum(costs[: min(n + 1, len(new))])",
        "sum(costs)",
        "The deviation that lenience reports, and budgets spend, is too large.",
        ("tests/plugins/test_lenience_exactly.py", "tests/plugins/test_lenience_controllers.py"),
    ),
    # Trees.
    Mutation(
        "what a rejected sibling would have given stays in p",
        TREE,
        "torch.where(rejected[:, None], after, left)",
        "left",
        "The second sibling meets p itself: tokens that the first one has much of come too often.",
        TREE_TESTS,
    ),
    Mutation(
        "a residual of a tree not normalised",
        TREE,
        "torch.where(total == 0, alone, weights / total)",
        "torch.where(total == 0, alone, weights)",
        "Later siblings are rejected too often, in favour of what is left of p.",
        TREE_TESTS,
    ),
    Mutation(
        "children of an earlier node are tried",
        TREE,
        "(parents[:, node] == last) & (node < lengths)",
        "(parents[:, node] <= last) & (node < lengths)",
        "A token is accepted after another text than it was drafted for.",
        TREE_TESTS,
    ),
    Mutation(
        "p of a node's own place after it is accepted",
        TREE,
        "torch.where(taken[:, None], p[:, node + 1],",
        "torch.where(taken[:, None], p[:, node],",
        "The rest of a path is compared with the target's distribution after another node.",
        TREE_TESTS,
    ),
    Mutation(
        "the residual of a tree from the q of the node before",
        TREE,
        "position = torch.full_like(every, node)",
        "position = torch.full_like(every, max(node - 1, 0))",
        "What is left of p after a rejection is not what the rejected token left.",
        TREE_TESTS,
    ),
    Mutation(
        "nodes beyond a row's own are tried",
        TREE,
        " & (node < lengths)",
        "",
        "A sequence depends on how many nodes its neighbours have.",
        TREE_TESTS,
    ),
    Mutation(
        "greedy trees compared with the scores of another node",
        TREE,
        "best.gather(1, proposal.parents + 1)",
        "best.gather(1, proposal.parents.clamp(min=0))",
        "Greedy decoding accepts tokens that the target would not choose there.",
        TREE_TESTS,
    ),
    Mutation(
        "q of a sibling as if it were the only child",
        TREE_DRAFTING,
        "for node in nodes], chances)",
        "for node in nodes], q[rows, at])",
        "Siblings are drawn without replacement, and q says otherwise: the output is not p.",
        ("tests/decoding/test_trees.py",),
    ),
    Mutation(
        "the keys of the first nodes kept",
        SESSION,
        "if any(list(path) != list(range(len(path))) for path in paths):",
        "if any(not path for path in paths):",
        "After a path other than the first, the model goes on from the keys of rejected tokens.",
        ("tests/models/test_tree.py",),
    ),
    Mutation(
        "the drafter keeps the first nodes of a tree",
        MODEL_DRAFTER,
        "self._model.keep(outcome.paths)",
        "self._model.keep([range(len(path)) for path in outcome.paths])",
        "Still exact, but the draft model goes on from tokens that were rejected: acceptance falls.",
        ("tests/drafters/test_transformer.py",),
    ),
    Mutation(
        "q of an inner tree not along its path",
        BATCH,
        "        return self._p.gather(1, _columns(self._path)[..., None].expand(-1, -1, self._p.shape[2]))",
        "        return self._p",
        "In a hierarchy with trees below, q is not what the middle model drew from: the output is not p.",
        HIERARCHY_TESTS,
    ),
    # Random numbers.
    Mutation(
        "one generator for all rows",
        GENERATORS,
        "[torch.Generator().manual_seed(seed) for seed in seeds]",
        "[torch.Generator().manual_seed(seeds[0])] * len(seeds)",
        "A sequence depends on those beside it, and on the batch size.",
        LOOP_TESTS,
    ),
    Mutation(
        "one seed for all rows",
        DECODER,
        "RowGenerators(seeds)",
        "RowGenerators([seeds[0]] * len(seeds))",
        "All sequences of a batch are drawn with the same numbers.",
        LOOP_TESTS,
    ),
    Mutation(
        "uniforms used up by the longest draft of the batch",
        BATCH,
        "counts = [0 if row.reason else n + 1 for row, n in pairs]",
        "counts = [0 if row.reason else width + 1 for row, n in pairs]",
        "A sequence depends on how much its neighbours draft.",
        ("tests/decoding", "tests/test_lossless_drafters.py"),
    ),
    Mutation(
        "draft numbers used up by the largest budget of the batch",
        DRAFTING,
        "self._generators.numbers(self._budget, max(self._budget))",
        "self._generators.numbers([max(self._budget)] * len(self._budget), max(self._budget))",
        "A sequence depends on its neighbours' budgets.",
        ("tests/decoding/test_drafting.py",),
    ),
    Mutation(
        "short drafts draw their next token with a constant",
        BATCH,
        "        if min(proposal.lengths) < width:\n",
        "        if max(proposal.lengths) < width:\n",
        "In ragged batches the token after a short draft is not random.",
        LOSSLESS_TESTS,
    ),
    Mutation(
        "token of weight 0 drawn",
        GENERATORS,
        "(uniforms * total)[:, None], right=True)",
        "(uniforms * total)[:, None], right=False)",
        "Where the uniform number is 0, a token that top-k ruled out is drawn.",
        RULE_TESTS,
    ),
    Mutation(
        "seeds of a study depend on the batch",
        RUNNER,
        "row_seed(task.generation.seed, start + n)",
        "row_seed(task.generation.seed, n)",
        "The same prompt has other tokens at another batch size; batches repeat each other's numbers.",
        ("tests/study/test_runner.py",),
    ),
    # Where a sequence ends.
    Mutation(
        "tokens after a stop token kept",
        STOPPING,
        '                return kept, "eos"',
        '                return list(new), "eos"',
        "A stop token inside an accepted draft does not end the sequence there.",
        LOOP_TESTS,
    ),
    Mutation(
        "one token more than the limit",
        BATCH,
        "self.limit - len(self.tokens) - 1",
        "self.limit - len(self.tokens)",
        "A fully accepted draft at the limit returns more tokens than were asked for.",
        LOOP_TESTS,
    ),
    # Caches.
    Mutation(
        "target rolled back by one too few",
        BATCH,
        "self._target.rollback([len(row.tokens) - 1 for row in self.rows])",
        "self._target.rollback([len(row.tokens) for row in self.rows])",
        "The key of a rejected token stands for the recovered one.",
        LOSSLESS_TESTS,
    ),
    Mutation(
        "draft cache one short after a fully accepted draft",
        MODEL_DRAFTER,
        "self._kept[row] += min(accepted, self._drafted[row])",
        "self._kept[row] += accepted",
        "The draft model never reads the last accepted token: q is not its own, acceptance falls.",
        ("tests/drafters/test_transformer.py",),
    ),
    Mutation(
        "an exit after one layer too many",
        VARIANTS,
        "nn.ModuleList(list(layers)[:count])",
        "nn.ModuleList(list(layers)[: count + 1])",
        "Still exact, but the exit is another than was measured and trained, and costs more.",
        ("tests/models/test_variants.py",),
    ),
    Mutation(
        "the target's own config shortened",
        VARIANTS,
        "    decoder = model.get_decoder()\n",
        "    decoder = loaded.model.get_decoder()\n",
        "The target itself is changed by its drafter.",
        ("tests/models/test_variants.py",),
    ),
    Mutation(
        "a trained exit that is not used",
        "drafters/specdec_drafters/early_exit/model.py",
        "nn.functional.linear(states, self.translator)",
        "states",
        "q is that of the untrained exit: acceptance falls.",
        ("tests/drafters/test_early_exit.py",),
    ),
    Mutation(
        "an exit chosen by acceptance alone",
        "drafters/specdec_drafters/early_exit/model.py",
        "key=lambda worth: worth.speedup",
        "key=lambda worth: worth.alpha",
        "The exit after the most layers always wins.",
        ("tests/drafters/test_early_exit.py",),
    ),
    Mutation(
        "activations of 8 bits with one scale for all rows",
        "drafters/specdec_drafters/quantised/layers.py",
        "rows.abs().amax(-1, keepdim=True)",
        "rows.abs().amax()",
        "A draft depends on the sequences beside it, and on what else is read with it.",
        ("tests/drafters/test_quantised.py",),
    ),
    Mutation(
        "weights of 4 bits around the wrong middle",
        "drafters/specdec_drafters/quantised/layers.py",
        ".round_().add_(8)",
        ".round_().add_(7)",
        "Every weight is a step too small: acceptance falls.",
        ("tests/drafters/test_quantised.py",),
    ),
    Mutation(
        "inner cache not rolled back",
        BATCH,
        "        self._target.rollback(lengths)\n",
        "",
        "In a hierarchy the middle model goes on from tokens that the target refused.",
        HIERARCHY_TESTS,
    ),
    Mutation(
        "drafter of an inner loop not rolled back",
        BATCH,
        "        self._proposer.rollback(lengths)\n",
        "",
        "In a hierarchy the lowest drafter goes on from tokens that were taken back.",
        HIERARCHY_TESTS,
    ),
    Mutation(
        "ragged mask one too far",
        SESSION,
        "        visible = keys <= positions[..., None]",
        "        visible = keys <= positions[..., None] + 1",
        "In ragged batches a token attends to the one after it, or to a stale key.",
        MODEL_TESTS,
    ),
    Mutation(
        "sliding window one too long",
        FORWARD,
        "keys.unsqueeze(-2) > positions[..., None] - self._family.window",
        "keys.unsqueeze(-2) >= positions[..., None] - self._family.window",
        "In ragged batches of Mistral or Gemma, tokens attend one key too far back.",
        MODEL_TESTS,
    ),
    Mutation(
        "padding overwrites cached keys",
        STATIC,
        "    real = (positions >= lengths) & (positions < lengths + counts)\n",
        "    real = (positions >= 0) & (positions < lengths + counts)\n",
        "In ragged batches the padding before a row's tokens is written over what is cached.",
        MODEL_TESTS,
    ),
    Mutation(
        "a graph is replayed on the rows of the pass before",
        GRAPHS,
        "        arguments[1].copy_(torch.tensor(rows), non_blocking=True)\n",
        "        arguments[1].copy_(torch.tensor(rows), non_blocking=True) if found is None else None\n",
        "Compiled passes read and write the slots of the pass that was captured.",
        COMPILE_TESTS,
    ),
    Mutation(
        "a graph attends to too few slots",
        GRAPHS,
        "max(length + count for length, _, count in zip(*rows, strict=True))",
        "max(length for length, _, _ in zip(*rows, strict=True))",
        "Compiled passes miss the newest tokens where a text outgrows a graph.",
        COMPILE_TESTS,
    ),
    Mutation(
        "a cache is handed on with its values",
        GRAPHS,
        "            buffer.zero_()",
        "            buffer.size()",
        "One NaN in a text spoils all later texts.",
        COMPILE_TESTS,
    ),
    Mutation(
        "graphs of other layers are replayed",
        STATIC,
        "cache.layers and cache.kept == tuple(layers)",
        "cache.layers",
        "Drafters that read hidden states get those of earlier tokens.",
        COMPILE_TESTS,
    ),
    Mutation(
        "wrong replays are not noticed",
        STATIC,
        "            if not error <= self._tolerance * largest:\n",
        "            if not error >= 0:\n",
        "A compiler or driver that is wrong changes the output.",
        COMPILE_TESTS,
    ),
    Mutation(
        "the logits of padding are returned",
        SESSION,
        "part[:, width - block.keep : width]",
        "part[:, -block.keep :]",
        "Where a pass is padded to a width that is captured, drafts are verified with logits of padding.",
        COMPILE_TESTS,
    ),
    Mutation(
        "T5's bias of the wrong row",
        POSITIONS,
        "biases[:, (end - 1 - distances).to(biases.device)]",
        "biases[:, (end - 1 - distances[:1].expand_as(distances)).to(biases.device)]",
        "In ragged batches all rows attend as if they stood where the first one stands.",
        MODEL_TESTS,
    ),
    Mutation(
        "T5's bias of the wrong distance",
        POSITIONS,
        "biases[:, (end - 1 - distances).to(biases.device)]",
        "biases[:, (end - 2 - distances).clamp(min=0).to(biases.device)]",
        "In ragged batches each key is taken to be one further away.",
        MODEL_TESTS,
    ),
    Mutation(
        "encoder mask missing",
        ENCODER,
        "None if real.all() else real.long().to(loaded.device)",
        "None",
        "Shorter sources of a batch are read together with their padding.",
        MODEL_TESTS,
    ),
    Mutation(
        "positions stay after a forward pass that failed",
        OVERRIDES,
        "    finally:\n        if before is None:\n",
        "    except KeyboardInterrupt:\n        raise\n    else:\n        if before is None:\n",
        "After an interrupt the model computes everything at the positions of the step that was interrupted.",
        MODEL_TESTS,
    ),
    Mutation(
        "threads share positions and hidden states",
        OVERRIDES,
        "_thread = threading.local()\n",
        '_thread = type("Shared", (), {})()\n',
        "A second thread on the same model gets the positions or the hidden states of the first.",
        ("tests/decoding/test_threads.py",),
    ),
    Mutation(
        "windows are not shortened for the proof",
        PROBE,
        "min(_WINDOW, getattr(text_config, name))",
        "getattr(text_config, name)",
        "A family that is wrong past its window is decoded silently wrong.",
        LENGTH_TESTS,
    ),
    Mutation(
        "rows cross the rotary switch",
        LOADED,
        "return self.family.rotary_switch or self.family.max_positions",
        "return self.family.max_positions",
        "Cached keys of the row, and of the rows beside it, have other rotary frequencies than new ones.",
        LENGTH_TESTS,
    ),
    Mutation(
        "missing weights are loaded as random ones",
        CHECKPOINT,
        "    if missing or mismatched:\n",
        "    if mismatched:\n",
        "The output of an incomplete checkpoint is noise, another in each run, and nothing says so.",
        ("tests/models/test_checkpoint.py",),
    ),
    Mutation(
        "hidden state of the wrong position",
        BATCH,
        "last = result.accepted if result.path is None else",
        "last = (result.accepted - 1).clamp(min=0) if result.path is None else",
        "Heads read a state that does not belong to the last token: acceptance falls.",
        ("tests/decoding/test_hidden_states.py",),
    ),
    # Faults.
    Mutation(
        "every q trusted",
        PROPOSER,
        "recorded=recorder.made(made)",
        "recorded=True",
        "A drafter that states a wrong q is believed: the output is not p, and nothing says so.",
        ("tests/decoding/test_faults.py",),
    ),
    Mutation(
        "tokens handed out themselves",
        BATCH,
        "TokenView(row.tokens) for row in rows",
        "row.tokens for row in rows",
        "A drafter that appends to the tokens changes the text, and nothing says so.",
        ("tests/decoding/test_read_only.py",),
    ),
    Mutation(
        "a proposal that was changed trusted",
        DRAFTING,
        "return not self._drawn_directly and self._changes == self._record.changes",
        "return not self._drawn_directly",
        "A token outside the vocabulary ends the program in the target's forward pass.",
        ("tests/decoding/test_drafting.py",),
    ),
    Mutation(
        "sys.exit passed on",
        "specdec_core/decoding/guard.py",
        "if error is None or not is_failure(error):",
        "if not isinstance(error, Exception):",
        "A plugin that calls sys.exit ends a comparison with exit code 0.",
        ("tests/decoding/test_exits.py",),
    ),
    Mutation(
        "drafter that failed is asked again",
        PROPOSER,
        "with self._guard.calling(self._drafter, self._drop_drafter):\n                    tree = ",
        "with self._guard.calling(self._drafter):\n                    tree = ",
        "A drafter whose state is broken goes on drafting.",
        ("tests/decoding/test_faults.py",),
    ),
    Mutation(
        "commit withheld from drafters that were not asked",
        BATCH,
        "        self._proposer.commit(outcome)\n        report = ",
        "        if outcome.used:\n            self._proposer.commit(outcome)\n        report = ",
        "A drafter that keeps state misses the tokens of steps without a draft.",
        LOOP_TESTS,
    ),
    # Drafters.
    Mutation(
        "commit withheld from members of a chain",
        CHAIN,
        '            _call(member.label, "commit", partial(member.session.commit, part))',
        "            if any(own):\n"
        '                _call(member.label, "commit", partial(member.session.commit, part))',
        "A member that did not draft in a step misses its tokens.",
        ("tests/drafters/test_chain.py",),
    ),
    Mutation(
        "a chain chooses drawn drafts by their length",
        CHAIN,
        "    return [isinstance(proposal.q, PointMass)] * len(proposal.lengths)",
        "    return [True] * len(proposal.lengths)",
        "Which draws are kept depends on what was drawn: the output is not p.",
        ("tests/drafters/test_chain.py", "tests/drafters/test_chain_lossless.py"),
    ),
    Mutation(
        "a chain combines the q of the wrong rows",
        CHAIN,
        "_legal(_slice(part.proposal.q, rows, width), vocab_size)",
        "_legal(_slice(part.proposal.q, list(range(len(rows))), width), vocab_size)",
        "Tokens of one sequence are compared with the q of another.",
        ("tests/drafters/test_chain.py", "tests/drafters/test_chain_lossless.py"),
    ),
    Mutation(
        "heads in the wrong order",
        HEADS,
        "            request.sample(logits[:, place])",
        "            request.sample(logits[:, (place + 1) % count])",
        "Each head guesses for its neighbour's position: still exact, acceptance falls.",
        ("tests/drafters/test_heads.py",),
    ),
    Mutation(
        "dflash: every token is drawn from the first place",
        DFLASH,
        "                request.sample(logits[:, place])",
        "                request.sample(logits[:, 0])",
        "The whole draft is a guess at its first token: still exact, hardly any other is accepted.",
        ("tests/drafters/test_dflash.py",),
    ),
    Mutation(
        "dflash: keys and values of tokens that are gone survive a rollback",
        DFLASH,
        "        self._kept = list(map(min, self._kept, lengths))",
        "        pass",
        "The head reads states of another text: drafts are worse after each rollback.",
        ("tests/drafters/test_dflash.py",),
    ),
    Mutation(
        "dflash: the states of the tokens after",
        DFLASH,
        "states[layer][index, first:end]",
        "states[layer][index, first + 1 : end + 1]",
        "The head reads what the target has not computed yet.",
        ("tests/drafters/test_dflash.py",),
    ),
    Mutation(
        "dflash: the block attends to a slot that is not filled",
        DFLASH_HEAD,
        "        seen = slot < lengths[:, None]",
        "        seen = slot <= lengths[:, None]",
        "A row beside a longer one reads what another text left in its cache.",
        ("tests/drafters/test_dflash.py",),
    ),
    Mutation(
        "dflash: the window is counted from the second place of the block",
        DFLASH_HEAD,
        "slot >= lengths[:, None] - window",
        "slot > lengths[:, None] - window",
        "Layers with a window see one token less than in training.",
        ("tests/drafters/test_dflash.py",),
    ),
    Mutation(
        "draft heads: token ids of the draft vocabulary for the target's",
        DRAFT_HEADS,
        "device=self.d2t.device) + self.d2t",
        "device=self.d2t.device)",
        "Other tokens are drafted than the head meant: still exact, hardly any is accepted.",
        ("tests/drafters/test_eagle3.py",),
    ),
    Mutation(
        "eagle3: entries of drafted tokens are kept",
        EAGLE3,
        "        self._head.rollback(self._kept)\n        fresh",
        "        self._kept = [min(n, len(row) - 2) for n, (row, _) in zip(self._head.lengths, rows)]\n"
        "        self._head.rollback(self._kept)\n        fresh",
        "Entries keep the head's own states where the target's are known: acceptance falls as the text grows.",
        ("tests/drafters/test_eagle3.py",),
    ),
    Mutation(
        "eagle3: an entry too many survives a rollback",
        EAGLE3,
        "min(kept, max(length - 1, 0))",
        "min(kept, length)",
        "An entry has read a token that is gone: drafts are worse after each rollback.",
        ("tests/drafters/test_eagle3.py",),
    ),
    Mutation(
        "eagle3: the states of the tokens after",
        EAGLE3,
        "states[layer][row, first:end]",
        "states[layer][row, first + 1 : end + 1]",
        "The head reads what no decoder knows yet, or nothing at all.",
        ("tests/drafters/test_eagle3.py",),
    ),
    Mutation(
        "eagle3: a node reads the state of the last node, not of its parent",
        EAGLE3,
        "base.to(drawn.parents.device) + drawn.parents, drawn.parents",
        "base.to(drawn.parents.device) + drawn.parents.clamp(min=0), drawn.parents",
        "The first level of a tree reads the state of its first node.",
        ("tests/drafters/test_eagle3.py",),
    ),
    Mutation(
        "mtp: the output of the layer before the last",
        MTP,
        "        return theirs",
        "        return theirs - 1",
        "The layer reads a state that it was not trained on: still exact, acceptance falls.",
        ("tests/drafters/test_mtp.py",),
    ),
    Mutation(
        "mtp: state and embedding in the wrong order",
        MTP_HEAD,
        "[block.token_layernorm(embedded), block.hidden_layernorm(states)]",
        "[block.hidden_layernorm(states), block.token_layernorm(embedded)]",
        "The projection is applied to the wrong halves: hardly any draft token is accepted.",
        ("tests/drafters/test_mtp.py",),
    ),
    Mutation(
        "mtp: drafted tokens read the output before the final norm",
        MTP_HEAD,
        "(state,)",
        "(output,)",
        "The first draft token is right, those after it are worse.",
        ("tests/drafters/test_mtp.py",),
    ),
    Mutation(
        "eagle3 is trained on states that drafts do not see",
        EAGLE3_TRAINING,
        "visible = torch.cat([visible, own], dim=1)",
        "visible = torch.cat([visible, visible[:, :entries]], dim=1)",
        "Training sees other drafts' entries: what is learnt does not carry over to decoding.",
        ("tests/drafters/test_training_eagle3.py",),
    ),
    Mutation(
        "outputs of layers stay where they were when a path of a tree is kept",
        CACHE,
        "for layer in (*self.layers, *self._states.values()):",
        "for layer in self.layers:",
        "Drafters read the states of rejected nodes.",
        ("tests/decoding/test_hidden_states.py",),
    ),
    Mutation(
        "prompt-copy copies from one place too late",
        AUTOMATON,
        "        position = self.place(match[1])\n",
        "        position = self.place(match[1]) + 1\n",
        "Still exact, but what followed a match is missed: acceptance falls.",
        ("tests/drafters/test_suffix_automaton.py", "tests/drafters/test_prompt_copy.py"),
    ),
    Mutation(
        "prompt-copy compares one token too few",
        AUTOMATON,
        "            while lengths[links[window]] >= longest:\n",
        "            while lengths[links[window]] >= longest - 1:\n",
        "Matches are shorter than `max_match`: worse drafts.",
        ("tests/drafters/test_suffix_automaton.py", "tests/drafters/test_prompt_copy.py"),
    ),
    Mutation(
        "a search takes the end of a text for a continuation",
        RETRIEVAL,
        "found < pattern + _END_BYTES else -1",
        "found <= pattern + _END_BYTES else -1",
        "The longest match may have nothing after it: drafts are missing.",
        ("tests/drafters/test_retrieval.py",),
    ),
    Mutation(
        "a draft goes on with the next text of the corpus",
        RETRIEVAL,
        "Counter(column[column >= 0].tolist())",
        "Counter(column.tolist())",
        "An id that is no token is drafted, and the drafter is switched off.",
        ("tests/drafters/test_retrieval.py",),
    ),
    Mutation(
        "a draft is as long as the budget, whatever matched",
        RETRIEVAL,
        "        depth = min(depth, int(longest * self._config.max_spec_factor))",
        "        depth = depth if longest else 0",
        "Still exact, but long drafts after short matches are rejected.",
        ("tests/drafters/test_datastore.py", "tests/drafters/test_suffix.py"),
    ),
    Mutation(
        "suffixes are sorted by too few tokens",
        RETRIEVAL,
        "_suffix_array(self._tokens, longest + 1)",
        "_suffix_array(self._tokens, longest)",
        "A binary search in what is not sorted misses matches.",
        ("tests/drafters/test_retrieval.py",),
    ),
    Mutation(
        "all earlier requests are kept",
        SUFFIX,
        "while sum(part.texts for part in earlier) > most:",
        "while sum(part.texts for part in earlier) > 2 * most:",
        "Memory grows with the number of requests.",
        ("tests/drafters/test_suffix.py",),
    ),
    Mutation(
        "suffix forgets nothing",
        SUFFIX,
        "        with self._lock:\n            self._earlier = ()\n",
        "        with self._lock:\n            pass\n",
        "Repeats of a comparison measure what the first one taught.",
        ("tests/drafters/test_suffix.py",),
    ),
    Mutation(
        "back-off weight ignored in the tables",
        TABLES,
        "lower.log_backoff_weight + float(factor)",
        "lower.log_backoff_weight",
        "An n-gram table's probabilities are not those of its ARPA file: acceptance falls.",
        ("tests/drafters/test_ngram_drafting.py", "tests/drafters/test_ngram_tables.py"),
    ),
    Mutation(
        "back-off weight without the temperature",
        BACKOFF,
        "math.exp((row.log_backoff_weight - largest) / temperature + lower_order.log_total)",
        "math.exp((row.log_backoff_weight - largest) + lower_order.log_total)",
        "At another temperature than 1, an n-gram table drafts from another q than a written-out row.",
        ("tests/sampling/test_backoff.py",),
    ),
    Mutation(
        "Kneser-Ney discount wrong",
        KNESER_NEY,
        "single(k + 1) * y * n[k + 1] / n[k]",
        "single(k) * y * n[k + 1] / n[k]",
        "Counted tables differ from those of KenLM.",
        ("tests/drafters/test_kneser_ney.py",),
    ),
    # Acceptance rules that are plugins.
    Mutation(
        "block: one token too many accepted",
        BLOCK,
        "accepted = (passes * place).amax(dim=1)",
        "accepted = ((passes * place).amax(dim=1) + 1).minimum(lengths[:, 0])",
        "Block verification is no longer lossless.",
        ("tests/plugins/test_rules.py",),
    ),
    Mutation(
        "block: the residual of p instead of c p",
        BLOCK,
        "scaled = p[rows, accepted] * kept[rows, accepted, None].to(p.dtype)",
        "scaled = p[rows, accepted]",
        "Block verification is no longer lossless, by a little.",
        ("tests/plugins/test_rules.py",),
    ),
    Mutation(
        "block: the residual has the q of the position before",
        BLOCK,
        "proposal.tokens[rows, at], at, accepted <",
        "proposal.tokens[rows, at], (at - 1).clamp(min=0), accepted <",
        "Block verification is no longer lossless.",
        ("tests/plugins/test_rules.py",),
    ),
    Mutation(
        "block: a shorter draft has no end of its own",
        BLOCK,
        "torch.where(places == lengths, kept, odds)",
        "torch.where(places == odds.shape[1] - 1, kept, odds)",
        "In a batch, what a row accepts depends on the rows beside it.",
        ("tests/plugins/test_rules.py",),
    ),
    Mutation(
        "lossy rules: q is subtracted from tokens that are not allowed",
        ALLOWING,
        "weights = torch.where(at_places(allowed, place) & rejected[:, None], less, p_next)",
        "weights = less",
        "Typical acceptance deviates more than it reports.",
        ("tests/plugins/test_rules.py",),
    ),
    Mutation(
        "a rule that accepts too much is believed",
        VERIFIER,
        "(made.accepted < 0) | (made.accepted > lengths)",
        "made.accepted < 0",
        "A broken rule commits tokens that were never drafted.",
        ("tests/decoding/test_rule_faults.py",),
    ),
    # Replays.
    Mutation(
        "replay: a token's acceptance is not capped at 1",
        RULES,
        "return ratio.clip(max=1.0)",
        "return ratio",
        "Where the drafter is surer than the target, more tokens are accepted than drafted.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: p of the token before",
        ALONG,
        "at = self.position[index]\n",
        "at = max(self.position[index] - 1, 0)\n",
        "q of a token is divided by p of another: acceptance is wrong, and nothing crashes.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: hidden state of the wrong position",
        ALONG,
        "one.hidden[min(at, len(one)) - 1]",
        "one.hidden[min(at, len(one) - 1)]",
        "Heads read the state that predicts the next token, which no live decoder has yet.",
        ("tests/replay/test_builtin.py",),
    ),
    Mutation(
        "replay: forced token off by one",
        FORCED,
        "following(text, len(row), count)",
        "following(text, len(row) + 1, count)",
        "The drafter drafts another text than the recorded one.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: forced token of a middle model off by one",
        FORCED,
        "following(text, len(row.tokens), 1)",
        "following(text, len(row.tokens) + 1, 1)",
        "A hierarchy's middle model drafts another text than the recorded one.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: a greedy middle model is said to have drafted the text",
        FORCED,
        "return committed if best is None else ",
        "return committed if True else ",
        "A hierarchy's greedy drafts are all accepted.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: a greedy drafter is given its own token",
        FORCED,
        "if not self._to_probs.greedy:\n            return token\n",
        "if True:\n            return token\n",
        "After a rejected token, greedy drafts go on along another text, and acceptance is that of another text.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: a chunk begins one token too late",
        REPLAY,
        "count = [max(n, 1) if asked",
        "count = [n + 1 if asked",
        "Of each chunk, the token after it is never drafted and counts as rejected.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: drafts of the largest budget for all",
        ODDS,
        "return self.by_budget[budget - 1] if",
        "return self.by_budget[-1] if",
        "A drafter whose drafts depend on the budget is replayed with others.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: a step begins at the last accepted token",
        REPLAYED_LAW,
        "begins[:, i + 1 : i + 1 + width] +=",
        "begins[:, i : i + width] +=",
        "The recovered or bonus token is not counted, so that texts take more steps.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: the last place before the limit is drafted",
        REPLAYED_LAW,
        "[:, None] - position - 1",
        "[:, None] - position",
        "More is drafted than a decoder asks for.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: the end of a text counts as a rejection",
        REPLAYED_LAW,
        "verifiable = np.minimum(drafted, left)",
        "verifiable = drafted",
        "Tokens beyond an end of sequence are counted as verified.",
        REPLAY_TESTS,
    ),
    Mutation(
        "replay: block verification forgets what earlier tokens leave",
        BLOCK,
        "kept = np.maximum(kept / np.maximum(own, kept), np.finfo(np.float64).tiny)",
        "kept = np.ones(ratio.shape[:-1])",
        "Block verification is replayed as Algorithm 1, which accepts fewer tokens.",
        REPLAYED_RULE_TESTS,
    ),
    Mutation(
        "replay: block verification gains more than a whole token",
        BLOCK,
        "kept / np.maximum(own, kept)",
        "kept / own.clip(1e-300)",
        "A token that the drafter hardly expects lets later ones pass less often.",
        REPLAYED_RULE_TESTS,
    ),
    Mutation(
        "replay: all of p at the position before",
        ALONG,
        "torch.from_numpy(values[at : at + width])",
        "torch.from_numpy(values[max(at - 1, 0) : max(at - 1, 0) + width])",
        "q is compared with p of another position.",
        REPLAYED_RULE_TESTS,
    ),
    Mutation(
        "replay: tokens that p excludes count among all",
        ALONG,
        "own.where(p > 0, math.inf)",
        "own.nan_to_num(nan=0.0)",
        "Rejection sampling is replayed as if it accepted next to nothing where sampling settings exclude tokens.",
        REPLAYED_RULE_TESTS,
    ),
    Mutation(
        "replay: some of p is taken for all of it",
        PREPARING,
        "or not p[:, -1].any()",
        "or True",
        "A rule that depends on all of p is replayed with the most probable tokens alone.",
        REPLAYED_RULE_TESTS,
    ),
    # Numbers that are reported.
    Mutation(
        "acceptance rate counts tokens that were not verified",
        METRICS,
        "rejected=_total(self._verified) - accepted,",
        "rejected=_total(self._drafted) - accepted,",
        "alpha is too small, and forecasts from it are wrong.",
        ("tests/decoding/test_metrics.py", "tests/decoding/test_loop.py"),
    ),
    Mutation(
        "a resumed study repeats what is finished",
        RUNNER,
        " for run in order if not self._done(task, run, number))",
        " for run in order)",
        "A study that was stopped begins again; its journal holds repeats twice.",
        ("tests/study/test_runner.py",),
    ),
    # Records.
    Mutation(
        "the probability of the most probable token is recorded",
        RECORDER,
        "self._probabilities.append(p[:, 0].gather(1, result.token[:, None])[:, 0])",
        "self._probabilities.append(p[:, 0].amax(dim=1))",
        "Every replay of a sampled text accepts too little.",
        ("tests/record/test_recording.py",),
    ),
    Mutation(
        "hidden states of a long text are one token late",
        RECORDER,
        "tokens[max(start - 1, 0) : min(start + POSITIONS, len(tokens)) - 1]",
        "tokens[start : min(start + POSITIONS, len(tokens) - 1)]",
        "Heads draft from another token's state than the one they would see.",
        ("tests/record/test_recording.py",),
    ),
    Mutation(
        "a text is read with the prompt of another",
        SHARDS,
        "begin = prompt_ends[place - 1] if place else 0",
        "begin = 0",
        "Drafters are replayed after prompts that the target never saw.",
        ("tests/record/test_files.py",),
    ),
    Mutation(
        "raw log-probabilities pass for those after top-p",
        IMPORTING,
        'if options.logprobs == "processed" or sampling.greedy or not changed:',
        'if options.logprobs == "processed" or sampling.temperature in (0, 1):',
        "An imported record has another distribution than the one that was sampled from.",
        ("tests/record/test_import.py",),
    ),
    Mutation(
        "an ambiguous token text is the first token that is written so",
        TOKEN_TEXTS,
        "if len(found) == 1:",
        "if found:",
        "An imported text has other tokens than were drawn, with their p.",
        ("tests/record/test_import.py",),
    ),
    # Another tokenizer.
    Mutation(
        "q of shared tokens not renormalised",
        SHARED,
        "torch.where(total == 0, 1 / len(self.pairs), kept / total)",
        "torch.where(total == 0, 1 / len(self.pairs), kept)",
        "Draft tokens are accepted too often, wherever the drafter thinks of tokens that the target has not.",
        TRANSLATED_TESTS,
    ),
    Mutation(
        "a token of another vocabulary keeps its number",
        SHARED,
        "{token: target.ids[text] for text, token",
        "{token: min(token, len(target.texts) - 1) for text, token",
        "The text stays right and no draft is ever accepted but by chance.",
        TRANSLATED_TESTS,
    ),
    Mutation(
        "a draft goes on after a token that is not shared",
        SHARED,
        "list(takewhile(lambda token: token in self.pairs, row))",
        "list(filter(lambda token: token in self.pairs, row))",
        "A token is verified with the q of another position.",
        TRANSLATED_TESTS,
    ),
    Mutation(
        "a drafter keeps tokens that its tokenizer has since merged",
        TRANSLATED,
        "if all(n >= old for n, old in zip(kept, before, strict=True)):",
        "if kept:",
        "It drafts after another text than the committed one, and its cache is one of both.",
        ("tests/drafters/test_translated.py",),
    ),
    Mutation(
        "the tokens of a text depend on where the last step ended",
        "drafters/specdec_drafters/translated/retokenized.py",
        '        self._read = self._marks[-1].read\n        self.open_text = b""',
        '        self._read = length\n        self.open_text = b""',
        "After a rollback, the drafter reads a text with a gap.",
        ("tests/drafters/test_translated_text.py", "tests/drafters/test_translated.py"),
    ),
    # Tuning.
    Mutation(
        "the error of a race is not shared by its comparisons",
        RACING,
        "return error / max(1, candidates - 1) / max(1, rounds)",
        "return error",
        "With many candidates, the fastest is stopped more often than is said.",
        ("tests/theory/test_racing.py",),
    ),
    Mutation(
        "candidates are compared as if they were not paired",
        RACING,
        "square, half, constant = y * y - scale * var_y, x * y - scale * both,",
        "square, half, constant = y * y - scale * var_y, x * y,",
        "What all texts share does not cancel, and hardly anything is ever told apart.",
        ("tests/theory/test_racing.py",),
    ),
    Mutation(
        "the seconds of a text are those of another",
        "specdec_core/tune/replays.py",
        "value if isinstance(value, str) else value[places]",
        "value",
        "Prompts are mixed up, and pairs are none.",
        ("tests/tune/test_tuning.py",),
    ),
    # Behind transformers' own `generate`.
    Mutation(
        "generate: processors do not see the padding",
        PROCESSORS,
        "text = [*left, *prefixes[members.get(row, row * each)]][:length]",
        "text = [*prefixes[members.get(row, row * each)]][:length]",
        "A penalty leaves out tokens of the prompt instead of its padding.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: a row gets the scores of another place of the batch",
        PROCESSORS,
        "given[rows] = scores[numbers]",
        "given[: len(numbers)] = scores[numbers]",
        "A processor that goes by the row of the batch is given another row's scores.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: nodes of a tree with prefixes of one length are taken for one",
        PROCESSORS,
        "turns[row, length] += 1",
        "pass",
        "p of all but one of these nodes is what was in memory.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: temperature applied twice",
        PROCESSORS,
        "settings, processors = SamplingSettings(temperature=processors[0].temperature), ()",
        "settings = SamplingSettings(temperature=processors[0].temperature)",
        "The text follows another distribution than that of generate.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: criteria see the column before",
        COLUMNS,
        "ended = self._criteria(self.ids, None",
        "ended = self._criteria(self.ids[:, :-1], None",
        "Rows end a token too late.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: rows are cut where others go on",
        COLUMNS,
        "if not live and not waits:",
        "if not live:",
        "Without an end-of-sequence id, the rows of a batch are not of one length, and decoding never ends.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: scores of a tree belong to other nodes",
        COLUMNS,
        "[0, *(1 + node for node in paths[row])]",
        "[0, *paths[row]]",
        "Scores that are returned are not those that the tokens were drawn by.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: every sequence of a call has the same seed",
        FUNCTION,
        "seeds = torch.randint(2**62, (count,)).tolist()",
        "seeds = torch.randint(2**62, (1,)).tolist() * count",
        "num_return_sequences gives the same text again and again.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: the rows of an encoder's input in the wrong order",
        CALL,
        "inputs.repeat_interleave(len(ids) // len(inputs), dim=0)",
        "inputs.repeat(len(ids) // len(inputs), 1)",
        "Drafters that read the source read that of another row.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: an end-of-sequence id of the config is overlooked",
        CALL,
        "for one in found for token in one.eos_token_id.tolist())",
        "for one in found for token in one.eos_token_id.tolist()[:1])",
        "A row goes on drafting after its end; its tokens are cut, and figures count them.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: any token types are taken for text",
        CALL,
        "and not torch.as_tensor(value).any()",
        "",
        "A prompt with images is decoded without them, and nobody is told.",
        GENERATE_TESTS,
    ),
    Mutation(
        "generate: images that were read beforehand pass unseen",
        CALL,
        "            if value:\n",
        "            if value is None:\n",
        "A prompt with images is decoded without them, and nobody is told.",
        GENERATE_TESTS,
    ),
    Mutation(
        "candidates: returned logits are taken for q",
        CANDIDATES,
        "return type(generator) in _DRAW_IF_ASKED and bool(generator.generation_config.do_sample)",
        "return True",
        "Generators that return the argmax change the text.",
        CANDIDATE_TESTS,
    ),
    Mutation(
        "candidates: greedy drafts are taken for drawn ones",
        CANDIDATES,
        "return type(generator) in _DRAW_IF_ASKED and bool(generator.generation_config.do_sample)",
        "return type(generator) in _DRAW_IF_ASKED",
        "A greedy assistant of a target that samples changes the text.",
        CANDIDATE_TESTS,
    ),
    Mutation(
        "candidates: all rows share the generator of the first",
        CANDIDATES,
        "generator = self._generators[row]\n        if generator is None:",
        "row = 0\n        generator = self._generators[row]\n        if generator is None:",
        "A generator's cache holds the text of another row.",
        CANDIDATE_TESTS,
    ),
    # Constraints.
    Mutation(
        "a matcher is not taken back far enough",
        CONSTRAINTS,
        "rollback(len(self._read) - kept)",
        "rollback(len(self._read) - kept - 1)",
        "After a rejection, the matcher still has a token of the draft, and what it calls legal is not.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "masks of a rejected draft are kept",
        CONSTRAINTS,
        "if place > kept]",
        "if place > kept + 1]",
        "The mask of another text is used at the same place.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "the mask of another row is used",
        CONSTRAINTS,
        "self._rows[number // each]",
        "self._rows[number % len(self._rows)]",
        "In a batch, a row is constrained as its neighbour should be.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "the target is not constrained",
        DECODER,
        "to_probs=self._to_probs.constrained(constraints)",
        "to_probs=self._to_probs",
        "Illegal tokens are drawn.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "drafts are not constrained",
        DECODER,
        "self._draft_to_probs.constrained(constraints, drafts=True)",
        "self._draft_to_probs",
        "Drafts hold illegal tokens, which are all rejected: texts are right, and slow.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "illegal tokens are only less likely",
        LOGITS,
        "scores.masked_fill(~legal, -torch.inf)",
        "torch.where(legal, scores, scores - 8)",
        "Every few thousand tokens, an illegal one is drawn.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "the q that is left after illegal tokens is not normalised",
        LOGITS,
        "torch.where(total > 0, kept / total, q)",
        "torch.where(total > 0, kept, q)",
        "q is no distribution; what is drawn from it is accepted too often.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "a token after the end of a constrained text is kept",
        BATCH,
        "kept[: end - len(row.tokens)]",
        "kept[: end - len(row.tokens) + 1]",
        "A draft that goes past the end leaves a token behind.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "forced tokens go past the limit",
        BATCH,
        "self._constraints.forced(index, row.tokens, row.limit - len(row.tokens))",
        "self._constraints.forced(index, row.tokens, row.limit)",
        "Texts are longer than max_new_tokens.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "a hidden state outlives a forced token",
        BATCH,
        "self._hidden = None  # the target has not read the last token's predecessor",
        "pass",
        "Heads draft from the hidden state of an earlier token.",
        ("tests/decoding/test_hidden_states.py",),
    ),
    Mutation(
        "a chain forgets that a member remembers",
        "drafters/specdec_drafters/chain/drafter.py",
        "any(member.remembers for member in self.members)",
        "False",
        "A study lets each repeat of the chain learn from the one before.",
        ("tests/interface/test_remembering.py",),
    ),
    Mutation(
        "a reset stops at the translation",
        "drafters/specdec_drafters/translated/drafter.py",
        "        self.drafter.reset()",
        "        pass",
        "A repeat sees what earlier ones of the same prompts taught.",
        ("tests/interface/test_remembering.py",),
    ),
    Mutation(
        "a beam that is not read counts as bounded by its score",
        BEAM_SEARCH,
        "if not found or (len(found) < len(known) and not rules.bounded):",
        "if not found:",
        "With a processor that lifts log probabilities above 0, drafts change the beams.",
        ("tests/decoding/test_beam_step.py", "tests/decoding/test_beams.py"),
    ),
    Mutation(
        "every processor is taken to keep log probabilities at most 0",
        LOGITS,
        "or (known and lowers)",
        "or known",
        "With a processor that lifts log probabilities above 0, drafts change the beams.",
        ("tests/sampling/test_logits.py", "tests/decoding/test_beams.py"),
    ),
    Mutation(
        "a token is forced although the text may end",
        CONSTRAINTS,
        'bits = int.from_bytes(mask, "little")\n',
        'bits = int.from_bytes(mask, "little") & ~0b10\n',
        "The end of sequence, id 1 in the tests, is never drawn where one token may follow the text.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "forced tokens at the beginning go past the limit",
        BATCH,
        "self._constraints.forced(n, row.tokens, row.room)",
        "self._constraints.forced(n, row.tokens, row.room + 2)",
        "Texts are longer than max_new_tokens.",
        ("tests/decoding/test_constraints.py",),
    ),
    Mutation(
        "several end ids, and no more candidates",
        BEAM_SEARCH,
        "return max(2, 1 + eos_ids) * beams",
        "return 2 * beams",
        "Where most of the best continuations end a beam, fewer than w go on, and the text is wrong.",
        ("tests/decoding/test_beams.py",),
    ),
    Mutation(
        "a beam's row is told of the nodes of other rows",
        BEAM_BATCH,
        "drafts[number][node][1] for node in path if drafts[number][node][0] == row)",
        "drafts[number][node][1] for node in path)",
        "A drafter keeps the state of tokens that are not on its path, and drafts worse.",
        ("tests/decoding/test_beams.py",),
    ),
    Mutation(
        "hidden state of a tree by the number of accepted tokens",
        BATCH,
        "last = result.accepted if result.path is None else _columns(result.path)[rows, result.accepted]",
        "last = result.accepted",
        "Heads draft from the hidden state of a rejected sibling, and are accepted less often.",
        ("tests/decoding/test_hidden_states.py",),
    ),
    Mutation(
        "a best-first tree looks at the tokens that it draws",
        TREE_DRAFTING,
        "            at = (weights * left.sum(dim=2)).argmax(dim=1, keepdim=True)\n",
        "            looked = draw(left.flatten(0, 1), uniforms[:, node].repeat_interleave(left.shape[1]))\n"
        "            of_it = left.gather(2, looked.view(batch, -1, 1))[..., 0]\n"
        "            at = (weights * of_it).argmax(dim=1, keepdim=True)\n",
        "A node's token is no longer drawn from its q: likely tokens are emitted too often.",
        ("tests/decoding/test_trees.py",),
    ),
    Mutation(
        "translated: an inner loop goes on after a token that is not shared",
        "drafters/specdec_drafters/translated/request.py",
        "[on and whole and left for on, whole, left in zip(going, kept, more, strict=True)]",
        "[on and left for on, left in zip(going, more, strict=True)]",
        "The rest of the draft follows a text without that token, with the q of another.",
        ("tests/drafters/test_translated.py",),
    ),
    Mutation(
        "translated: back-off ids in the drafter's order",
        "drafters/specdec_drafters/translated/shared.py",
        "            kept = kept[ids[kept].argsort()]\n",
        "",
        "The core refuses the row at run time and switches the drafter off.",
        ("tests/drafters/test_translated.py",),
    ),
    Mutation(
        "replay: a drawn run goes on after a rejection",
        "specdec_core/replay/controllers.py",
        "if on and inside:",
        "if inside:",
        "Controllers are said to accept tokens after a rejected one.",
        ("tests/replay/test_controllers.py",),
    ),
    Mutation(
        "compiled passes take padding for tokens",
        STATIC,
        "real = (positions >= lengths) & (positions < lengths + counts)",
        "real = positions < lengths + counts",
        "The first columns of a padded prompt are written over cached keys.",
        ("tests/models/test_compile.py",),
    ),
)
