"""Recording the tasks of a study: seeds, samples, resuming, refusals, and finding a part again."""

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError
from specdec_core.models import load_model
from specdec_core.models.loaded import MOST_UNCACHED
from specdec_core.offline.record import recording
from specdec_core.offline.record.recorded_target import load_recorded, target_info
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.record.store import read_record
from specdec_core.offline.record.tasks import part_for
from specdec_core.study import load_study
from tests.models.hybrids import hybrid
from tests.offline.record.watcher import Watcher

PROMPTS = ["a b c", "d e", "f g h a", "b"]


def study_of(folder, **changes):
    plain = {
        "target": str(folder),
        "prompts": PROMPTS,
        "generation": {"max_new_tokens": 10, "seed": 3},
        "tasks": [
            {"name": "greedy", "sampling": {"temperature": 0}},
            {"name": "sampled", "sampling": {"temperature": 1.0, "top_p": 0.95}},
        ],
        "runs": [{"drafter": "random", "gamma": 2}],
    }
    return load_study({**plain, **changes})


def files(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def study(model_folder):
    return study_of(model_folder)


OPTIONS = RecordOptions(rows=3, samples=3)


def watched_jobs(monkeypatch):
    """Return a list that receives the job of each batch that is decoded from now on."""
    jobs = []
    record_texts = recording.record_texts

    def watched(target, job, *rest):
        jobs.append(job)
        return record_texts(target, job, *rest)

    monkeypatch.setattr(recording, "record_texts", watched)
    return jobs


def test_sample_0_is_the_baseline_and_sample_s_that_of_repeated_prompts(study, model_folder, tmp_path):
    record = record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    greedy, sampled = record.parts
    assert (len(greedy), len(sampled)) == (4, 12)
    assert [(text.number, text.sample) for text in sampled] == [(n, s) for n in range(4) for s in range(3)]
    loaded = load_model(model_folder)
    for part, rounds in ((greedy, 1), (sampled, 3)):
        header = part.header
        # By default the sequence with index n of a call has the seed row_seed(seed, n).
        live = Decoder(loaded, sampling=header.sampling).generate(PROMPTS * rounds, header.generation)
        for text in part:
            one = live[text.sample * len(PROMPTS) + text.number]
            assert text.tokens.tolist() == list(one.tokens)
            assert text.prompt == one.prompt
    assert len({tuple(text.tokens) for text in sampled}) > 4


def test_the_header_says_what_a_drafter_must_know(study, model_folder, tmp_path):
    record = record_study(study, tmp_path / "r", Watcher(), RecordOptions(hidden=True, keep_top=2))
    loaded, header = load_model(model_folder), record.header
    assert (header.vocab_size, header.eos_ids, header.max_length) == (9, loaded.eos_ids, loaded.max_positions)
    assert header.fingerprint == loaded.features.fingerprint()
    assert header.start_id is None
    info, live = target_info(record, tmp_path), loaded.info(tmp_path)
    assert (info.vocab_size, info.eos_ids, info.folder) == (live.vocab_size, live.eos_ids, live.folder)
    assert info.tokenizer("a h z")["input_ids"] == live.tokenizer("a h z")["input_ids"]
    assert info.features.hidden_size == live.features.hidden_size == header.hidden_size
    assert info.features.fingerprint() == live.features.fingerprint()
    for name in ("input_embeddings", "output_embeddings"):
        assert getattr(info.features, name).equal(getattr(live.features, name))
    text = next(iter(record.parts[1]))
    assert text.hidden.shape == (len(text.tokens), header.hidden_size)
    assert text.top_tokens.shape == (len(text.tokens), 2)


def test_a_record_knows_how_many_tokens_a_recurrent_target_reads_again(study, model_folder, tmp_path):
    hybrid("lfm2", 9).save_pretrained(tmp_path / "hybrid")
    load_model(model_folder).tokenizer.save_pretrained(tmp_path / "hybrid")
    for name, one, most in (("plain", study, None), ("hybrid", study_of(tmp_path / "hybrid"), MOST_UNCACHED)):
        record_study(one, tmp_path / f"{name}-record", Watcher(), RecordOptions())
        assert read_record(tmp_path / f"{name}-record").header.most_uncached == most


@pytest.mark.parametrize("stop_at", [0.1, 3.1])
def test_a_stopped_recording_resumes_with_the_batch_under_way(study, tmp_path, stop_at, monkeypatch):
    whole = record_study(study, tmp_path / "whole", Watcher(), OPTIONS)
    with pytest.raises(KeyboardInterrupt, match="of 16 texts are stored") as stopped:
        record_study(study, tmp_path / "r", Watcher(stop_at), OPTIONS)
    there = sum(map(len, read_record(tmp_path / "r").parts))
    assert f"stopped; {there} of 16" in str(stopped.value)
    jobs = watched_jobs(monkeypatch)
    record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    assert sum(len(job.seeds) for job in jobs) == 16 - there
    assert files(tmp_path / "r") == files(tmp_path / "whole")
    assert sum(map(len, whole.parts)) == 16
    jobs.clear()
    record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    assert not jobs


def test_other_rows_resume_with_the_same_texts(study, tmp_path):
    whole = record_study(study, tmp_path / "whole", Watcher(), OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        record_study(study, tmp_path / "r", Watcher(3), OPTIONS)
    found = record_study(study, tmp_path / "r", Watcher(), RecordOptions(rows=5, samples=3))
    for part, same in zip(whole.parts, found.parts, strict=True):
        assert [text.tokens.tolist() for text in part] == [text.tokens.tolist() for text in same]


def test_a_folder_of_another_record_is_refused_and_fresh_replaces_it(study, model_folder, tmp_path):
    record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    (tmp_path / "r" / "notes.txt").write_text("mine")
    other = study_of(model_folder, generation={"max_new_tokens": 6, "seed": 3})
    with pytest.raises(ConfigError, match=r"another record \(.*max_new_tokens: 10 there, 6 now"):
        record_study(other, tmp_path / "r", Watcher(), OPTIONS)
    with pytest.raises(ConfigError, match="texts: 12 there, 8 now"):
        record_study(study, tmp_path / "r", Watcher(), RecordOptions(samples=2))
    assert len(read_record(tmp_path / "r").parts[1]) == 12
    found = record_study(other, tmp_path / "r", Watcher(), RecordOptions(), fresh=True)
    assert max(len(text.tokens) for part in found.parts for text in part) == 6
    assert (tmp_path / "r" / "notes.txt").read_text() == "mine"


def test_a_folder_with_other_things_is_refused(study, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=r"other things in it \(thesis.tex\)"):
            record_study(study, tmp_path, Watcher(), fresh=fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match=r"thesis.tex is a file, and a record is a folder"):
        record_study(study, tmp_path / "thesis.tex", Watcher())


def test_beams_are_refused_with_the_reason(model_folder, tmp_path):
    tasks = [{"name": "beams", "sampling": {"temperature": 0}, "generation": {"beams": 3}}]
    with pytest.raises(ConfigError, match=r"generation\.beams cannot be recorded"):
        record_study(study_of(model_folder, tasks=tasks), tmp_path / "r", Watcher())


def test_two_targets_are_refused(model_folder, tmp_path):
    tasks = [{"name": "one"}, {"name": "two", "target": "builtin:target"}]
    with pytest.raises(ConfigError, match=r"one target, and these tasks have several .*builtin:target"):
        record_study(study_of(model_folder, tasks=tasks), tmp_path / "r", Watcher())


def test_times_are_added_to_a_finished_record(study, tmp_path):
    assert record_study(study, tmp_path / "r", Watcher(), OPTIONS).header.times is None
    before = files(tmp_path / "r")
    options = RecordOptions(rows=3, samples=3, gamma=2, timings=2)
    times = record_study(study, tmp_path / "r", Watcher(), options).header.times
    assert (len(times.verify), len(times.verify_spread)) == (3, 3)
    assert min(times.verify) > 0
    assert times.device.startswith("cpu")
    after = files(tmp_path / "r")
    assert {name for name in after if after[name] != before[name]} == {"record.json"}
    again = record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    assert again.header.times == times


def test_a_target_of_other_weights_is_refused(study, tmp_path, monkeypatch):
    record = record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    monkeypatch.setattr("specdec_core.offline.record.recorded_target.fingerprint_weights", lambda _: "other")
    with pytest.raises(ConfigError, match="is not the target that was recorded"):
        load_recorded(record)


def test_a_task_finds_its_part(study, model_folder, tmp_path):
    record = record_study(study, tmp_path / "r", Watcher(), OPTIONS)
    for task, part in zip(study.tasks, record.parts, strict=True):
        assert part_for(record, task) is part
    # The seed and the name play no part, and prompts may be given as token ids.
    (task,) = study_of(
        model_folder,
        tasks=[{"name": "x", "sampling": {"temperature": 0}}],
        generation={"max_new_tokens": 10, "seed": 9},
        prompts={"tokens": [[0, 1, 2], [3, 4], [5, 6, 7, 0], [1]]},
    ).tasks
    assert part_for(record, task) is record.parts[0]


DIFFERENCES = (
    ({"sampling": {"temperature": 0.5}}, r"sampling.temperature: 0.0 there, 0.5 now"),
    ({"generation": {"max_new_tokens": 11}}, r"generation.max_new_tokens: 10 there, 11 now"),
    ({"prompts": PROMPTS[:3]}, r"the prompts \(4 there, 3 now\)"),
    ({"prompts": [*PROMPTS[:3], "c"]}, r"differ the prompts\. Record"),
    ({"target": "builtin:target"}, r"another target \(model: .* now\)"),
)


def test_a_task_without_a_part_learns_what_differs(study, model_folder, tmp_path):
    record = record_study(study, tmp_path / "r", Watcher(), RecordOptions())
    for change, message in DIFFERENCES:
        same = {"name": "t", "sampling": {"temperature": 0}, "generation": {"max_new_tokens": 10}}
        (task,) = study_of(model_folder, tasks=[{**same, **change}]).tasks
        with pytest.raises(ConfigError, match=message):
            part_for(record, task)
