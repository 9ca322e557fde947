"""An agent in a process of its own: guesses a hidden digit, asking the run's gateway with the official OpenAI client.

    pip install openai
    python examples/remote_agent/agent.py 8100
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from openai import OpenAI

TURNS = 4
DIGITS = "0123456789abcdef"
# One client for all attempts: each of them uses its connections with an address and a key of its own.
OPENAI = OpenAI(base_url="http://127.0.0.1", api_key="none")


def attempt(run):
    """Plays one game: each wrong guess is answered with < or >. The reward is 1 for a game that is won."""
    client = OPENAI.with_options(base_url=run["base_url"], api_key=run["api_key"])
    hidden = run["task"]["metadata"]["answer"]
    messages = [{"role": "user", "content": "?"}]
    for turn in range(TURNS):
        choice = client.chat.completions.create(model=run["model"], messages=messages).choices[0]
        guess = choice.message.content or ""
        if guess == hidden:
            return {"reward": 1, "metrics": {"num_turns": turn + 1}}
        if choice.finish_reason == "length":
            return {"reward": 0, "metrics": {"num_turns": turn + 1}, "termination_reason": "max_response_length_exceeded"}
        hint = "?" if len(guess) != 1 or guess not in DIGITS else "<" if DIGITS.index(hidden) < DIGITS.index(guess) else ">"
        messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]
    return {"reward": 0, "metrics": {"num_turns": TURNS}, "termination_reason": "max_turns_exceeded"}


class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        report = attempt(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(report).encode())

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


# An agent in a container listens on 0.0.0.0.
HOST = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
Server((HOST, int(sys.argv[1])), Agent).serve_forever()
