from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
pieces = client.completions.create(model="served", prompt="import os\n", max_tokens=32, temperature=0, stream=True)
for piece in pieces:
    print(piece.choices[0].text, end="", flush=True)
