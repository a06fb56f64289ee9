"""A task of lm-evaluation-harness, plain and with a drafter: see docs/transformers.md. Needs `lm_eval[hf]`."""

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from specdec_core import generate_with, load_model

target = load_model("builtin:target")
model = HFLM(pretrained=target.model, tokenizer=target.tokenizer, batch_size=4)
tasks = TaskManager(include_path="docs/examples/harness", include_defaults=False)
drafted = generate_with(drafter={"name": "transformer", "model": "builtin:drafter"}, gamma=4)

passes = []
target.model.register_forward_pre_hook(lambda *_: passes.append(1))
for name, gen_kwargs in (("plain", None), ("drafted", {"custom_generate": drafted})):
    passes.clear()
    found = lm_eval.simple_evaluate(model, tasks=["completion"], task_manager=tasks, gen_kwargs=gen_kwargs)
    score = found["results"]["completion"]["exact_match,none"]
    print(f"{name}: exact match {score:.3f}, {len(passes)} forward passes")
print(f"acceptance rate {drafted.metrics.alpha:.2f}")
