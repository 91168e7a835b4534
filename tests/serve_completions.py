"""A server of completions on loopback, as vLLM answers: `python serve_completions.py FOLDER PORT`.

Prompts are texts or token ids; `echo` with `logprobs` gives the log-probabilities of a prompt's own tokens.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, port = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
alone = Lock()


@torch.no_grad()
def completed(asked: dict[str, Any]) -> dict[str, Any]:
    """Complete one prompt greedily."""
    prompt = asked["prompt"]
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt[0]
    tokens, end = list(ids), model.generation_config.eos_token_id
    for _ in range(asked["max_tokens"]):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == end and not asked.get("echo"):
            break
    text = tokenizer.decode(tokens[len(ids) :], skip_special_tokens=True)
    for stop in asked.get("stop") or []:
        text = text.split(stop)[0]
    choice: dict[str, Any] = {"index": 0, "text": text}
    if asked.get("echo"):
        scores = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        own = scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        best = [{str(int(row.argmax())): float(row.max())} for row in scores]
        choice["logprobs"] = {"token_logprobs": [None, *own.tolist()], "top_logprobs": [None, *best]}
    return {"choices": [choice]}


class Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/completions."""

    def do_POST(self) -> None:
        """Complete, one question at a time."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = self.path == "/v1/completions" and asked["model"] == folder
        with alone:
            found = json.dumps(completed(asked) if right else {"error": "no such model"}).encode()
        self.send_response(200 if right else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_: Any) -> None:
        """Say nothing of each question."""


ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
