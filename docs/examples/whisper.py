"""Speech to text. The tests run it with small random models of the same class."""

# --8<-- [start:transcribe]
from transformers import AutoProcessor, WhisperForConditionalGeneration
from transformers.audio_utils import load_audio

from specdec_core import Decoder, generate_with, wrap_model

name = "openai/whisper-large-v3"
processor = AutoProcessor.from_pretrained(name)
model = WhisperForConditionalGeneration.from_pretrained(name, dtype="float32")
audio = load_audio("speech.wav", sampling_rate=16_000)
inputs = processor(audio, sampling_rate=16_000, return_tensors="pt")
drafter = {"name": "transformer", "model": "distil-whisper/distil-large-v3"}
drafted = generate_with(drafter, gamma=5)
ids = model.generate(**inputs, custom_generate=drafted, language="en")
print(processor.batch_decode(ids, skip_special_tokens=True)[0])
# --8<-- [end:transcribe]

# --8<-- [start:decoder]
decoder = Decoder(wrap_model(model), drafter, gamma=5, temperature=0)
begin = processor.tokenizer.convert_tokens_to_ids(
    ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
)
encoded = model.get_encoder()(inputs.input_features)
result = decoder.generate([begin], encoder_outputs=encoded, max_new_tokens=200)
print(processor.decode(result.tokens, skip_special_tokens=True))
# --8<-- [end:decoder]
